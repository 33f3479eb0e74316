//! The HTTP server: metrics, the totals as JSON and health, nothing else, to those whom the web configuration lets in.
//! The only module that knows the HTTP stack and TLS.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::listen::{Listener, Stream};

mod accept;
mod page;
mod routes;
mod web;

pub use accept::Form;
use page::Pages;
pub use web::Web;

/// What a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; one more takes the place of the oldest.
    pub connections: usize,
    /// How long a client may take to agree on TLS, and how long to send the head of a request, the wait for it
    /// included.
    pub head: Duration,
    /// How long a connection may live. Whoever takes its answer too slowly goes then, too.
    pub age: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 256, head: Duration::from_secs(30), age: Duration::from_secs(300) }
    }
}

/// Bytes of the head of a request, and of everything else that is buffered for a connection.
const BUFFER: usize = 16 << 10;
/// Headers of a request.
const HEADERS: usize = 64;
/// Requests at once on a connection of HTTP/2.
const STREAMS: u32 = 8;
/// Bytes of bodies, which nobody asked for, that a connection of HTTP/2 may send ahead; less is not possible.
const AHEAD: u32 = 65_535;
/// How long a request in progress may take when its connection ends.
const GRACE: Duration = Duration::from_secs(1);
/// The wait after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// What is served.
pub trait Source: Send + Sync + 'static {
    /// All totals at one instant.
    type Reading: Send + 'static;

    /// Reads all totals.
    ///
    /// # Errors
    /// Why there are none, in one line.
    fn read(&self) -> Result<Self::Reading, String>;

    /// Writes them in this form.
    ///
    /// # Errors
    /// Why that is not possible, in one line.
    fn encode(&self, reading: &Self::Reading, form: Form) -> Result<Vec<u8>, String>;

    /// Whether the numbers are worth scraping.
    ///
    /// # Errors
    /// Why not yet, in one line.
    fn ready(&self) -> Result<(), String>;
}

/// Serves until `shutdown` is done, and then for at most a second more.
pub async fn serve(
    listeners: Vec<Listener>,
    source: impl Source,
    web: Web,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let web = Arc::new(web);
    let router = routes::router(Pages::of(source), Arc::clone(&web));
    let (end, ended) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut oldest_first = VecDeque::<AbortHandle>::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = poll_fn(|context| accept(&listeners, context)) => accepted,
            Some(_) = connections.join_next() => {
                oldest_first.retain(|connection| !connection.is_finished());
                continue;
            }
        };
        match accepted {
            Ok(stream) => {
                // An answer is a matter of milliseconds: the oldest is one that idles, or sends or reads slowly. So
                // that nobody keeps others out by holding connections open.
                while oldest_first.len() >= limits.connections {
                    oldest_first.pop_front().inspect(AbortHandle::abort);
                }
                let (router, web, ended) = (router.clone(), Arc::clone(&web), ended.clone());
                oldest_first.push_back(match stream {
                    Stream::Tcp(stream) => connections.spawn(greet(stream, web, router, limits, ended)),
                    Stream::Unix(stream) => connections.spawn(greet(stream, web, router, limits, ended)),
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                sleep(PAUSE).await;
            }
        }
    }
    drop((listeners, ended, end));
    while connections.join_next().await.is_some() {}
}

/// The next connection of any of them.
fn accept(listeners: &[Listener], context: &mut Context<'_>) -> Poll<io::Result<Stream>> {
    let ready = listeners.iter().map(|listener| listener.poll_accept(context)).find(Poll::is_ready);
    ready.unwrap_or(Poll::Pending)
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Agrees on TLS if that is spoken, then serves.
async fn greet(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    web: Arc<Web>,
    router: Router,
    limits: Limits,
    mut ended: watch::Receiver<()>,
) {
    let Some(acceptor) = web.rules().tls.clone() else {
        return connection(stream, false, router, limits, ended).await;
    };
    let handshake = tokio::select! {
        handshake = timeout(limits.head, acceptor.accept(stream)) => handshake,
        _ = ended.changed() => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let http2 = stream.get_ref().1.alpn_protocol() == Some(web::HTTP2);
            connection(stream, http2, router, limits, ended).await;
        }
        Ok(Err(error)) => log::debug!("connection: TLS: {error}"),
        Err(_) => log::debug!("connection: TLS took too long"),
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    http2: bool,
    router: Router,
    limits: Limits,
    mut ended: watch::Receiver<()>,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(BUFFER as u32)
        .max_send_buf_size(BUFFER)
        .initial_stream_window_size(BUFFER as u32)
        .initial_connection_window_size(AHEAD)
        // Whoever does not answer this is gone; whoever does goes with `age`.
        .keep_alive_interval(limits.head)
        .keep_alive_timeout(limits.head);
    let builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = async {
            tokio::select! {
                _ = ended.changed() => {}
                () = sleep(limits.age) => {}
            }
        } => {
            connection.as_mut().graceful_shutdown();
            match timeout(GRACE, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        log::debug!("connection: {error}");
    }
}
