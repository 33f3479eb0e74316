//! The overhead budget: a load that would cost more closes the places by which it comes, and what passes is estimated.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::FileExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use iotrace_guest::{daemon::Daemon, exposition::Exposition, in_guest, process::eventually};

/// The default, in processors.
const BUDGET: f64 = 0.005;
/// So many budgets would the load take. A closed place then stays so for three seconds.
const TIMES: f64 = 3.0;
/// While the load lasts.
const STEADY: Duration = Duration::from_secs(40);
/// A closed place is opened again within a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// Reads 64 bytes of a file in memory, steadily, until dropped.
struct Load {
    calls: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(rate: f64) -> Load {
        let (calls, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (made, stopped) = (Arc::clone(&calls), Arc::clone(&stop));
        let mut file = File::create_new("/tmp/budget").expect("the guest's /tmp can be written");
        file.write_all(&[7; 64]).expect("room for 64 bytes");
        let file = File::open("/tmp/budget").expect("a file of ours");
        let thread = thread::spawn(move || {
            let (mut buffer, begun) = ([0; 64], Instant::now());
            while !stopped.load(Relaxed) {
                let due = (begun.elapsed().as_secs_f64() * rate) as u64;
                while made.load(Relaxed) < due {
                    assert_eq!(file.read_at(&mut buffer, 0).expect("a file of ours"), 64);
                    made.fetch_add(1, Relaxed);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Load { calls, stop, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "the load failed");
    }
}

/// Calls by the function of this load: those seen, and all.
fn passes(scrape: &Exposition) -> [f64; 2] {
    ["iotrace_iter_passes_total", "iotrace_iter_passes_estimated_total"]
        .map(|name| scrape.with(name, &[]).map(|sample| sample.value).sum())
}

fn closed(scrape: &Exposition) -> Vec<String> {
    let sites = scrape.with("iotrace_site_attached", &[("state", "closed")]);
    sites.map(|sample| sample.labels["site"].clone()).collect()
}

#[test]
fn a_load_above_the_budget_is_estimated_and_the_budget_holds() {
    let _alone = in_guest();
    let mut daemon = Daemon::start_with(19_495, &["--no-selftest"]);
    daemon.attached();
    let known = |daemon: &Daemon| daemon.metrics().with("iotrace_probe_cost_seconds", &[]).count() > 0;
    assert!(eventually(PATIENCE, || known(&daemon)), "no cost: {}", daemon.log());
    let scrape = daemon.metrics();
    let budget = scrape.value("iotrace_overhead_budget_processors", &[]);
    let processors = thread::available_parallelism().expect("a number of processors").get();
    assert!((budget - BUDGET * processors as f64).abs() < 1e-9, "{budget}");
    let costs = scrape.with("iotrace_probe_cost_seconds", &[]);
    let costs: Vec<_> = costs.map(|cost| (cost.labels["mechanism"].clone(), cost.value)).collect();
    println!("{costs:?}; {budget} processors");
    assert!(costs.iter().all(|(_, cost)| (1e-8..1e-3).contains(cost)), "{costs:?}");
    assert_eq!(closed(&scrape), Vec::<String>::new());

    let walkers = costs.iter().filter(|(mechanism, _)| mechanism != "import");
    let dearest = walkers.map(|(_, cost)| *cost).max_by(f64::total_cmp).expect("a walker's cost");
    let load = Load::start(TIMES * budget / dearest);
    let begun = Instant::now();
    assert!(
        eventually(PATIENCE, || !closed(&daemon.metrics()).is_empty()),
        "nothing was closed: {}",
        daemon.log()
    );
    println!("closed within {:?}", begun.elapsed());
    thread::sleep(Duration::from_secs(5));
    let take = || {
        let scrape = daemon.metrics();
        let spent = scrape.value("iotrace_overhead_seconds_total", &[("instrument", "time")]);
        (load.calls.load(Relaxed) as f64, passes(&scrape), spent, Instant::now())
    };
    let (calls, [seen, estimated], spent, at) = take();
    thread::sleep(STEADY);
    let (more_calls, [more_seen, more_estimated], more_spent, later) = take();
    let seconds = (later - at).as_secs_f64();
    let (calls, seen, estimated) = (more_calls - calls, more_seen - seen, more_estimated - estimated);
    let share = (more_spent - spent) / seconds;
    println!("{calls} calls in {seconds:.1} s: {seen} seen, {estimated:.0} estimated; {share:.4} processors");
    assert!(share <= budget, "{share} of {budget} processors");
    assert!(seen < 0.7 * calls, "{seen} of {calls} were seen");
    // The estimate is late by a pause, there are the guest's own calls, and on a busy machine an emulated load comes in bursts: the
    // windows are a twelfth of the time. That it has no bias is a test of the governor alone.
    assert!((estimated / calls - 1.0).abs() < 0.25, "{estimated} estimated, {calls} made");
    drop(load);
    assert!(eventually(PATIENCE, || closed(&daemon.metrics()).is_empty()), "{:?}", closed(&daemon.metrics()));
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}
