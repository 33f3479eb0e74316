//! The HTTP server: metrics and health, nothing else. The only file that knows the HTTP stack.

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::metrics;

/// Connections at once; more wait to be accepted.
const CONNECTIONS: usize = 256;
/// How long a client may take to send the head of a request, the wait for it included.
const HEAD: Duration = Duration::from_secs(30);
/// Bytes of the head of a request, and of everything else that is buffered for a connection.
const BUFFER: usize = 16 << 10;
/// How long a connection may live. Whoever takes its answer too slowly goes then, too.
const AGE: Duration = Duration::from_secs(300);
/// How long a request in progress may take when its connection ends.
const GRACE: Duration = Duration::from_secs(1);
/// The wait after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// What is served.
pub trait Source: Send + Sync + 'static {
    /// All metrics in the text format.
    ///
    /// # Errors
    /// Why there are none, in one line.
    fn metrics(&self) -> Result<Vec<u8>, String>;

    /// Whether the numbers are worth scraping.
    ///
    /// # Errors
    /// Why not yet, in one line.
    fn ready(&self) -> Result<(), String>;
}

/// Serves until `shutdown` is done, and then for at most a second more.
pub async fn serve(listener: TcpListener, source: impl Source, shutdown: impl Future<Output = ()>) {
    let router = router(Arc::new(source));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let (end, ended) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            // Without a place nothing is accepted; the kernel's queue holds the rest.
            accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                listener.accept().await.map(|(stream, _)| (stream, place))
            } => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, place)) => {
                let (router, ended) = (router.clone(), ended.clone());
                connections.spawn(async move {
                    connection(stream, router, ended).await;
                    drop(place);
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                sleep(PAUSE).await;
            }
        }
    }
    drop((listener, ended, end));
    while connections.join_next().await.is_some() {}
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(stream: TcpStream, router: Router, mut ended: watch::Receiver<()>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = async {
            tokio::select! {
                _ = ended.changed() => {}
                () = sleep(AGE) => {}
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

fn router<S: Source>(source: Arc<S>) -> Router {
    Router::new()
        .route("/", get(landing))
        .route("/metrics", get(scrape::<S>))
        .route("/-/healthy", get("iotrace is healthy.\n"))
        .route("/-/ready", get(ready::<S>))
        .fallback((StatusCode::NOT_FOUND, "Not found; see / for what there is.\n"))
        .with_state(source)
}

async fn landing() -> Html<&'static str> {
    Html(concat!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>iotrace</title></head>\n<body>\n",
        "<h1>iotrace ",
        env!("CARGO_PKG_VERSION"),
        "</h1>\n<p>What vectored I/O and the kernel's iov_iter layer really cost.</p>\n<ul>\n",
        "<li><a href=\"/metrics\">Metrics</a></li>\n",
        "<li><a href=\"/-/healthy\">Health</a></li>\n",
        "<li><a href=\"/-/ready\">Readiness</a></li>\n",
        "</ul>\n</body>\n</html>\n",
    ))
}

async fn scrape<S: Source>(State(source): State<Arc<S>>) -> Response {
    match source.metrics() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(reason) => (StatusCode::INTERNAL_SERVER_ERROR, reason + "\n").into_response(),
    }
}

async fn ready<S: Source>(State(source): State<Arc<S>>) -> Response {
    match source.ready() {
        Ok(()) => "iotrace is ready.\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("Not ready: {reason}\n")).into_response(),
    }
}
