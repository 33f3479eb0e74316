//! The HTTP server over a loopback socket, as clients of every sort see it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use iotrace::{
    http::{Form, Limits, Source, Web, serve},
    listen::Listener,
};
use proptest::prelude::*;

#[derive(Clone, Default)]
struct Fixed {
    ready: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
    reads: Arc<AtomicUsize>,
}

impl Source for Fixed {
    type Reading = usize;

    fn read(&self) -> Result<usize, String> {
        if self.broken.load(Relaxed) {
            return Err("no totals".into());
        }
        // As long as others need to come, too.
        thread::sleep(Duration::from_millis(20));
        Ok(self.reads.fetch_add(1, Relaxed) + 1)
    }

    fn encode(&self, reading: &usize, form: Form) -> Result<Vec<u8>, String> {
        Ok(match form {
            Form::Text => format!("reads {reading}\n"),
            Form::OpenMetrics => format!("reads {reading}\n# EOF\n"),
            Form::Json => format!("{{\"reads\":{reading}}}\n"),
        }
        .into_bytes())
    }

    fn ready(&self) -> Result<(), String> {
        if self.ready.load(Relaxed) { Ok(()) } else { Err("attaching, 3 of 9 sites".into()) }
    }
}

struct Server {
    address: SocketAddr,
    source: Fixed,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Server {
        Server::start_with(Limits::default())
    }

    fn start_with(limits: Limits) -> Server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let source = Fixed::default();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = source.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = Listener::of(listener.into()).unwrap();
                serve(vec![listener], served, Web::default(), limits, async { drop(stopped.await) }).await;
            });
        });
        Server { address, source, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// Sends this, and gives everything that comes back until the server closes.
    fn bytes(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may refuse before it has read everything.
        let _refused = stream.write_all(request);
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        answer
    }

    fn raw(&self, request: &[u8]) -> String {
        String::from_utf8(self.bytes(request)).unwrap()
    }

    fn ask_with(&self, path: &str, headers: &str) -> (u16, String, String) {
        split(
            &self.raw(
                format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n").as_bytes(),
            ),
        )
    }

    fn ask(&self, method: &str, path: &str) -> (u16, String, String) {
        split(
            &self.raw(format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()),
        )
    }

    /// Stops it; how long that took.
    fn stop(&mut self) -> Duration {
        let started = Instant::now();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        started.elapsed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn split(answer: &str) -> (u16, String, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn metrics_carry_their_content_type() {
    let server = Server::start();
    let (status, head, body) = server.ask("GET", "/metrics");
    assert_eq!((status, body.as_str()), (200, "reads 1\n"));
    assert!(head.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
}

#[test]
fn head_is_get_without_a_body() {
    let server = Server::start();
    let (status, head, body) = server.ask("HEAD", "/metrics");
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("content-length: 8"), "{head}");
}

#[test]
fn the_root_leads_on_and_nothing_else_is_there() {
    let server = Server::start();
    let (status, head, body) = server.ask("GET", "/");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/html"), "{head}");
    for path in ["/metrics", "/v1/snapshot", "/-/healthy", "/-/ready"] {
        assert!(body.contains(&format!("href=\"{path}\"")), "{path}: {body}");
    }
    assert!(body.contains(env!("CARGO_PKG_VERSION")), "{body}");
    for path in ["/metrics/", "/metric", "/-/", "/../etc/passwd", "/%00", "//metrics"] {
        assert_eq!(server.ask("GET", path).0, 404, "{path}");
    }
    assert_eq!(server.ask("POST", "/metrics").0, 405);
}

#[test]
fn health_is_at_once_and_readiness_has_a_reason() {
    let server = Server::start();
    assert_eq!(server.ask("GET", "/-/healthy").0, 200);
    let (status, _, body) = server.ask("GET", "/-/ready");
    assert_eq!((status, body.as_str()), (503, "Not ready: attaching, 3 of 9 sites\n"));
    server.source.ready.store(true, Relaxed);
    assert_eq!(server.ask("GET", "/-/ready").0, 200);
}

#[test]
fn a_failure_is_told_and_passes() {
    let server = Server::start();
    server.source.broken.store(true, Relaxed);
    let (status, _, body) = server.ask("GET", "/metrics");
    assert_eq!((status, body.as_str()), (500, "no totals\n"));
    server.source.broken.store(false, Relaxed);
    assert_eq!(server.ask("GET", "/metrics").0, 200);
}

#[test]
fn scrapes_at_once_are_one_reading() {
    let server = Server::start();
    let started = Instant::now();
    let bodies: Vec<String> = thread::scope(|scope| {
        let scrape = || scope.spawn(|| server.ask("GET", "/metrics"));
        let scrapes: Vec<_> = (0..40).map(|_| scrape()).collect();
        scrapes.into_iter().map(|scrape| scrape.join().unwrap().2).collect()
    });
    let (took, reads) = (started.elapsed(), server.source.reads.load(Relaxed));
    assert!(reads <= 1 + took.as_secs() as usize, "{reads} reads in {took:?}");
    if reads == 1 {
        assert!(bodies.iter().all(|body| body == "reads 1\n"), "{bodies:?}");
    }
}

#[test]
fn a_reading_is_a_second_old_at_most() {
    let server = Server::start();
    let reads = || server.source.reads.load(Relaxed);
    for second in 1..=3 {
        assert_eq!(server.ask("GET", "/metrics").2, format!("reads {second}\n"));
        assert_eq!(reads(), second);
        thread::sleep(Duration::from_millis(1050));
    }
}

#[test]
fn all_forms_are_of_one_reading() {
    let server = Server::start();
    let open = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    // The first may be too old for the last on a machine that is very busy.
    let (reading, head, body) = loop {
        let (_, _, first) = server.ask("GET", "/metrics");
        let (_, head, body) = server.ask_with("/metrics", open);
        if body == format!("{first}# EOF\n") {
            break (first, head, body);
        }
    };
    assert!(
        head.contains("\r\ncontent-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{head}"
    );
    assert!(head.contains("\r\nvary: accept, accept-encoding\r\n"), "{head}");
    assert!(body.starts_with(&reading), "{body}");
    let (status, head, body) = server.ask_with("/v1/snapshot", open);
    assert_eq!(status, 200);
    assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
    assert!(body.starts_with("{\"reads\":"), "{body}");
}

#[test]
fn gzip_is_for_those_who_ask() {
    let server = Server::start();
    let (_, head, _) = server.ask_with("/metrics", "Accept-Encoding: gzip;q=0\r\n");
    assert!(!head.contains("content-encoding"), "{head}");
    let answer = server
        .bytes(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_ascii_lowercase();
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer[end..]).read_to_string(&mut text).unwrap();
    assert!(text.starts_with("reads "), "{text}");
}

#[test]
fn a_connection_serves_more_than_once() {
    let server = Server::start();
    let mut stream = server.connect();
    for _ in 0..3 {
        stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"iotrace is healthy.\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    }
}

#[test]
fn garbage_is_refused_and_the_server_lives() {
    let server = Server::start();
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let answer = server.raw(garbage);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{garbage:?}: {answer}");
    }
    // More headers, and a longer path, than anyone needs.
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
    assert!(server.raw(many.as_bytes()).starts_with("HTTP/1.1 431 "));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    assert!(server.raw(long.as_bytes()).starts_with("HTTP/1.1 4"));
    let endless = [b"GET / HTTP/1.1\r\nHost: x\r\nA: ".as_slice(), &[b'a'; 1 << 20], b"\r\n\r\n"].concat();
    let answer = server.raw(&endless);
    assert!(!answer.contains("200 OK"), "{answer}");
    assert_eq!(server.ask("GET", "/metrics").0, 200);
}

#[test]
fn silent_and_idle_clients_hinder_neither_others_nor_the_end() {
    let mut server = Server::start();
    let silent: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    let mut half = server.connect();
    half.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
    let mut idle = server.connect();
    idle.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut byte = [0];
    idle.read_exact(&mut byte).unwrap();
    assert_eq!(server.ask("GET", "/metrics").0, 200);
    let took = server.stop();
    assert!(took < Duration::from_secs(3), "{took:?}");
    drop((silent, half, idle));
}

#[test]
fn connections_that_are_held_open_keep_nobody_out() {
    let server = Server::start_with(Limits { connections: 16, ..Limits::default() });
    let held: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = server.connect();
            if number % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
            }
            stream
        })
        .collect();
    for _ in 0..20 {
        let started = Instant::now();
        assert_eq!(server.ask("GET", "/metrics").0, 200);
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    // The oldest is gone.
    let mut oldest = &held[0];
    assert!(matches!(oldest.read(&mut [0; 1]), Ok(0) | Err(_)));
}

#[test]
fn a_head_that_comes_byte_by_byte_has_an_end() {
    let server = Server::start_with(Limits { head: Duration::from_millis(300), ..Limits::default() });
    let mut slow = server.connect();
    let started = Instant::now();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nA: ").unwrap();
    while slow.write_all(b"a").is_ok() {
        assert!(started.elapsed() < Duration::from_secs(5), "still read after {:?}", started.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.ask("GET", "/metrics").0, 200);
}

#[test]
fn a_connection_has_an_end_of_its_own() {
    let server = Server::start_with(Limits { age: Duration::from_millis(300), ..Limits::default() });
    let started = Instant::now();
    // It asks again and again, and does not read.
    let mut busy = server.connect();
    busy.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    loop {
        match busy.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
            Ok(()) => {}
        }
        assert!(started.elapsed() < Duration::from_secs(10), "still there after {:?}", started.elapsed());
    }
    assert_eq!(server.ask("GET", "/metrics").0, 200);
}

#[test]
fn a_flood_is_answered_with_few_readings() {
    let server = Server::start();
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..100).for_each(|_| assert_eq!(server.ask("GET", "/metrics").0, 200)));
        }
    });
    let (took, reads) = (started.elapsed(), server.source.reads.load(Relaxed));
    assert!(reads <= 1 + took.as_secs() as usize, "{reads} reads in {took:?}");
}

#[test]
fn whatever_is_sent_the_server_lives() {
    let server = Server::start_with(Limits { head: Duration::from_millis(50), ..Limits::default() });
    let head = prop_oneof![
        Just(String::new()),
        Just("GET /metrics HTTP/1.1\r\n".into()),
        "[A-Z]{1,9} [ -~]{0,40} HTTP/1.[01]\r\n"
    ];
    let header = prop_oneof![
        "[ -~]{0,30}\r\n",
        "(Accept|Accept-Encoding|Content-Length|Transfer-Encoding|Connection|Expect|Upgrade): [ -~]{0,20}\r\n"
    ];
    let rest = prop::collection::vec(any::<u8>(), 0..200);
    let request = (head, prop::collection::vec(header, 0..5), any::<bool>(), rest);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    runner
        .run(&request, |(head, headers, ends, rest)| {
            let end = if ends { "\r\n" } else { "" };
            let request = [head.as_bytes(), headers.concat().as_bytes(), end.as_bytes(), &rest].concat();
            let answer = server.bytes(&request);
            prop_assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{answer:?}");
            prop_assert_eq!(server.ask("GET", "/-/healthy").0, 200);
            Ok(())
        })
        .unwrap();
}
