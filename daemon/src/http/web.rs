//! The web configuration in force: read at the start, and again when one of its files has changed.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

mod auth;
mod bucket;
mod clients;
mod config;
mod tls;

use auth::Guard;
pub use auth::Verdict;
use bucket::Bucket;
use config::{Users, WebConfig};
pub use tls::HTTP2;
use tls::TlsAcceptor;

use crate::files::{self, Stamp};

/// To whom is served, and how. By default to everybody: no TLS, no password, no limit.
#[derive(Default)]
pub struct Web(Option<File>);

/// A web configuration, and what is in force by it.
struct File {
    path: PathBuf,
    /// Whether health is told without a password.
    open_health: bool,
    guard: Guard,
    state: Mutex<State>,
}

struct State {
    stamps: Stamps,
    rules: Arc<Rules>,
}

/// Files, and what the system said of each just before it was read.
type Stamps = Vec<(PathBuf, Stamp)>;

/// What is in force.
#[derive(Default)]
pub struct Rules {
    /// How to speak TLS, if at all.
    pub tls: Option<TlsAcceptor>,
    /// Headers of every answer.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    users: Users,
    bucket: Option<Mutex<Bucket>>,
}

impl Web {
    /// As this file says, and what it names; with `open_health`, health is told without a password.
    ///
    /// # Errors
    /// The file that cannot be read or used, and why, with the line.
    pub fn read(path: &Path, open_health: bool) -> Result<Web> {
        let (stamps, read) = read(path, true);
        let state = Mutex::new(State { stamps, rules: Arc::new(read?) });
        Ok(Web(Some(File { path: path.to_owned(), open_health, guard: Guard::new()?, state })))
    }

    /// Whether TLS is spoken.
    pub fn is_tls(&self) -> bool {
        self.rules().tls.is_some()
    }

    /// The first of the files that this process can no longer read, and why, in one line; what was read stays in
    /// force. To be asked when privileges have been given up.
    pub fn unreadable(&self) -> Option<String> {
        let mut state = self.0.as_ref()?.lock();
        let mut first = None;
        for (path, stamp) in &mut state.stamps {
            if let Err(error) = files::contents(path) {
                first.get_or_insert_with(|| format!("{}: {error}", files::shown(path)));
                // What is not seen any more has not changed.
                *stamp = Stamp::of(path);
            }
        }
        first
    }

    /// What is in force now. Looks at the files; where one has changed to something that cannot be used, what was in
    /// force stays, and the log tells.
    pub fn rules(&self) -> Arc<Rules> {
        let Some(file) = &self.0 else { return Arc::default() };
        let mut state = file.lock();
        if state.stamps.iter().any(|(path, before)| Stamp::of(path) != *before) {
            file.renew(&mut state);
        }
        Arc::clone(&state.rules)
    }

    /// Whether these headers let in; `health` where health alone is asked for.
    pub async fn look(&self, rules: &Rules, headers: &HeaderMap, health: bool) -> Verdict {
        let Some(file) = &self.0 else { return Verdict::Right };
        if rules.users.0.is_empty() || health && file.open_health {
            return Verdict::Right;
        }
        file.guard.look(headers, &rules.users).await
    }
}

impl File {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self, state: &mut State) {
        // Whoever writes a file makes it empty first, and an empty one would let everybody in.
        let (stamps, read) = read(&self.path, false);
        match read {
            Ok(rules) => {
                state.rules = Arc::new(rules);
                log::info!("{} and what it names are read again", files::shown(&self.path));
            }
            Err(error) => log::error!("{error:#}; what was in force stays"),
        }
        state.stamps = stamps;
    }
}

/// What the files say; the stamps are taken first, so that what changes meanwhile is read again.
fn read(path: &Path, may_be_empty: bool) -> (Stamps, Result<Rules>) {
    let mut stamps = vec![(path.to_owned(), Stamp::of(path))];
    let mut rules = || {
        let text = String::from_utf8(files::contents(path)?)?;
        ensure!(may_be_empty || !text.trim().is_empty(), "empty");
        let config = WebConfig::parse(&text, path.parent().unwrap_or(Path::new(".")))?;
        stamps.extend(config.files().map(|file| (file.clone(), Stamp::of(file))));
        let rules = Rules::of(&config)?;
        for note in &config.notes {
            log::warn!("{}: {note}", files::shown(path));
        }
        Ok(rules)
    };
    let rules = rules().with_context(|| format!("web configuration {}", files::shown(path)));
    (stamps, rules)
}

impl Rules {
    fn of(config: &WebConfig) -> Result<Rules> {
        let header = |(name, value): &(&'static str, String)| {
            Ok((HeaderName::from_static(name), HeaderValue::from_str(value)?))
        };
        Ok(Rules {
            tls: config.tls.as_ref().map(|tls| tls::server(tls, config.http2)).transpose()?,
            headers: config.headers.iter().map(header).collect::<Result<_>>()?,
            users: config.users.clone(),
            bucket: config.rate.map(|rate| Mutex::new(Bucket::full(rate))),
        })
    }

    /// Whether one more request is within the rate.
    pub fn allows(&self) -> bool {
        match &self.bucket {
            Some(bucket) => bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()),
            None => true,
        }
    }
}
