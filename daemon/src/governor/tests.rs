use super::*;

/// A second's calls at each site; the probes obey at once.
struct Host {
    governor: Governor,
    now: Duration,
    open: Vec<Open>,
    closed: Vec<Open>,
    /// Calls in a second, by site.
    rates: BTreeMap<u16, f64>,
    happened: BTreeMap<String, f64>,
    gave_up: bool,
}

const COST: f64 = 1e-6;

impl Host {
    fn new(budget: f64, rates: &[(u16, f64)]) -> Host {
        let open = rates.iter().map(|&(number, _)| Open {
            number,
            function: format!("f{}", number % 2),
            cost: COST,
            passes: u32::MAX - 1000,
            closable: true,
        });
        Host {
            governor: Governor::new(budget, true),
            now: Duration::ZERO,
            open: open.collect(),
            closed: Vec::new(),
            rates: rates.iter().copied().collect(),
            happened: BTreeMap::new(),
            gave_up: false,
        }
    }

    /// A tick; what it cost for each second.
    fn tick(&mut self) -> f64 {
        let seconds = TICK.as_secs_f64();
        self.now += TICK;
        let mut cost = 0.0;
        for site in self.open.iter_mut().chain(&mut self.closed) {
            *self.happened.entry(site.function.clone()).or_default() += self.rates[&site.number] * seconds;
        }
        for site in &mut self.open {
            let passed = self.rates[&site.number] * seconds;
            site.passes = site.passes.wrapping_add(passed as u32);
            cost += passed * COST / seconds;
        }
        for order in self.governor.tick(self.now, &self.open) {
            match order {
                Order::Close(number) => {
                    let place = self.open.iter().position(|site| site.number == number).unwrap();
                    self.closed.push(self.open.remove(place));
                }
                Order::Open(number) => {
                    let place = self.closed.iter().position(|site| site.number == number).unwrap();
                    let site = self.closed.remove(place);
                    self.governor.opened(number, self.now, site.passes);
                    self.open.push(site);
                }
                Order::GiveUp => self.gave_up = true,
            }
        }
        cost
    }

    fn run(&mut self, seconds: u32) -> f64 {
        let ticks = seconds * 4;
        (0..ticks).map(|_| self.tick()).sum::<f64>() / f64::from(ticks)
    }
}

#[test]
fn within_the_budget_nothing_is_closed_and_nothing_is_estimated() {
    let mut host = Host::new(0.01, &[(8, 4000.0), (9, 4000.0)]);
    host.run(60);
    assert!(host.closed.is_empty());
    for calls in host.governor.functions().values() {
        assert_eq!(calls.seen, calls.estimated);
        // But for the first tick, before which nothing was read.
        assert_eq!(calls.seen, 4000.0 * (60.0 - 0.25));
    }
    assert!((host.governor.spent() - 8000.0 * COST * 59.75).abs() < 1e-9);
}

#[test]
fn after_a_jump_the_budget_holds_within_two_seconds_and_for_good() {
    let mut host = Host::new(0.01, &[(8, 0.0), (9, 1000.0), (10, 500.0)]);
    host.run(10);
    host.rates.insert(8, 1.5e6);
    host.run(2);
    let after: Vec<f64> = (0..4 * 59).map(|_| host.tick()).collect();
    assert!(after[..8].iter().all(|cost| *cost <= 0.01), "{after:?}");
    // The windows of a site that takes one and a half processors are at the longest pause.
    assert!(host.run(600) <= 0.01, "{}", host.run(600));
    // The others were never touched.
    assert!(host.closed.iter().all(|site| site.number == 8));
    assert!(!host.gave_up);
}

#[test]
fn estimates_of_a_steady_load_are_right_within_a_percent() {
    let mut host = Host::new(0.01, &[(8, 60_000.0), (9, 40_000.0), (10, 20_000.0), (11, 100.0)]);
    host.run(20);
    let before = host.happened.clone();
    let calls: BTreeMap<_, _> = host.governor.functions().clone();
    let average = host.run(1200);
    assert!(average <= 0.0105, "{average}");
    for (function, happened) in &host.happened {
        let happened = happened - before[function];
        let estimated = host.governor.functions()[function].estimated - calls[function].estimated;
        assert!((estimated / happened - 1.0).abs() < 0.01, "{function}: {estimated} of {happened}");
    }
    assert!(host.governor.functions()["f0"].seen < 0.1 * host.happened["f0"]);
}

#[test]
fn when_the_load_ends_all_is_opened_again() {
    let mut host = Host::new(0.01, &[(8, 50_000.0), (9, 50_000.0), (10, 5.0)]);
    host.run(10);
    assert!(host.governor.functions()["f0"].estimated > host.governor.functions()["f0"].seen);
    host.rates = [(8, 10.0), (9, 10.0), (10, 5.0)].into();
    host.run(70);
    assert!(host.closed.is_empty());
}

#[test]
fn what_cannot_be_closed_makes_it_give_up_after_five_seconds() {
    let mut host = Host::new(0.01, &[(0, 50_000.0), (9, 1.0)]);
    host.open[0].closable = false;
    host.run(5);
    assert!(!host.gave_up);
    host.run(1);
    assert!(host.gave_up && host.governor.gave_up());
    assert_eq!(host.governor.tick(host.now + TICK, &host.open.clone()), []);
}

#[test]
fn calls_that_passed_while_probes_were_set_are_seen_and_within_the_gap() {
    let mut governor = Governor::new(0.01, true);
    let site = |passes| Open { number: 8, function: "f".into(), cost: COST, passes, closable: true };
    let at = Duration::from_millis;
    assert_eq!(governor.tick(at(0), &[site(0)]), []);
    assert_eq!(governor.tick(at(250), &[site(25_000)]), [Order::Close(8)]);
    assert_eq!(governor.tick(at(500), &[]), []);
    // Detached 50 ms after it was read, attached 100 ms before: 15,000 more calls of 1,000,000 in ten seconds.
    governor.opened(8, at(10_250), 40_000);
    governor.tick(at(10_500), &[site(65_000)]);
    let calls = governor.functions()["f"];
    assert_eq!(calls.seen, 65_000.0);
    // The rate before the gap is smoothed with the 0 of the first look.
    assert_eq!(calls.estimated, 50_000.0 + 10.0 * (50_000.0 + 100_000.0) / 2.0);
}

#[test]
fn what_cannot_be_opened_again_stays_closed() {
    let mut host = Host::new(0.01, &[(8, 50_000.0), (9, 10.0)]);
    host.governor = Governor::new(0.01, false);
    host.run(200);
    assert_eq!((host.closed.len(), host.open.len(), host.gave_up), (1, 1, false));
}

#[test]
fn sites_of_a_module_that_is_gone_are_forgotten() {
    let mut host = Host::new(0.01, &[(8, 50_000.0), (9, 10.0)]);
    host.run(2);
    assert_eq!(host.closed.len(), 1);
    host.governor.keep(|number| number != 8);
    host.closed.clear();
    // Nothing is opened that is not there, and the other has the whole budget again.
    host.run(120);
    host.rates.insert(9, 9_500.0);
    host.run(10);
    assert_eq!((host.open.len(), host.gave_up), (1, false));
}
