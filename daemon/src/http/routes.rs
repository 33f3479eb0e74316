//! What is served, and who is let in.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, StatusCode,
        header::{
            ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
        },
    },
    middleware::{Next, from_fn_with_state},
    response::{Html, IntoResponse, Response},
    routing::get,
};

use super::{
    Source,
    accept::{self, Form},
    page::Pages,
    web::{Verdict, Web},
};
use crate::metrics;

const HEALTHY: &str = "/-/healthy";
const READY: &str = "/-/ready";

/// All pages, behind what the web configuration asks for.
pub fn router<S: Source>(pages: Arc<Pages<S>>, web: Arc<Web>) -> Router {
    Router::new()
        .route("/", get(landing))
        .route("/metrics", get(scrape::<S>))
        .route("/v1/snapshot", get(snapshot::<S>))
        .route(HEALTHY, get("iotrace is healthy.\n"))
        .route(READY, get(ready::<S>))
        .fallback((StatusCode::NOT_FOUND, "Not found; see / for what there is.\n"))
        .with_state(pages)
        .layer(from_fn_with_state(web, enter))
}

/// The rate, then the password, as exporter-toolkit does; the headers are those of every answer.
async fn enter(State(web): State<Arc<Web>>, request: Request, next: Next) -> Response {
    let rules = web.rules();
    let health = [HEALTHY, READY].contains(&request.uri().path());
    let verdict =
        if rules.allows() { web.look(&rules, request.headers(), health).await } else { Verdict::Busy };
    let mut response = match verdict {
        Verdict::Right => next.run(request).await,
        Verdict::Wrong => {
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Basic")], "Unauthorized\n").into_response()
        }
        Verdict::Busy => {
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], "Too many requests\n").into_response()
        }
    };
    for (name, value) in &rules.headers {
        response.headers_mut().insert(name, value.clone());
    }
    response
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
