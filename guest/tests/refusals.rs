//! Where iotrace cannot work it says why and what to do, in one line, and ends.

use std::{os::unix::process::CommandExt as _, process::Command, time::Duration};

use iotrace_guest::{
    in_guest,
    kernel::{Hidden, Setting},
    process::{Ended, iotrace, run},
};

const LIMIT: Duration = Duration::from_secs(30);

/// The three commands. `check` also prints its report.
fn commands() -> [Command; 3] {
    [iotrace(&["daemon", "--listen", "127.0.0.1:19474"]), iotrace(&["top", "-d", "1"]), iotrace(&["check"])]
}

/// All three refuse, in a line that has one of each group of words.
fn refused(commands: [Command; 3], words: &[&[&str]]) {
    for mut command in commands {
        let ended = run(&mut command, LIMIT);
        println!("{command:?}: {} {}", ended.code, ended.stderr.trim_end());
        says(&ended, words);
        assert!(ended.took < LIMIT / 2, "{command:?} took {:?}", ended.took);
    }
}

fn says(ended: &Ended, words: &[&[&str]]) {
    assert_ne!(ended.code, 0, "{ended:?}");
    let line = ended.line();
    let mut parts: Vec<&str> = line.split(": ").collect();
    parts.sort_unstable();
    assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "it says something twice: {line}");
    for group in words {
        assert!(group.iter().any(|word| line.contains(word)), "none of {group:?} in: {line}");
    }
}

#[test]
fn without_root() {
    let _alone = in_guest();
    let commands = commands().map(|mut command| {
        command.uid(65_534).gid(65_534);
        command
    });
    refused(commands, &[&["root", "CAP_"]]);
}

#[test]
fn with_hidden_addresses() {
    let _alone = in_guest();
    let _restricted = Setting::set("/proc/sys/kernel/kptr_restrict", "2");
    refused(commands(), &[&["/proc/kallsyms"], &["kernel.kptr_restrict"]]);
}

#[test]
fn with_kprobes_switched_off() {
    let _alone = in_guest();
    let _off = Setting::set("/sys/kernel/debug/kprobes/enabled", "0");
    refused(commands(), &[&["/sys/kernel/debug/kprobes/enabled"], &["write 1"]]);
}

#[test]
fn without_types() {
    let _alone = in_guest();
    let _hidden = Hidden::folder("/sys/kernel/btf");
    refused(commands(), &[&["/sys/kernel/btf/vmlinux"], &["CONFIG_DEBUG_INFO_BTF"]]);
}

#[test]
fn without_text() {
    let _alone = in_guest();
    let _hidden = Hidden::file("/proc/kcore", "/dev/null");
    refused(commands(), &[&["/proc/kcore"], &["CONFIG_PROC_KCORE", "CAP_SYS_RAWIO", "root"]]);
}

#[test]
fn without_symbols() {
    let _alone = in_guest();
    let _hidden = Hidden::file("/proc/kallsyms", "/dev/null");
    refused(commands(), &[&["/proc/kallsyms"], &["CONFIG_KALLSYMS", "root"]]);
}

#[test]
fn with_words_it_does_not_know() {
    let _alone = in_guest();
    for (arguments, word) in [
        (&["top", "-d", "0"][..], "'0'"),
        (&["top", "-d", "nan"], "'nan'"),
        (&["top", "-d", "-3"], "-3"),
        (&["top", "-o", "yaml"], "yaml"),
        (&["daemon", "--listen", "nonsense"], "nonsense"),
        (&["daemon", "--listen", "127.0.0.1:99999"], "99999"),
        (&["frobnicate"], "frobnicate"),
        (&["check", "--frobnicate"], "--frobnicate"),
    ] {
        let ended = run(&mut iotrace(arguments), LIMIT);
        says(&ended, &[&[word]]);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}");
    }
}

#[test]
fn on_an_address_that_is_not_ours() {
    let _alone = in_guest();
    let ended = run(&mut iotrace(&["daemon", "--listen", "192.0.2.1:9469"]), LIMIT);
    says(&ended, &[&["192.0.2.1:9469"]]);
}
