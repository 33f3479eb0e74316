//! Names and passwords. The only file that knows bcrypt's work and its keyed hash.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Result, anyhow};
use axum::http::{HeaderMap, header::AUTHORIZATION};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use ring::{hmac, rand::SystemRandom};
use tokio::{sync::Semaphore, task::spawn_blocking};

use super::config::Users;

/// Passwords that wait to be looked at; each takes a core for the tenth of a second and more.
const WAITING: usize = 16;

/// Verified passwords that are remembered, so that they take no time again.
const REMEMBERED: usize = 100;

/// Longer names and passwords are wrong.
const LONGEST: usize = 1024;

/// What came of looking at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The name and password are right.
    Right,
    /// There are none, or they are wrong.
    Wrong,
    /// Too many others are being looked at.
    Busy,
}

/// Looks at passwords, one at a time.
pub struct Guard {
    waiting: Semaphore,
    turn: Arc<tokio::sync::Mutex<()>>,
    key: hmac::Key,
    /// Keyed hashes of what was right: neither passwords nor what could be compared with them are kept.
    remembered: Mutex<VecDeque<[u8; 32]>>,
}

impl Guard {
    pub fn new() -> Result<Guard> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| anyhow!("the system gives no random numbers"))?;
        let turn = Arc::default();
        Ok(Guard { waiting: Semaphore::new(WAITING), turn, key, remembered: Mutex::default() })
    }

    /// Whether the headers have the name of a user and its password. A name that is not there takes the time of one that is.
    pub async fn look(&self, headers: &HeaderMap, users: &Users) -> Verdict {
        let Some((name, password)) = credentials(headers) else { return Verdict::Wrong };
        let known = users.0.get(&name);
        let hash = known.cloned().unwrap_or_else(|| nobody(users));
        let tag = self.tag(&name, &hash, &password);
        if known.is_some() && self.lock().contains(&tag) {
            return Verdict::Right;
        }
        let Ok(_place) = self.waiting.try_acquire() else { return Verdict::Busy };
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let right = spawn_blocking(move || {
            let right = bcrypt::verify(password, &hash).unwrap_or(false);
            // Held to the end of the work, also where the client has gone meanwhile.
            drop(turn);
            right
        });
        if !right.await.unwrap_or(false) || known.is_none() {
            return Verdict::Wrong;
        }
        let mut remembered = self.lock();
        if !remembered.contains(&tag) {
            if remembered.len() == REMEMBERED {
                remembered.pop_front();
            }
            remembered.push_back(tag);
        }
        Verdict::Right
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<[u8; 32]>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hash is in it: a password that is changed is not remembered.
    fn tag(&self, name: &str, hash: &str, password: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [name.as_bytes(), hash.as_bytes(), password] {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        let mut tag = [0; 32];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }
}

/// A hash that no password has, of the highest cost that a user's has.
fn nobody(users: &Users) -> String {
    let costs = users.0.values().filter_map(|hash| hash.get(4..6)?.parse::<u32>().ok());
    format!("$2b${:02}${}", costs.max().unwrap_or(10), ".".repeat(53))
}

/// RFC 7617.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > 2 * LONGEST {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    let name = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    let password = decoded[colon + 1..].to_vec();
    (name.len() <= LONGEST && password.len() <= LONGEST).then_some((name, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(password: &str) -> Users {
        let hash = |password, cost| bcrypt::hash(password, cost).unwrap();
        Users([("alice".to_owned(), hash(password, 4)), ("carol".to_owned(), hash("other", 5))].into())
    }

    fn login(text: &str) -> HeaderMap {
        let value = format!("Basic {}", BASE64_STANDARD.encode(text));
        [(AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn the_hash_of_nobody_takes_the_work_of_the_dearest() {
        let nobody = nobody(&users("right"));
        assert_eq!(nobody.parse::<bcrypt::HashParts>().unwrap().get_cost(), 5);
        assert!(!bcrypt::verify("right", &nobody).unwrap(), "compared, not refused");
    }

    /// Where there is no place to wait for the work, those who need it are told so: that tells who needs it.
    #[tokio::test]
    async fn who_is_not_there_takes_work_and_who_was_right_takes_none() {
        let (guard, users) = (Guard::new().unwrap(), users("right"));
        assert_eq!(guard.look(&login("alice:right"), &users).await, Verdict::Right);
        assert_eq!(guard.look(&login("nobody:right"), &users).await, Verdict::Wrong);
        let full = guard.waiting.try_acquire_many(WAITING as u32).unwrap();
        assert_eq!(guard.look(&login("alice:right"), &users).await, Verdict::Right);
        for needs_work in ["alice:wrong", "alice:", "nobody:right", "carol:right", "carol:other", ":"] {
            assert_eq!(guard.look(&login(needs_work), &users).await, Verdict::Busy, "{needs_work}");
        }
        assert_eq!(guard.look(&HeaderMap::new(), &users).await, Verdict::Wrong);
        let renewed = self::users("right");
        assert_eq!(guard.look(&login("alice:right"), &renewed).await, Verdict::Busy, "another hash");
        drop(full);
        assert_eq!(guard.look(&login("alice:right"), &renewed).await, Verdict::Right);
    }
}
