//! Sessions by cookie: [`Sessions`], and [`Episode`], the rollout that a session belongs to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use indexmap::IndexMap;

use super::super::agent::Row;
use super::super::draws::Draws;
use super::super::server::service::{Call, Rejected};

/// The name of the session cookie of NeMo Gym's servers.
const COOKIE: &str = "session";

/// The stream of draws for the names of sessions.
const OF_SESSION: u64 = 10;

/// A server keeps this many sessions. Beyond that it forgets the older half.
const MAX_SESSIONS: usize = 200_000;

/// The sessions of a server, by cookie.
#[derive(Debug)]
pub(super) struct Sessions<S> {
    limit: usize,
    opened: AtomicU64,
    sessions: Mutex<IndexMap<u64, S>>,
}

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Self::new(MAX_SESSIONS)
    }
}

impl<S> Sessions<S> {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            opened: AtomicU64::new(0),
            sessions: Mutex::new(IndexMap::new()),
        }
    }

    /// Opens a session; returns the value of `Set-Cookie`.
    pub(super) fn open(&self, seed: u64, session: S) -> String {
        let number = self.opened.fetch_add(1, Relaxed);
        let name = Draws::keyed(seed, &[OF_SESSION, number]).next_u64();
        let mut sessions = self.sessions();
        if sessions.len() >= self.limit {
            sessions.drain(..self.limit.div_ceil(2));
        }
        sessions.insert(name, session);
        format!("{COOKIE}={name:016x}; Path=/; HttpOnly; SameSite=lax")
    }

    /// Calls `work` with the session of a call.
    pub(super) fn with<T>(
        &self,
        call: &Call,
        work: impl FnOnce(&mut S) -> Result<T, Rejected>,
    ) -> Result<T, Rejected> {
        let refused = |why: &str| Rejected::detail(StatusCode::BAD_REQUEST, why);
        let cookie = call.cookie(COOKIE);
        let cookie = cookie.ok_or_else(|| {
            refused("no cookie 'session': send back the one that opened the session")
        })?;
        let mut sessions = self.sessions();
        let name = u64::from_str_radix(&cookie, 16).ok();
        let session = name.and_then(|name| sessions.get_mut(&name));
        work(session.ok_or_else(|| refused("the cookie 'session' matches no session"))?)
    }

    fn sessions(&self) -> MutexGuard<'_, IndexMap<u64, S>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task and rollout of a session, as far as the identity of a call and the row in its body say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Episode([Option<(u64, u64)>; 2]);

impl Episode {
    pub(super) fn of(call: &Call, row: Option<&Row>) -> Self {
        let of_row = row.filter(|row| row.is_numbered()).map(Row::key);
        let keys = [call.id().map(|id| id.key), of_row];
        Self(keys.map(|key| Some((key?.task, key?.rollout))))
    }

    /// Checks that a later call belongs to the same episode.
    pub(super) fn check(&self, other: &Self) -> Result<(), Rejected> {
        for pair in self.0.into_iter().zip(other.0) {
            if let (Some(opened), Some(called)) = pair
                && opened != called
            {
                let name = |(task, rollout)| format!("task {task}, rollout {rollout}");
                let why = format!(
                    "the session belongs to {}, but the request to {}: a cookie is only for one episode",
                    name(opened),
                    name(called)
                );
                return Err(Rejected::detail(StatusCode::CONFLICT, why));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;

    use super::*;

    fn add(sessions: &Sessions<u64>, cookie: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        if let Some(cookie) = cookie {
            headers.insert("cookie", cookie.parse().unwrap());
        }
        let call = Call {
            path: "/",
            headers: &headers,
            body: "",
        };
        let count = |n: &mut u64| {
            *n += 1;
            Ok(*n)
        };
        sessions.with(&call, count).ok()
    }

    fn value(cookie: &str) -> &str {
        cookie.split(';').next().unwrap()
    }

    #[test]
    fn a_session_is_known_by_its_cookie_alone() {
        let sessions = Sessions::new(2);
        let (one, two) = (sessions.open(0, 10), sessions.open(0, 20));
        assert_eq!(add(&sessions, Some(value(&one))), Some(11));
        assert_eq!(
            add(&sessions, Some(&format!("a=b; {}", value(&one)))),
            Some(12)
        );
        assert_eq!(add(&sessions, Some(value(&two))), Some(21));
        for cookie in [None, Some("session=0"), Some("session=x"), Some("a=b")] {
            assert_eq!(add(&sessions, cookie), None, "{cookie:?}");
        }
        sessions.open(0, 30);
        assert_eq!(
            add(&sessions, Some(value(&one))),
            None,
            "the oldest is forgotten"
        );
        assert_eq!(add(&sessions, Some(value(&two))), Some(22));
    }
}
