//! Where the daemon serves: TCP, sockets in the file system, and sockets that systemd passes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    net::{TcpStream, UdpSocket},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    process::Command,
    time::Duration,
};

use iotrace::{
    http::{Limits, Web, serve},
    listen::{Address, Listener},
};

mod fixed;

use fixed::{Fixed, TEXT};

fn within<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), work).await.unwrap() })
}

/// A path of this test alone, with nothing there.
fn path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("iotrace-{}-{name}", std::process::id()));
    let _not_there = fs::remove_file(&path);
    path
}

fn ask(mut stream: impl std::io::Read + std::io::Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_address_is_read_as_it_is_written() {
    for text in ["127.0.0.1:9469", "[::]:0", "unix:/run/iotrace/http.sock"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    for text in ["", "localhost:9469", ":9469", "unix:", "unix:a", "unix", "/run/x", "127.0.0.1:99999"] {
        assert!(text.parse::<Address>().is_err(), "{text}");
    }
}

#[test]
fn all_listeners_are_served() {
    let file = path("served");
    within(async {
        let addresses = ["127.0.0.1:0".to_owned(), format!("unix:{}", file.display())];
        let listeners =
            addresses.iter().map(|it| Listener::bind(&it.parse().unwrap()).unwrap()).collect::<Vec<_>>();
        let Address::Tcp(tcp) = listeners[0].address().unwrap() else { panic!("not TCP") };
        assert_eq!(listeners[1].address().unwrap(), Address::Unix(file.clone()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let clients = tokio::task::spawn_blocking({
            let file = file.clone();
            move || {
                for _ in 0..3 {
                    assert!(ask(TcpStream::connect(tcp).unwrap()).ends_with(TEXT));
                    assert!(ask(UnixStream::connect(&file).unwrap()).ends_with(TEXT));
                }
                drop(stop);
            }
        });
        serve(listeners, Fixed, Web::default(), Limits::default(), async { drop(stopped.await) }).await;
        clients.await.unwrap();
    });
    assert!(!file.exists(), "the socket's file is left");
}

#[test]
fn only_a_socket_that_nobody_listens_on_is_replaced() {
    let bind = |path: &PathBuf| within(async { Listener::bind(&Address::Unix(path.clone())).map(drop) });
    let left = path("left");
    drop(UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    bind(&left).unwrap();
    let taken = path("taken");
    let owner = UnixListener::bind(&taken).unwrap();
    assert_eq!(bind(&taken).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(owner);
    fs::remove_file(&taken).unwrap();
    let file = path("file");
    fs::write(&file, "content").unwrap();
    assert_eq!(bind(&file).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    fs::remove_file(&file).unwrap();
}

#[test]
fn only_what_listens_for_streams_is_a_listener() {
    let is = |socket: OwnedFd| within(async { Listener::of(socket).map(drop) });
    is(std::net::TcpListener::bind("127.0.0.1:0").unwrap().into()).unwrap();
    is(std::net::TcpListener::bind("[::1]:0").unwrap().into()).unwrap();
    let pair = UnixStream::pair().unwrap();
    for strange in [
        UdpSocket::bind("127.0.0.1:0").unwrap().into(),
        pair.0.into(),
        fs::File::open("/dev/null").unwrap().into(),
    ] {
        assert!(is(strange).is_err());
    }
}

#[test]
fn what_systemd_passes_has_to_be_a_socket() {
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" daemon 3</dev/null";
    let output = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_iotrace")]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("descriptor 3"), "{text}");
}
