//! TLS, certificates of clients, HTTP/2.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use iotrace::http::Limits;
use tempfile::TempDir;

use super::{
    fixed::TEXT,
    server::{Server, Stream, TLS, ask, authority, client, issue, status},
};

/// The preface of HTTP/2, and settings that set nothing.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A connection of HTTP/2, the preface sent.
pub fn http2(server: &Server) -> Stream {
    let mut client = client(server.folder.path(), None, false);
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut stream = server.tls(client);
    stream.write_all(PREFACE).unwrap();
    stream
}

/// A frame: its type, flags and stream, and what is in it.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The next frame.
fn next(stream: &mut Stream) -> std::io::Result<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload)?;
    Ok((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

#[test]
fn tls_is_spoken_and_renewed() {
    let server = Server::tls_of("", Limits::default());
    let folder = server.folder.path();
    for old in [false, true] {
        assert_eq!(status(&server.ask_tls(client(folder, None, old), "/metrics").unwrap()), "200");
    }
    let before = client(folder, None, false);
    issue(folder, &authority(), "localhost");
    server.assert_serves();
    assert!(server.ask_tls(before, "/metrics").is_err(), "the old authority vouches no more");
    // A certificate without its key is not in force.
    let key = fs::read(folder.join("localhost.key")).unwrap();
    let trusted = fs::read(folder.join("ca.pem")).unwrap();
    issue(folder, &authority(), "localhost");
    fs::write(folder.join("localhost.key"), key).unwrap();
    fs::write(folder.join("ca.pem"), trusted).unwrap();
    server.assert_serves();
    // Without TLS there is no answer.
    assert!(!ask(server.tcp(), "/metrics", None).unwrap_or_default().contains(TEXT));
}

#[test]
fn versions_are_kept_to() {
    let server = Server::tls_of("  min_version: TLS13\n", Limits::default());
    let get = |old| server.ask_tls(client(server.folder.path(), None, old), "/metrics");
    assert!(get(true).is_err());
    assert!(get(false).is_ok());
}

#[test]
fn clients_are_verified() {
    let folder = TempDir::new().unwrap();
    let (ours, other) = (authority(), authority());
    issue(folder.path(), &other, "stranger");
    for name in ["localhost", "prometheus", "curious"] {
        issue(folder.path(), &ours, name);
    }
    let config = format!(
        "{TLS}  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n  \
         client_allowed_sans: [prometheus]\n"
    );
    let server = Server::closed(folder, &config);
    for old in [false, true] {
        let get = |name| server.ask_tls(client(server.folder.path(), name, old), "/metrics");
        assert_eq!(status(&get(Some("prometheus")).unwrap()), "200");
        for name in [None, Some("curious"), Some("stranger")] {
            assert!(get(name).is_err(), "{name:?}");
        }
    }
}

#[test]
fn a_certificate_that_may_be_left_out_is_verified_where_it_is_not() {
    let folder = TempDir::new().unwrap();
    let (ours, other) = (authority(), authority());
    issue(folder.path(), &other, "stranger");
    issue(folder.path(), &ours, "localhost");
    let config = format!("{TLS}  client_ca_file: ca.pem\n  client_auth_type: VerifyClientCertIfGiven\n");
    let server = Server::closed(folder, &config);
    let get = |name| server.ask_tls(client(server.folder.path(), name, false), "/metrics");
    assert!(get(None).is_ok() && get(Some("localhost")).is_ok());
    assert!(get(Some("stranger")).is_err());
}

#[test]
fn http2_is_agreed_on() {
    for (more, wanted) in [("", &b"h2"[..]), ("http_server_config:\n  http2: false\n", b"http/1.1")] {
        let server = Server::tls_of(more, Limits::default());
        let mut stream = http2(&server);
        let settings = next(&mut stream);
        assert_eq!(stream.conn.alpn_protocol(), Some(wanted));
        assert_eq!(settings.is_ok_and(|(kind, ..)| kind == 4), wanted == b"h2");
    }
}

#[test]
fn http2_serves() {
    let server = Server::tls_of("", Limits::default());
    let mut stream = http2(&server);
    // RFC 7541: `:method: GET`, `:scheme: https`, `:authority: x`, `:path: /metrics`.
    let request = b"\x82\x87\x01\x01x\x04\x08/metrics";
    for number in 0..30 {
        let wanted = 2 * number + 1;
        stream.write_all(&frame(1, 5, wanted, request)).unwrap();
        let (mut status, mut body) = (None, Vec::new());
        while body.len() < TEXT.len() {
            let (kind, on, payload) = next(&mut stream).unwrap();
            match kind {
                0 if on == wanted => body.extend(payload),
                1 if on == wanted => status = payload.first().copied(),
                // Settings that the client has to acknowledge.
                4 if !payload.is_empty() => stream.write_all(&frame(4, 1, 0, b"")).unwrap(),
                _ => {}
            }
        }
        // `:status: 200` in the static table.
        assert_eq!((status, body.as_slice()), (Some(0x88), TEXT.as_bytes()));
    }
}

#[test]
fn the_silent_and_the_many_shut_nobody_out() {
    let limits = Limits { connections: 8, head: Duration::from_secs(3), age: Duration::from_secs(20) };
    let server = Server::tls_of("", limits);
    let silent: Vec<TcpStream> = (0..100).map(|_| server.tcp()).collect();
    server.assert_serves();
    // A head that comes a byte at a time is cut off.
    let mut slow = server.tls(client(server.folder.path(), None, false));
    let started = Instant::now();
    while slow.write_all(b"G").and_then(|()| slow.flush()).is_ok() {
        assert!(started.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(50));
    }
    server.assert_serves();
    drop(silent);
}

#[test]
fn a_connection_of_http2_has_an_end_of_its_own() {
    let limits = Limits { age: Duration::from_secs(2), ..Limits::default() };
    let server = Server::tls_of("", limits);
    let mut stream = http2(&server);
    // Headers that another frame has to end.
    stream.write_all(&frame(1, 1, 1, b"\x82\x87")).unwrap();
    // An error is the end, or that nothing came for 20 seconds.
    let end = loop {
        match next(&mut stream) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_ne!(end.kind(), ErrorKind::WouldBlock);
    server.assert_serves();
}
