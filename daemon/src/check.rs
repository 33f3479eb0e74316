//! What this kernel offers and what can be measured on it, line by line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::snapshot::{Probe, State};

/// How often the kernel is asked which kprobes are jumps, and how long is waited in between.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(200);

/// What `iotrace check` found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The kernel's release, as `uname -r`.
    pub release: String,
    /// The architecture, as `uname -m`.
    pub arch: String,
    /// What was asked of the kernel.
    pub facts: Vec<Fact>,
    /// The kinds of `struct iov_iter` on this kernel.
    pub kinds: Vec<String>,
    /// Whether attaching was tried. Where it was not, a planned site counts as good.
    pub tried: bool,
    /// Instructions that the verifier processed (≥ 5.16), by program; only in JSON.
    #[serde(default)]
    pub programs: BTreeMap<String, u32>,
    /// Every target's sites.
    pub probes: Vec<Probe>,
}

/// One thing that the kernel or the process has or has not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is, such as `btf`; one word.
    pub name: String,
    /// Whether it is there.
    pub verdict: Verdict,
    /// Where it was found, or what follows from it.
    pub note: String,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is there.
    Yes,
    /// It is not.
    No,
    /// It could not be told.
    Unknown,
}

impl Verdict {
    /// The word in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Yes => "yes",
            Verdict::No => "no",
            Verdict::Unknown => "unknown",
        }
    }
}

/// How many sites are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Summary {
    sites: usize,
    attached: usize,
    pending: usize,
    failed: usize,
    unavailable: usize,
}

impl CheckReport {
    fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for probe in self.probes.iter().filter(|probe| !probe.site.is_empty()) {
            summary.sites += 1;
            *match probe.state {
                State::Attached => &mut summary.attached,
                // Nothing is closed while all is attached.
                State::Pending | State::Closed => &mut summary.pending,
                State::Failed => &mut summary.failed,
                State::Unavailable => &mut summary.unavailable,
            } += 1;
        }
        summary
    }

    /// Notes which kprobes the kernel has made jumps of. It takes its time to: `read` is asked again until the answer stays
    /// the same.
    pub fn optimized(&mut self, read: impl Fn() -> Option<BTreeSet<String>>) {
        let mut jumps = read();
        for _ in 0..TRIES {
            thread::sleep(PAUSE);
            let next = read();
            let stays = next == jumps && next.as_ref().is_none_or(|jumps| !jumps.is_empty());
            jumps = next;
            if stays {
                break;
            }
        }
        let attached = self.probes.iter_mut().filter(|probe| probe.state == State::Attached);
        for kprobe in attached.flat_map(|probe| &mut probe.kprobes) {
            let place = kprobe.at.split(' ').next().unwrap_or_default();
            kprobe.optimized = jumps.as_ref().map(|jumps| jumps.contains(place));
        }
    }

    /// 0 if all sites can be measured, 1 if some, 2 if none.
    pub fn exit_code(&self) -> u8 {
        let summary = self.summary();
        let good = summary.attached + if self.tried { 0 } else { summary.pending };
        match good {
            0 => 2,
            good if good < summary.sites => 1,
            _ => 0,
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let mut value = json!(self);
        value["summary"] = json!(self.summary());
        value
    }
}

/// The report for people and for grep: one line for each fact and each site, the reason at its end, a summary
/// last.
pub fn report(report: &CheckReport) -> String {
    let mut text = String::new();
    let mut line = |first: &str, second: &str, rest: &str| {
        let line = format!("{first:<11}  {second:<7}  {rest}").replace('\n', " ");
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "{}", line.trim_end());
    };
    line("kernel", &report.arch, &report.release);
    for fact in &report.facts {
        line(&fact.name, fact.verdict.name(), &fact.note);
    }
    if !report.kinds.is_empty() {
        line("kinds", &report.kinds.len().to_string(), &report.kinds.join(" "));
    }
    let width = |text: fn(&Probe) -> &str| {
        report.probes.iter().map(|probe| text(probe).chars().count()).max().unwrap_or_default()
    };
    let (target, site) = (width(|probe| &probe.target), width(|probe| &probe.site).max(1));
    for probe in &report.probes {
        let place = if probe.site.is_empty() { "-" } else { &probe.site };
        let last = if probe.reason.is_empty() { kprobes(probe) } else { probe.reason.clone() };
        let rest = format!("{:<target$}  {place:<site$}  {last}", probe.target);
        line(probe.state.name(), &probe.mechanism, &rest);
    }
    let Summary { sites, attached, pending, failed, unavailable } = report.summary();
    let mut parts = vec![if report.tried {
        format!("{attached} of {sites} sites attached")
    } else {
        format!("{} of {sites} sites can be attached", attached + pending)
    }];
    let rest = [
        ("pending", if report.tried { pending } else { 0 }),
        ("failed", failed),
        ("unavailable", unavailable),
    ];
    parts
        .extend(rest.iter().filter(|(_, sites)| *sites > 0).map(|(state, sites)| format!("{sites} {state}")));
    text + &parts.join(", ") + "\n"
}

/// Where the kprobes of a site are, and what the kernel has made of each.
fn kprobes(probe: &Probe) -> String {
    let told = probe.kprobes.iter().map(|kprobe| {
        let place = kprobe.at.split(' ').next().unwrap_or_default();
        let offset = place.rfind('+').map_or(place, |plus| &place[plus..]);
        match kprobe.optimized {
            Some(true) => format!("{offset} a jump"),
            Some(false) => format!("{offset} a trap"),
            None => offset.to_owned(),
        }
    });
    told.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Kprobe;

    fn with(states: &[State], tried: bool) -> CheckReport {
        let probe = |state: &State| Probe {
            target: "import_iovec".into(),
            site: "vfs_readv+0xcf".into(),
            mechanism: "trap".into(),
            state: *state,
            reason: "two\nlines".into(),
            kprobes: Vec::new(),
        };
        CheckReport {
            release: "6.12".into(),
            arch: "x86_64".into(),
            facts: vec![],
            kinds: vec![],
            tried,
            programs: BTreeMap::new(),
            probes: states.iter().map(probe).collect(),
        }
    }

    #[test]
    fn the_exit_code_tells_all_some_and_nothing() {
        use State::{Attached, Failed, Pending, Unavailable};
        assert_eq!(with(&[Attached, Attached], true).exit_code(), 0);
        assert_eq!(with(&[Attached, Failed], true).exit_code(), 1);
        assert_eq!(with(&[Attached, Pending], true).exit_code(), 1);
        assert_eq!(with(&[Attached, Unavailable], true).exit_code(), 1);
        assert_eq!(with(&[Failed, Pending], true).exit_code(), 2);
        assert_eq!(with(&[], true).exit_code(), 2);
        assert_eq!(with(&[Pending, Pending], false).exit_code(), 0);
        assert_eq!(with(&[Pending, Unavailable], false).exit_code(), 1);
        assert_eq!(with(&[Unavailable], false).exit_code(), 2);
    }

    #[test]
    fn a_target_without_a_site_is_no_site() {
        let mut report = with(&[State::Attached, State::Unavailable], true);
        report.probes[1].site.clear();
        assert_eq!(report.exit_code(), 0);
    }

    #[test]
    fn what_the_kernel_has_made_of_a_kprobe_is_told() {
        let mut checked = with(&[State::Attached], true);
        checked.probes[0].reason.clear();
        let kprobe = |at: &str| Kprobe { at: at.into(), optimized: None };
        checked.probes[0].kprobes = vec![kprobe("vfs_readv+0xca"), kprobe("vfs_readv+0xd4 [m]")];
        checked.optimized(|| Some(["vfs_readv+0xd4".to_owned()].into()));
        assert!(
            report(&checked).contains("vfs_readv+0xcf  +0xca a trap, +0xd4 a jump\n"),
            "{}",
            report(&checked)
        );
        checked.optimized(|| None);
        assert!(report(&checked).contains("vfs_readv+0xcf  +0xca, +0xd4\n"));
    }

    #[test]
    fn each_site_is_one_line() {
        let text = report(&with(&[State::Attached, State::Failed], true));
        assert_eq!(text.lines().count(), 4);
        assert_eq!(text.lines().last(), Some("1 of 2 sites attached, 1 failed"));
    }
}
