//! Who caused it: each process' own numbers, exactly, and together all that was counted.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd as _,
        unix::{fs::symlink, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use iotrace_guest::{
    LOAD,
    daemon::Daemon,
    exposition::Exposition,
    in_guest,
    process::{content, eventually, iotrace, run, wait},
    report::{Imports, Process, Report, Walks},
};

/// As many processes as `iotrace top` remembers, and some more.
const MANY: u64 = 9_000;
/// Processes that the daemon sees come and go, unless the environment says how many.
const SWARM: u64 = 10_000;
/// By how much the daemon may have grown then, in KiB.
const GROWN: u64 = 12 << 10;
const DIGITS: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const IMPORTS: &str = "iotrace_process_imports_total";

/// The load under another name.
fn named(name: &str) -> String {
    let path = format!("/tmp/{name}");
    let _left_by_another_run = fs::remove_file(&path);
    symlink(LOAD, &path).expect("the guest's /tmp can be written");
    path
}

/// A cgroup, removed when dropped: its processes must have ended.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(path: &str) -> Cgroup {
        let path = PathBuf::from(format!("/sys/fs/cgroup{path}"));
        fs::create_dir_all(&path).expect("a cgroup of version 2");
        Cgroup(path)
    }

    fn processes(&self) -> String {
        self.0.join("cgroup.procs").display().to_string()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let gone = eventually(Duration::from_secs(5), || fs::remove_dir(&self.0).is_ok());
        if !gone {
            println!("{} stays", self.0.display());
        }
    }
}

fn add(sum: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    more.iter().for_each(|(kind, number)| *sum.entry(kind.clone()).or_default() += number);
}

#[test]
fn rows_are_exact_and_together_the_whole() {
    let _alone = in_guest();
    let slice = "/system.slice";
    let service = Cgroup::new(&format!("{slice}/foo.service"));
    let container = Cgroup::new(&format!("{slice}/docker-{DIGITS}.scope"));
    let scope = Cgroup::new(&format!("{slice}/many.scope"));
    let [reader, writer, beside] = ["reader", "writer", "beside"].map(named);
    let script = format!(
        "{beside} readv --count 400 --segments 5 &
        sh -c 'echo $$ >{}; exec {LOAD} swarm --count {MANY}' || exit 99
        sh -c 'echo $$ >{}; exec {reader} readv --count 1500 --segments 3' &
        sh -c 'echo $$ >{}; exec {writer} writev --count 700 --bytes 128 --absent 50' &
        wait",
        scope.processes(),
        service.processes(),
        container.processes(),
    );
    let mut command = iotrace(&["top", "-o", "json", "--cgroup", slice, "--", "sh", "-c", &script]);
    let ended = run(&mut command, Duration::from_secs(180));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    println!("top took {:?}", ended.took);
    let report = Report::parse(&ended.stdout);
    assert_eq!(report.lost(), BTreeMap::new());
    let rows = report.processes();
    let only = |comm: &str| -> Process {
        let found: Vec<&Process> = rows.iter().filter(|row| row.comm == comm).collect();
        assert_eq!(found.len(), 1, "{comm} in {rows:#?}");
        found[0].clone()
    };
    let (reader, writer) = (only("reader"), only("writer"));
    assert_eq!(reader.imported(), [1500, 0, 4500, 4500 * 64, 0]);
    assert_eq!((&*reader.cgroup, &*reader.unit), ("/system.slice/foo.service", "foo.service"));
    assert_eq!(reader.container, "");
    // Files of /proc are read by a vector of the kernel's own, and every program reads some when it starts.
    assert!((1500..1510).contains(&reader.iter_calls["iovec"]), "{reader:?}");
    assert_eq!(writer.imported(), [750, 750, 750, 700 * 128, 50]);
    let scope = format!("docker-{DIGITS}.scope");
    assert_eq!((&*writer.cgroup, &*writer.unit), (&*format!("/system.slice/{scope}"), &*scope));
    assert_eq!(writer.container, DIGITS[..12]);
    assert!(rows.iter().all(|row| row.comm != "beside"), "{rows:#?}");

    let last = rows.last().expect("the row of the others");
    assert_eq!((last.pid, &*last.comm), (None, "other"));
    let mut whole = [0; 5];
    for row in report.imports().values() {
        let numbers = [row.calls, row.single, row.segments, row.bytes, row.errors];
        whole.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }
    let swarm = [MANY, MANY, MANY, MANY * 64, 0];
    assert_eq!(whole, std::array::from_fn(|it| swarm[it] + reader.imported()[it] + writer.imported()[it]));
    let sum = rows.iter().map(Process::imported);
    assert_eq!(sum.reduce(|sum, row| std::array::from_fn(|it| sum[it] + row[it])), Some(whole));
    let (mut calls, mut bytes) = (BTreeMap::new(), BTreeMap::new());
    for row in &rows {
        add(&mut calls, &row.iter_calls);
        add(&mut bytes, &row.iter_bytes);
    }
    let mut walked: BTreeMap<String, Walks> = BTreeMap::new();
    for ((_, kind), walks) in report.walks() {
        let sum = walked.entry(kind).or_default();
        (sum.calls, sum.bytes) = (sum.calls + walks.calls, sum.bytes + walks.bytes);
    }
    assert_eq!(calls, walked.iter().map(|(kind, walks)| (kind.clone(), walks.calls)).collect());
    walked.retain(|_, walks| walks.bytes > 0);
    assert_eq!(bytes, walked.iter().map(|(kind, walks)| (kind.clone(), walks.bytes)).collect());
}

/// A shell that becomes this command when it is told to go.
fn waiting(command: &str, user: u32, cgroup: &Cgroup) -> Child {
    let script = format!("until [ -e /tmp/go ]; do sleep 0.1; done; exec {command}");
    let child = Command::new("sh").args(["-c", &script]).uid(user).stdin(Stdio::null()).spawn();
    let child = child.expect("the guest has a shell");
    fs::write(cgroup.processes(), child.id().to_string()).expect("a process of ours can be moved");
    child
}

fn ends_well(child: &mut Child) {
    let status = wait(child, Duration::from_secs(60));
    assert!(status.is_some_and(|status| status.success()), "{child:?}: {status:?}");
}

/// Imports by the labels pid and comm.
fn by_process(scrape: &Exposition) -> BTreeMap<(String, String), u64> {
    let samples = scrape.with(IMPORTS, &[]).filter(|sample| sample.value > 0.0);
    samples.map(|it| ((it.labels["pid"].clone(), it.labels["comm"].clone()), it.value as u64)).collect()
}

/// Also by its cgroup, above, and by its name: in the test of interrupted calls.
#[test]
fn who_does_not_count_is_not_counted() {
    const USER: u32 = 1234;
    let _alone = in_guest();
    let _left_by_another_run = fs::remove_file("/tmp/go");
    let (inside, beside) = (Cgroup::new("/chosen.slice"), Cgroup::new("/beside.slice"));
    let mut chosen = waiting(&format!("{} readv --count 900 --segments 2", named("chosen")), USER, &inside);
    let mut other = waiting(&format!("{} readv --count 400 --segments 5", named("beside")), 0, &beside);
    let (pid, user) = (chosen.id().to_string(), USER.to_string());
    let filters = [["--pid", &pid], ["--user", &user]];
    let [mut by_pid, mut by_user] =
        [(19_481, filters[0]), (19_482, filters[1])].map(|(port, [option, value])| {
            Daemon::start_with(port, &["--no-selftest", "--exact", option, value])
        });
    println!("attached after {:?} and {:?}", by_pid.attached(), by_user.attached());
    File::create("/tmp/go").expect("the guest's /tmp can be written");
    ends_well(&mut chosen);
    ends_well(&mut other);
    let bytes = 900 * 2 * 64;
    let readv = Imports { calls: 900, single: 0, segments: 1800, allocated: Some(0), bytes, errors: 0 };
    for (daemon, filter) in [&by_pid, &by_user].into_iter().zip(filters) {
        let scrape = daemon.metrics();
        assert_eq!(scrape.imports(), BTreeMap::from([("readv".into(), readv)]), "{filter:?}");
        let pages = scrape.walks()[&("copy_page_to_iter".into(), "iovec".into())];
        assert_eq!(pages, Walks { calls: 900, bytes, timed: 900 }, "{filter:?}");
        let rows = BTreeMap::from([((pid.clone(), "chosen".to_owned()), 900)]);
        assert_eq!(by_process(&scrape), rows, "{filter:?}");
        assert_eq!(scrape.sum("iotrace_lost_total", &[]), 0, "{filter:?}");
    }
    a_program_has_its_own_row(&by_user, USER);
    let ends = [by_pid, by_user].map(|daemon| thread::spawn(move || daemon.end(libc::SIGTERM).code));
    assert_eq!(ends.map(|end| end.join().expect("it ends")), [0; 2]);
}

/// A process imports, becomes another program, and imports again.
fn a_program_has_its_own_row(daemon: &Daemon, user: u32) {
    fs::write("/tmp/data", [0; 4096]).expect("the guest's /tmp can be written");
    let file = File::open("/tmp/data").expect("a file of ours");
    let mut command = Command::new(named("reborn"));
    command.args(["readv", "--count", "5"]).uid(user);
    // SAFETY: between fork and exec only a system call is made, with memory of this closure.
    unsafe {
        command.pre_exec(move || {
            let mut memory = [0u8; 16];
            let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
            for _ in 0..7 {
                if libc::readv(file.as_raw_fd(), &raw const vector, 1) != 16 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let before = content("/proc/thread-self/comm").trim().to_owned();
    let mut child = command.spawn().expect("the guest has the load");
    ends_well(&mut child);
    let mut rows = by_process(&daemon.metrics());
    let pid = child.id().to_string();
    rows.retain(|(row, _), _| *row == pid);
    let expected = [((pid.clone(), before), 7), ((pid, "reborn".to_owned()), 5)];
    assert_eq!(rows, BTreeMap::from(expected));
}

/// Loads that run for long, and stand still while the daemon is asked.
struct Busy(Vec<Child>);

impl Busy {
    fn start(loads: &[[&str; 2]]) -> Busy {
        let start = |[name, work]: &[&str; 2]| {
            let mut command = Command::new(named(name));
            command.args([*work, "--count", "1000000000", "--segments", "3"]);
            command.stdin(Stdio::null()).spawn().expect("the guest has the load")
        };
        Busy(loads.iter().map(start).collect())
    }

    fn all(&self, signal: i32) {
        for child in &self.0 {
            // SAFETY: sends a signal to a child of ours that is not reaped.
            unsafe { libc::kill(child.id().cast_signed(), signal) };
        }
    }

    /// Stops all, each on its way back from the kernel.
    fn stop(&self) {
        self.all(libc::SIGSTOP);
        let stopped = |child: &Child| content(&format!("/proc/{}/stat", child.id())).contains(") T ");
        assert!(eventually(Duration::from_secs(10), || self.0.iter().all(stopped)));
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all(libc::SIGKILL);
        self.0.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// The rows of processes are together what was counted.
fn rows_are_the_whole(scrape: &Exposition) {
    let sum = |name: &str| scrape.sum(name, &[]);
    assert_eq!(sum(IMPORTS), sum("iotrace_import_segments_count"));
    assert_eq!(sum("iotrace_process_segments_total"), sum("iotrace_import_segments_sum"));
    assert_eq!(sum("iotrace_process_import_bytes_total"), sum("iotrace_import_bytes_total"));
    for (rows, whole) in [
        ("iotrace_process_iter_calls_total", "iotrace_iter_calls_total"),
        ("iotrace_process_iter_bytes_total", "iotrace_iter_bytes_total"),
    ] {
        for kind in scrape.values(whole, "kind") {
            let kind = [("kind", kind)];
            assert_eq!(scrape.sum(rows, &kind), scrape.sum(whole, &kind), "{rows} {kind:?}");
        }
    }
    assert_eq!(sum("iotrace_lost_total"), 0);
}

/// No series that both have is lower in the later one.
fn nothing_goes_down(earlier: &Exposition, later: &Exposition) {
    let of_processes = |scrape: &Exposition| -> BTreeMap<(String, Vec<(String, String)>), f64> {
        let samples = scrape.samples.iter().filter(|sample| sample.name.starts_with("iotrace_process_"));
        let key = |labels: &BTreeMap<String, String>| labels.clone().into_iter().collect();
        samples.map(|sample| ((sample.name.clone(), key(&sample.labels)), sample.value)).collect()
    };
    let later = of_processes(later);
    for (series, value) in of_processes(earlier) {
        if let Some(now) = later.get(&series) {
            assert!(*now >= value, "{series:?} went from {value} to {now}");
        }
    }
}

fn resident(pid: u32) -> u64 {
    let status = content(&format!("/proc/{pid}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process that runs");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

#[test]
fn the_heaviest_have_rows_however_many_there_are() {
    let _alone = in_guest();
    let mut daemon = Daemon::start_with(19_485, &["--no-selftest", "--exact", "--top-k", "2"]);
    println!("attached after {:?}", daemon.attached());
    let busy = Busy::start(&[["first", "readv"], ["second", "writev"], ["third", "preadv"]]);
    let mut before = Exposition::default();
    for round in 0..6 {
        busy.all(libc::SIGCONT);
        thread::sleep(Duration::from_millis(if round % 2 == 0 { 300 } else { 50 }));
        busy.stop();
        let scrape = daemon.metrics();
        rows_are_the_whole(&scrape);
        nothing_goes_down(&before, &scrape);
        let own_rows = scrape.with(IMPORTS, &[]).filter(|sample| !sample.labels["pid"].is_empty()).count();
        assert!((1..=2).contains(&own_rows), "{own_rows} rows");
        before = scrape;
    }
    drop(busy);

    let swarm = std::env::var("IOTRACE_SWARM").ok().and_then(|number| number.parse().ok()).unwrap_or(SWARM);
    let before = daemon.metrics();
    let memory = resident(daemon.pid());
    let mut child =
        Command::new(LOAD).args(["swarm", "--count", &swarm.to_string()]).spawn().expect("the load");
    let mut most = memory;
    let ended = eventually(Duration::from_secs(600), || {
        most = most.max(resident(daemon.pid()));
        child.try_wait().expect("a child of ours").is_some()
    });
    assert!(ended, "{swarm} processes take too long");
    ends_well(&mut child);
    let after = daemon.metrics();
    rows_are_the_whole(&after);
    nothing_goes_down(&before, &after);
    let readv = |scrape: &Exposition| scrape.sum("iotrace_import_segments_count", &[("path", "readv")]);
    assert_eq!(readv(&after) - readv(&before), swarm);
    println!("{swarm} processes: {memory} kB before, {most} kB at most");
    assert!(most < memory + GROWN, "{memory} kB before, {most} kB at most");
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}
