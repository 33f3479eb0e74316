//! Which tests run in which guests.

use crate::programs::Program;
use crate::series::Flavour;

/// A guest, and the test programs that run in it.
pub struct Rig {
    /// A word for it.
    pub name: &'static str,
    /// The build of its kernel.
    pub flavour: Flavour,
    /// Its processors.
    pub smp: u32,
    /// Debian packages in it.
    pub packages: &'static [&'static str],
    /// Modules that are loaded.
    pub modules: &'static [&'static str],
    /// The tests that need just this guest.
    pub tests: &'static [Test],
    /// Whether all tests that no rig names run here, too.
    pub rest: bool,
    /// Whether it is asked what can be probed, for docs/kernels.md.
    pub check: bool,
    /// What its shell does at the end.
    pub last: &'static str,
}

/// A test program in a rig.
pub struct Test {
    /// Its name.
    pub name: &'static str,
    /// Whether its ignored tests run, instead of the others: they spoil the guest.
    pub ignored: bool,
    /// The series that it is for; every kernel if there is none.
    pub on: &'static [&'static str],
}

/// Every rig, in the order in which they run with a kernel.
pub const RIGS: &[Rig] = &[
    Rig {
        name: "two processors",
        flavour: Flavour::Cloud,
        smp: 2,
        packages: &[],
        modules: &["tun"],
        // The oldest and the newest kernel, or the one with most probes, tell what the others would.
        tests: &[
            Test { name: "who", ignored: false, on: &["5.10", "7.3"] },
            Test { name: "churn", ignored: false, on: &["6.12"] },
            Test { name: "memory", ignored: false, on: &["6.12"] },
            Test { name: "interrupted", ignored: false, on: &["5.10", "6.12"] },
            Test { name: "modules", ignored: false, on: &["5.10", "6.12"] },
            Test { name: "budget", ignored: false, on: &["5.10", "7.3"] },
            // They take minutes, and run on what has least else to do.
            Test { name: "bench", ignored: false, on: &["7.3"] },
            Test { name: "zerocopy", ignored: false, on: &["6.1"] },
        ],
        rest: true,
        check: true,
        last: "",
    },
    Rig {
        name: "one processor",
        flavour: Flavour::Cloud,
        smp: 1,
        packages: &[],
        modules: &[],
        // In this order: lockdown can only be raised.
        tests: &[
            Test { name: "hostile", ignored: true, on: &["5.10", "6.12"] },
            Test { name: "lockdown", ignored: true, on: &[] },
        ],
        rest: false,
        check: false,
        last: "iotrace top -d 1 2>&1 >/dev/null | sed 's/.*/== found condition lockdown=confidentiality: &/'",
    },
    Rig {
        name: "four processors",
        flavour: Flavour::Cloud,
        smp: 4,
        packages: &[],
        modules: &[],
        tests: &[Test { name: "hostile", ignored: false, on: &["6.12"] }],
        rest: false,
        check: false,
        last: "",
    },
    Rig {
        name: "Debian's programs",
        flavour: Flavour::Cloud,
        smp: 2,
        packages: &["coreutils", "fio", "nginx", "python3-minimal", "redis-server", "redis-tools", "tar"],
        modules: &[],
        tests: &[Test { name: "programs", ignored: false, on: &["6.12"] }],
        rest: false,
        check: false,
        last: "",
    },
    Rig {
        name: "Prometheus",
        flavour: Flavour::Cloud,
        smp: 2,
        packages: &["prometheus"],
        modules: &[],
        // It takes minutes, and runs on what has least else to do.
        tests: &[Test { name: "prometheus", ignored: false, on: &["6.1"] }],
        rest: false,
        check: false,
        last: "",
    },
    Rig {
        name: "systemd",
        flavour: Flavour::Cloud,
        smp: 2,
        packages: &["systemd"],
        modules: &[],
        tests: &[Test { name: "service", ignored: false, on: &["7.3"] }],
        rest: false,
        check: false,
        last: "",
    },
    Rig {
        name: "the full kernel",
        flavour: Flavour::Full,
        smp: 2,
        packages: &["diod"],
        modules: &["9p", "9pnet_fd", "nfsv3"],
        tests: &[Test { name: "kinds_full", ignored: false, on: &["6.1", "6.12"] }],
        rest: false,
        check: true,
        last: "",
    },
];

impl Rig {
    /// What runs with the kernel `series`: test programs, and whether the ignored tests of each are meant.
    pub fn tests<'a>(&self, series: &str, built: &'a [Program]) -> Vec<(&'a Program, bool)> {
        let named = self.tests.iter().filter(|test| test.on.is_empty() || test.on.contains(&series));
        let named = named.filter_map(|test| {
            let program = built.iter().find(|program| program.name == test.name);
            Some((program?, test.ignored))
        });
        let rest = built.iter().filter(|program| self.rest && !is_named(&program.name));
        named.chain(rest.map(|program| (program, false))).collect()
    }
}

/// How many tests are for the kernel `series` and not for all: the more, the longer it takes.
pub fn own_tests(series: &str) -> usize {
    RIGS.iter().flat_map(|rig| rig.tests).filter(|test| test.on.contains(&series)).count()
}

fn is_named(program: &str) -> bool {
    RIGS.iter().flat_map(|rig| rig.tests).any(|test| test.name == program)
}

/// Names in the table that are no test program.
pub fn unknown(built: &[Program]) -> Vec<&'static str> {
    let names = RIGS.iter().flat_map(|rig| rig.tests).map(|test| test.name);
    names.filter(|name| built.iter().all(|program| program.name != *name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(rig: &str, series: &str) -> Vec<(String, bool)> {
        let built = [
            "bench",
            "budget",
            "churn",
            "daemon",
            "hostile",
            "interrupted",
            "kinds_full",
            "lockdown",
            "memory",
            "modules",
            "programs",
            "prometheus",
            "service",
            "top",
            "who",
            "zerocopy",
        ];
        let built = built.map(|name| Program { name: name.into(), path: name.into() });
        assert!(unknown(&built).is_empty());
        let rig = RIGS.iter().find(|other| other.name == rig).unwrap();
        rig.tests(series, &built)
            .into_iter()
            .map(|(program, ignored)| (program.name.clone(), ignored))
            .collect()
    }

    #[test]
    fn a_test_runs_where_the_table_says() {
        let run = |name: &str, ignored| (name.to_owned(), ignored);
        assert_eq!(
            runs("two processors", "7.3"),
            [
                run("who", false),
                run("budget", false),
                run("bench", false),
                run("daemon", false),
                run("top", false)
            ]
        );
        assert_eq!(
            runs("two processors", "6.1"),
            [run("zerocopy", false), run("daemon", false), run("top", false)]
        );
        assert_eq!(runs("one processor", "7.3"), [run("lockdown", true)]);
        assert_eq!(runs("one processor", "5.10"), [run("hostile", true), run("lockdown", true)]);
        assert_eq!(runs("four processors", "6.12"), [run("hostile", false)]);
        assert_eq!(runs("the full kernel", "/boot/vmlinuz"), []);
    }

    #[test]
    fn a_name_without_a_program_is_told() {
        assert_eq!(
            unknown(&[Program { name: "hostile".into(), path: "x".into() }]),
            [
                "who",
                "churn",
                "memory",
                "interrupted",
                "modules",
                "budget",
                "bench",
                "zerocopy",
                "lockdown",
                "programs",
                "prometheus",
                "service",
                "kinds_full"
            ]
        );
    }
}
