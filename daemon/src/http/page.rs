//! One reading of the totals for all who ask within a second of it.

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::body::Bytes;
use flate2::{Compression, write::GzEncoder};
use tokio::time::sleep;

use super::{Source, accept::Form};

/// How long a reading is served; it is forgotten then, so that it takes no memory.
pub const FRESH: Duration = Duration::from_secs(1);

/// A source, and what it was read last.
pub struct Pages<S: Source> {
    /// What is read.
    pub source: S,
    page: Mutex<Option<Page<S::Reading>>>,
}

struct Page<R> {
    read: Instant,
    reading: R,
    /// What has been asked for of it: each form plain and, `true`, as gzip.
    bodies: BTreeMap<(Form, bool), Bytes>,
}

impl<S: Source> Pages<S> {
    /// Nothing is read before it is asked for.
    pub fn of(source: S) -> Arc<Pages<S>> {
        Arc::new(Pages { source, page: Mutex::new(None) })
    }

    /// The totals in this form, read less than [`FRESH`] ago. Who asks while they are read waits for that reading.
    ///
    /// # Errors
    /// Why there are none, in one line; the next who asks makes a new try.
    pub fn body(self: &Arc<Self>, form: Form, gzip: bool) -> Result<Bytes, String> {
        let mut slot = self.lock();
        if slot.as_ref().is_none_or(|page| page.read.elapsed() >= FRESH) {
            let (read, reading) = (Instant::now(), self.source.read()?);
            *slot = Some(Page { read, reading, bodies: BTreeMap::new() });
            let pages = Arc::clone(self);
            tokio::spawn(async move {
                sleep(FRESH).await;
                pages.forget();
            });
        }
        let Some(page) = slot.as_mut() else { return Err("nothing was read".into()) };
        if let Some(body) = page.bodies.get(&(form, gzip)) {
            return Ok(body.clone());
        }
        let mut body = self.source.encode(&page.reading, form)?;
        if gzip {
            body = compress(&body).map_err(|error| format!("cannot compress: {error}"))?;
        }
        let body = Bytes::from(body);
        page.bodies.insert((form, gzip), body.clone());
        Ok(body)
    }

    fn forget(&self) {
        let mut slot = self.lock();
        if slot.as_ref().is_some_and(|page| page.read.elapsed() >= FRESH) {
            *slot = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Page<S::Reading>>> {
        // Whoever panicked while reading left the page as it was.
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(body)?;
    gzip.finish()
}
