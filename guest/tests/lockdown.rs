//! Lockdown cannot be lowered again, so this has a guest of its own: run it with `--ignored`.

use std::{fs, path::Path, process::Command, time::Duration};

use iotrace_guest::{
    in_guest,
    process::{iotrace, run},
};

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

#[test]
#[ignore = "locks the guest's kernel down for good"]
fn confidentiality_is_named() {
    let _alone = in_guest();
    if !Path::new(LOCKDOWN).exists() {
        let mut mount = Command::new("mount");
        mount.args(["-t", "securityfs", "none", "/sys/kernel/security"]);
        assert_eq!(run(&mut mount, Duration::from_secs(10)).code, 0);
    }
    fs::write(LOCKDOWN, "confidentiality").expect("this kernel can be locked down");
    for arguments in [&["daemon", "--listen", "127.0.0.1:19475"][..], &["top", "-d", "1"], &["check"]] {
        let ended = run(&mut iotrace(arguments), Duration::from_secs(30));
        assert_ne!(ended.code, 0, "{ended:?}");
        assert!(ended.line().contains("lockdown"), "{}", ended.line());
    }
}
