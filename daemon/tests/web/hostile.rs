//! Whatever is sent, and whatever the files hold, the server lives and lets nobody in.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::Shutdown,
};

use iotrace::http::{Limits, Web};
use proptest::{prelude::*, test_runner::TestRunner};
use tempfile::TempDir;

use super::{
    server::{Server, Stream, TLS, authority, client, issue, status},
    tls::{frame, http2},
};

fn cases(number: u32) -> TestRunner {
    TestRunner::new(ProptestConfig::with_cases(number))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..300)
}

#[test]
fn whatever_is_sent_instead_of_tls_the_server_lives() {
    let server = Server::tls_of("", Limits::default());
    // A record and a message that begin as those of a client do.
    let hello = (prop_oneof![Just(22u8), any::<u8>()], 0..5u8, any::<u16>(), 0..25u8, bytes());
    let hello = hello.prop_map(|(kind, minor, length, message, rest)| {
        let length = length.to_be_bytes();
        [&[kind, 3, minor, length[0] % 2, length[1], message, 0, 0][..], &rest].concat()
    });
    let sent = prop_oneof![bytes(), hello];
    cases(100)
        .run(&sent, |sent| {
            let mut stream = server.tcp();
            let _refused = stream.write_all(&sent).and_then(|()| stream.shutdown(Shutdown::Write));
            let mut answer = Vec::new();
            let _reset = stream.read_to_end(&mut answer);
            prop_assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
            server.assert_serves();
            Ok(())
        })
        .unwrap();
}

/// Says that nothing more comes, and waits for the end.
fn end(mut stream: Stream) {
    stream.conn.send_close_notify();
    let _ended = stream.flush();
    let _refused = stream.sock.shutdown(Shutdown::Write);
    let _reset = stream.read_to_end(&mut Vec::new());
}

#[test]
fn whatever_is_sent_within_tls_the_server_lives() {
    let server = Server::tls_of("", Limits::default());
    let request = ("(GET|POST|PRI) [ -~]{0,40} HTTP/[12].[01]\r\n", "[ -~]{0,30}\r\n\r\n", bytes());
    let request =
        request.prop_map(|(head, headers, rest)| [head.as_bytes(), headers.as_bytes(), &rest].concat());
    let sent = prop_oneof![bytes(), request];
    cases(50)
        .run(&sent, |sent| {
            let mut stream = server.tls(client(server.folder.path(), None, false));
            let _refused = stream.write_all(&sent);
            end(stream);
            server.assert_serves();
            Ok(())
        })
        .unwrap();
}

#[test]
fn whatever_frames_are_sent_the_server_lives() {
    let server = Server::tls_of("", Limits::default());
    let headers = b"\x82\x87\x01\x01x\x04\x08/metrics";
    let payload = prop_oneof![Just(headers.to_vec()), bytes()];
    let frames = prop::collection::vec((0..12u8, any::<u8>(), 0..9u32, payload), 0..20);
    cases(100)
        .run(&(frames, bytes()), |(frames, rest)| {
            let mut stream = http2(&server);
            for (kind, flags, on, payload) in frames {
                let _refused = stream.write_all(&frame(kind, flags, on, &payload));
            }
            let _refused = stream.write_all(&rest);
            end(stream);
            server.assert_serves();
            Ok(())
        })
        .unwrap();
}

#[test]
fn whatever_credentials_are_sent_nobody_is_let_in() {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let hash = bcrypt::hash("right", 4).unwrap();
    let server = Server::of(&format!("basic_auth_users:\n  alice: {hash}\n"));
    let encoded = prop_oneof!["(alice|bob)?:?[ -~]{0,80}".prop_map(String::into_bytes), bytes()]
        .prop_map(|it| BASE64_STANDARD.encode(it));
    let credentials = prop_oneof!["[ -~]{0,40}", encoded.prop_map(|it| format!("Basic {it}"))];
    cases(200)
        .run(&credentials, |credentials| {
            prop_assume!(credentials != format!("Basic {}", BASE64_STANDARD.encode("alice:right")));
            let mut stream = server.tcp();
            let head = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
            stream.write_all(format!("{head}Authorization: {credentials}\r\n\r\n").as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            prop_assert_eq!(status(&answer), "401");
            let right = server.get("/metrics", Some("alice:right"));
            prop_assert_eq!(status(&right), "200");
            Ok(())
        })
        .unwrap();
}

#[test]
fn whatever_the_files_hold_they_are_used_or_refused_in_one_line() {
    let folder = TempDir::new().unwrap();
    issue(folder.path(), &authority(), "localhost");
    let config = format!("{TLS}  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n");
    fs::write(folder.path().join("web.yml"), config).unwrap();
    let read = || Web::read(&folder.path().join("web.yml"), false);
    read().unwrap();
    let name = prop::sample::select(vec!["localhost.crt", "localhost.key", "ca.pem"]);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    cases(300)
        .run(&(name, changes, any::<prop::sample::Index>(), any::<bool>()), |(name, changes, end, cut)| {
            let before = fs::read(folder.path().join(name)).unwrap();
            let mut after = before.clone();
            for (place, byte) in changes {
                let place = place.index(after.len());
                after[place] = byte;
            }
            if cut {
                after.truncate(end.index(after.len()));
            }
            fs::write(folder.path().join(name), after).unwrap();
            if let Err(error) = read().map(drop) {
                let text = format!("{error:#}");
                prop_assert!(text.lines().count() == 1 && text.contains(name), "{text}");
            }
            fs::write(folder.path().join(name), before).unwrap();
            Ok(())
        })
        .unwrap();
}
