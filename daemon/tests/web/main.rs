//! The server as a web configuration asks for: passwords, headers, rates, TLS, certificates of clients, HTTP/2.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../fixed/mod.rs"]
mod fixed;
mod hostile;
mod server;
mod tls;

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command, thread};

use iotrace::{http::Web, privileges};
use server::{Server, TLS, authority, client, issue, status};
use tempfile::TempDir;

#[test]
fn passwords_let_in_those_who_know_them_and_health_is_open() {
    let hash = bcrypt::hash("right", 4).unwrap();
    let server = Server::of(&format!(
        "basic_auth_users:\n  alice: {hash}\nhttp_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    ));
    for _ in 0..2 {
        let answer = server.get("/metrics", Some("alice:right"));
        assert!(status(&answer) == "200" && answer.contains("x-frame-options: deny"), "{answer}");
    }
    for login in [None, Some("alice:wrong"), Some("bob:right"), Some("alice:"), Some("alice"), Some(":")] {
        let answer = server.get("/metrics", login).to_ascii_lowercase();
        assert_eq!(status(&answer), "401", "{login:?}");
        assert!(answer.contains("www-authenticate: basic") && answer.contains("x-frame-options: deny"));
        assert!(!answer.contains(fixed::TEXT));
    }
    for path in ["/", "/v1/snapshot", "/nothing", "/-/healthy/../../metrics"] {
        assert_eq!(status(&server.get(path, None)), "401", "what is there is not told: {path}");
    }
    assert_eq!(status(&server.get("/-/healthy", None)), "200");
    assert_eq!(status(&server.get("/-/ready", None)), "200");
}

#[test]
fn health_takes_a_password_unless_asked_for() {
    let folder = TempDir::new().unwrap();
    let hash = bcrypt::hash("right", 4).unwrap();
    let server = Server::closed(folder, &format!("basic_auth_users:\n  alice: {hash}\n"));
    for path in ["/-/healthy", "/-/ready"] {
        assert_eq!(status(&server.get(path, None)), "401");
        assert_eq!(status(&server.get(path, Some("alice:right"))), "200");
    }
}

#[test]
fn a_flood_of_wrong_passwords_leaves_the_known_served() {
    let hash = bcrypt::hash("right", 8).unwrap();
    let server = Server::of(&format!("basic_auth_users:\n  alice: {hash}\n"));
    assert_eq!(status(&server.get("/metrics", Some("alice:right"))), "200");
    thread::scope(|scope| {
        let attacks: Vec<_> = (0..60).map(|_| scope.spawn(|| server.get("/metrics", Some("x:y")))).collect();
        for _ in 0..10 {
            assert_eq!(status(&server.get("/metrics", Some("alice:right"))), "200");
        }
        for attack in attacks {
            assert!(["401", "429"].contains(&status(&attack.join().unwrap())));
        }
    });
}

#[test]
fn users_change_with_the_file_and_what_cannot_be_used_changes_nothing() {
    let hash = |word: &str| format!("basic_auth_users:\n  alice: {}\n", bcrypt::hash(word, 4).unwrap());
    let server = Server::of(&hash("old"));
    let file = server.folder.path().join("web.yml");
    assert_eq!(status(&server.get("/metrics", Some("alice:old"))), "200");
    fs::write(&file, hash("new")).unwrap();
    assert_eq!(status(&server.get("/metrics", Some("alice:old"))), "401");
    assert_eq!(status(&server.get("/metrics", Some("alice:new"))), "200");
    // Empty is what a file is before it is written.
    for unusable in ["basic_auth_users: [broken\n", "", " \n", "\u{0}"] {
        fs::write(&file, unusable).unwrap();
        assert_eq!(status(&server.get("/metrics", Some("alice:new"))), "200", "{unusable:?}");
        assert_eq!(status(&server.get("/metrics", None)), "401", "{unusable:?}");
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(status(&server.get("/metrics", None)), "401");
    // As most tools write files: beside it, then renamed.
    fs::write(server.folder.path().join("new"), "{}").unwrap();
    fs::rename(server.folder.path().join("new"), &file).unwrap();
    assert_eq!(status(&server.get("/metrics", None)), "200");
}

#[test]
fn a_rate_is_kept_to() {
    let server = Server::of("rate_limit:\n  interval: 1h\n  burst: 3\n");
    let found: Vec<String> = (0..5).map(|_| status(&server.get("/metrics", None)).to_owned()).collect();
    assert_eq!(found, ["200", "200", "200", "429", "429"]);
}

#[test]
fn a_key_that_cannot_be_read_again_is_told_and_stays_in_force() {
    let folder = TempDir::new().unwrap();
    issue(folder.path(), &authority(), "localhost");
    let (file, key) = (folder.path().join("web.yml"), folder.path().join("localhost.key"));
    fs::write(&file, TLS).unwrap();
    let web = Web::read(&file, false).unwrap();
    assert_eq!(web.unreadable(), None);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o0)).unwrap();
    // Also root cannot, as the daemon, which gives up its capabilities; those of this thread go, for good.
    let (web, reason) = thread::spawn(move || {
        privileges::drop_all();
        let reason = web.unreadable().unwrap();
        (web, reason)
    })
    .join()
    .unwrap();
    assert_eq!(reason, format!("{}: Permission denied (os error 13)", key.display()));
    assert!(web.is_tls());
    let server = Server::serve(folder, web);
    let get = || server.ask_tls(client(server.folder.path(), None, false), "/metrics");
    assert_eq!(status(&get().unwrap()), "200");
}

#[test]
fn what_cannot_be_used_ends_the_daemon_with_one_line() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("web.yml");
    let said = |text: Option<&[u8]>| {
        text.inspect(|text| fs::write(&file, text).unwrap());
        let output = Command::new(env!("CARGO_BIN_EXE_iotrace"))
            .args(["daemon", "--web.config.file"])
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains(&format!("web configuration {}: ", file.display())), "{text}");
        text
    };
    assert!(said(None).contains("No such file"));
    assert!(said(Some(b"basic_auth_user: 1\n")).contains("line 1: unknown field"));
    assert!(said(Some(b"\xff")).contains("utf-8"));
    assert!(
        said(Some(b"tls_server_config: {cert_file: \"a\\nb\", key_file: c}")).contains(r"a\x0ab: No such")
    );
    assert!(said(Some(TLS.as_bytes())).contains("localhost.crt: No such file"));
    fs::write(folder.path().join("localhost.crt"), "none").unwrap();
    assert!(said(Some(TLS.as_bytes())).contains("no certificate in it"));
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert!(said(None).contains("not a regular file"));
}
