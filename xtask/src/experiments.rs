//! `cargo xtask experiments`: docs/experiments.md, with what the experiments print on a kernel before 6.4 and on one after it.

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::kernel::Kernel;
use crate::programs;
use crate::qemu::Machine;
use crate::series::Flavour;
use crate::vm::Guest;
use crate::{setup, tools, workspace};

/// Before `import_iovec` made an ubuf of one segment (6.4), and after.
const KERNELS: &[&str] = &["6.1", "6.12"];
/// For boot and one experiment.
const TIMEOUT: Duration = Duration::from_secs(600);

/// An experiment as it is shown.
struct Shown {
    /// The heading.
    title: &'static str,
    /// What is said below it.
    about: &'static str,
    /// What runs in the guest.
    command: &'static str,
    /// Its processors.
    smp: u32,
    /// Whether time is instructions: then a nanosecond is one of them.
    icount: bool,
}

const SHOWN: &[Shown] = &[
    Shown {
        title: "single-segment",
        about: "A nanosecond is one instruction of the guest here, so that the numbers can be repeated anywhere and say nothing \
                of caches. `ns/turn` is without probes, `probed` with them, `probes` the difference.",
        command: "iotrace bench single-segment --count 500",
        smp: 1,
        icount: true,
    },
    Shown {
        title: "tcp-mmap",
        about: "Four emulated processors on a busy machine: times are far above those of hardware, and not even their ratios say much. \
                The zap includes that the other processors drop their translations, which an emulated guest pays dearly.",
        command: "iotrace bench tcp-mmap --size 8000000 --clients 1,8",
        smp: 4,
        icount: false,
    },
];

/// Run the experiments of `iotrace bench` on kernels before and after 6.4, and write docs/experiments.md.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 written, 125 an experiment failed.")]
pub struct Options {
    /// Run on these kernels, instead of 6.1 and 6.12.
    #[arg(long = "kernel", value_name = "SERIES|PATH")]
    kernels: Vec<String>,
}

/// Runs the command.
pub fn command(options: &Options) -> Result<ExitCode> {
    tools::ensure()?;
    setup::guest_tools()?;
    let programs = programs::build()?;
    let names: Vec<String> = KERNELS.iter().map(|&name| name.into()).collect();
    let names = if options.kernels.is_empty() { &names } else { &options.kernels };
    let mut page = String::from(
        "# Experiments\n\nWritten by `cargo xtask experiments`. What each experiment is about, `iotrace bench NAME --help` says; \
         `counted` is `exact` where what the\nprobes saw is what the load did, to the call and to the byte.\n",
    );
    for shown in SHOWN {
        // Writing to a string cannot fail.
        let _infallible = write!(page, "\n## {}\n\n{}\n", shown.title, shown.about);
        for name in names {
            let kernel = Kernel::find(name, Flavour::Cloud)?;
            let guest = Guest {
                script: format!("exec {}", shown.command),
                machine: Machine {
                    smp: shown.smp,
                    mem: "2G".into(),
                    icount: shown.icount,
                    forwards: Vec::new(),
                    append: Vec::new(),
                    timeout: TIMEOUT,
                },
                programs: &programs,
                tests: &[],
                files: &[],
                tree: None,
                modules: &[],
            };
            let mut out = Vec::new();
            let code = guest.run(&kernel, |bytes| out.extend_from_slice(bytes))?;
            let text = String::from_utf8_lossy(&out);
            ensure!(code == 0, "{} on {name} ended with exit code {code}:\n{text}", shown.command);
            let _infallible = write!(page, "\n```text\n# {}\n{}\n```\n", shown.command, text.trim_end());
        }
    }
    let file = workspace::root().join("docs/experiments.md");
    fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}
