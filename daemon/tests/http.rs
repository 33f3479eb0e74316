//! The HTTP server over a loopback socket, as clients of every sort see it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use iotrace::http::{Source, serve};

#[derive(Clone, Default)]
struct Fixed {
    ready: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
}

impl Source for Fixed {
    fn metrics(&self) -> Result<Vec<u8>, String> {
        if self.broken.load(Relaxed) { Err("no totals".into()) } else { Ok(b"up_or_so 1\n".to_vec()) }
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
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let source = Fixed::default();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = source.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                serve(listener, served, async { drop(stopped.await) }).await;
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
    fn raw(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may refuse before it has read everything.
        let _refused = stream.write_all(request);
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
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
    assert_eq!((status, body.as_str()), (200, "up_or_so 1\n"));
    assert!(head.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
}

#[test]
fn head_is_get_without_a_body() {
    let server = Server::start();
    let (status, head, body) = server.ask("HEAD", "/metrics");
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("content-length: 11"), "{head}");
}

#[test]
fn the_root_leads_on_and_nothing_else_is_there() {
    let server = Server::start();
    let (status, head, body) = server.ask("GET", "/");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(body.contains("href=\"/metrics\"") && body.contains(env!("CARGO_PKG_VERSION")), "{body}");
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
fn scrapes_at_once_are_all_answered() {
    let server = Server::start();
    thread::scope(|scope| {
        let scrape = || scope.spawn(|| server.ask("GET", "/metrics"));
        let scrapes: Vec<_> = (0..20).map(|_| scrape()).collect();
        for scrape in scrapes {
            assert_eq!(scrape.join().unwrap().0, 200);
        }
    });
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
