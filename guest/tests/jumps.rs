//! Kprobes that the kernel makes jumps of, as `iotrace check` tells and the kernel itself.

use std::{fs, time::Duration};

use iotrace_guest::{
    in_guest, kernel,
    process::{iotrace, run},
};
use serde_json::Value;

#[test]
fn most_calls_need_no_trap() {
    let _alone = in_guest();
    let ended = run(&mut iotrace(&["check", "-o", "json"]), Duration::from_secs(120));
    let report: Value = serde_json::from_str(&ended.stdout).expect("a report");
    let probes: Vec<&Value> = report["probes"].as_array().into_iter().flatten().collect();
    let of = |mechanism: &str| probes.iter().filter(|probe| probe["mechanism"] == mechanism).count();
    let kprobes: Vec<&Value> =
        probes.iter().flat_map(|probe| probe["kprobes"].as_array()).flatten().collect();
    let jumps = kprobes.iter().filter(|kprobe| kprobe["optimized"] == true).count();
    println!(
        "{} sites by jumps, {} by traps; {jumps} of {} kprobes are jumps",
        of("jump"),
        of("trap"),
        kprobes.len()
    );
    // The modules that are loaded have sites, too, and no jumps.
    assert!(of("jump") >= 60 && of("jump") > of("trap"), "{:?}", [of("jump"), of("trap")]);
    assert!(jumps * 5 > kprobes.len() * 2, "{jumps} of {}", kprobes.len());

    // An import whose arguments the system call tells takes one, behind the call (≥ 5.15).
    let import = |function: &str| {
        let site = |probe: &&&Value| {
            probe["target"] == "import_iovec"
                && probe["site"].as_str().is_some_and(|site| site.starts_with(function))
        };
        let found = probes.iter().find(site).expect("a site");
        (
            found["mechanism"].as_str().expect("a word").to_owned(),
            found["kprobes"].as_array().expect("kprobes").clone(),
        )
    };
    for function in ["vfs_readv+", "vfs_writev+"] {
        let (mechanism, kprobes) = import(function);
        if kernel::version() >= (5, 15) {
            assert_eq!((mechanism.as_str(), kprobes.len()), ("jump", 1), "{function}");
            assert_eq!(kprobes[0]["optimized"], true, "{function}");
        }
    }
    // Nothing stays behind.
    let list = fs::read_to_string("/sys/kernel/debug/kprobes/list").expect("debugfs");
    assert_eq!(list, "");
}
