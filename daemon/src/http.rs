//! The HTTP server: metrics, the totals as JSON and health, nothing else. The only module that knows the HTTP stack.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, HeaderName, StatusCode,
        header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::{Html, IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::{
    listen::{Listener, Stream},
    metrics,
};

mod accept;
mod page;

pub use accept::Form;
use page::Pages;

/// What a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; one more takes the place of the oldest.
    pub connections: usize,
    /// How long a client may take to send the head of a request, the wait for it included.
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
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let router = router(Pages::of(source));
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
                let (router, ended) = (router.clone(), ended.clone());
                oldest_first.push_back(match stream {
                    Stream::Tcp(stream) => connections.spawn(connection(stream, router, limits, ended)),
                    Stream::Unix(stream) => connections.spawn(connection(stream, router, limits, ended)),
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

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    limits: Limits,
    mut ended: watch::Receiver<()>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
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

fn router<S: Source>(pages: Arc<Pages<S>>) -> Router {
    Router::new()
        .route("/", get(landing))
        .route("/metrics", get(scrape::<S>))
        .route("/v1/snapshot", get(snapshot::<S>))
        .route("/-/healthy", get("iotrace is healthy.\n"))
        .route("/-/ready", get(ready::<S>))
        .fallback((StatusCode::NOT_FOUND, "Not found; see / for what there is.\n"))
        .with_state(pages)
}

async fn landing() -> Html<&'static str> {
    Html(concat!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>iotrace</title></head>\n<body>\n",
        "<h1>iotrace ",
        env!("CARGO_PKG_VERSION"),
        "</h1>\n<p>What vectored I/O and the kernel's iov_iter layer really cost.</p>\n<ul>\n",
        "<li><a href=\"/metrics\">Metrics</a> for Prometheus</li>\n",
        "<li><a href=\"/v1/snapshot\">Totals since the start</a> as JSON</li>\n",
        "<li><a href=\"/-/healthy\">Health</a></li>\n",
        "<li><a href=\"/-/ready\">Readiness</a></li>\n",
        "</ul>\n</body>\n</html>\n",
    ))
}

async fn scrape<S: Source>(State(pages): State<Arc<Pages<S>>>, headers: HeaderMap) -> Response {
    answer(&pages, accept::form(&list(&headers, &ACCEPT)), &headers)
}

async fn snapshot<S: Source>(State(pages): State<Arc<Pages<S>>>, headers: HeaderMap) -> Response {
    answer(&pages, Form::Json, &headers)
}

async fn ready<S: Source>(State(pages): State<Arc<Pages<S>>>) -> Response {
    match pages.source.ready() {
        Ok(()) => "iotrace is ready.\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("Not ready: {reason}\n")).into_response(),
    }
}

fn answer<S: Source>(pages: &Arc<Pages<S>>, form: Form, headers: &HeaderMap) -> Response {
    let gzip = accept::gzip(&list(headers, &ACCEPT_ENCODING));
    let media = match form {
        Form::Text => metrics::CONTENT_TYPE,
        Form::OpenMetrics => metrics::OPEN_CONTENT_TYPE,
        Form::Json => "application/json",
    };
    let about = [(CONTENT_TYPE, media), (VARY, "accept, accept-encoding")];
    match pages.body(form, gzip) {
        Ok(body) if gzip => (about, [(CONTENT_ENCODING, "gzip")], body).into_response(),
        Ok(body) => (about, body).into_response(),
        Err(reason) => (StatusCode::INTERNAL_SERVER_ERROR, reason + "\n").into_response(),
    }
}

/// All values of a header that is a list; those that are no text ask for nothing.
fn list(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}
