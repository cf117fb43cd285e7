//! One request to a server: [`Call`], which call it says that it is ([`CallId`]), and what chance has
//! in store for it ([`Fate`]).

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::COOKIE;

use super::draws::{Draws, digest};
use super::fault::FaultKind;
use super::oracle::Key;
use super::profile::Profile;
use super::requests::Origin;

/// The stream of draws of a call.
const OF_CALL: u64 = 4;

/// A request to a server.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Path, without a query.
    pub path: &'a str,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// Body, which is text.
    pub body: &'a str,
}

/// Which call it is, by its `x-request-id`: `T-R-aA-cC`, and `-tN` where it is the N-th repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallId {
    /// Task, rollout and attempt.
    pub key: Key,
    /// How often this same call has been made before.
    pub repetition: u64,
}

impl CallId {
    /// Reads an id; none where it is written in another way.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut number = |prefix: &str| parts.next()?.strip_prefix(prefix)?.parse().ok();
        let (task, rollout, attempt) = (number("")?, number("")?, number("a")?);
        let _call: u64 = number("c")?;
        let repetition = match parts.next() {
            Some(part) => part.strip_prefix('t')?.parse().ok()?,
            None => 0,
        };
        parts.next().is_none().then_some(Self {
            key: Key {
                task,
                rollout,
                attempt,
            },
            repetition,
        })
    }
}

/// The `x-request-id` of a request.
pub(super) fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-request-id")?.to_str().ok()
}

impl Call<'_> {
    /// Which call it is, if it says so.
    pub(super) fn id(&self) -> Option<CallId> {
        CallId::parse(request_id(self.headers)?)
    }

    /// The value of a cookie that came with it.
    pub(super) fn cookie(&self, name: &str) -> Option<String> {
        let lines = self.headers.get_all(COOKIE).iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let mut cookies = lines.flat_map(cookie::Cookie::split_parse).flatten();
        let found = cookies.find(|cookie| cookie.name() == name)?;
        Some(found.value().to_owned())
    }
}

/// What the record keeps of a request.
pub(super) fn origin(path: &str, headers: &HeaderMap) -> Box<Origin> {
    Box::new(Origin {
        path: path.into(),
        request_id: request_id(headers).map(Into::into),
    })
}

/// What chance has in store for a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fate {
    /// What goes wrong, if anything.
    pub fault: Option<FaultKind>,
    /// Time until the answer; waiting for capacity comes on top.
    pub latency: Duration,
}

impl Profile {
    /// What happens to a call of `server`: drawn by its `x-request-id` and path, so that a repetition
    /// is drawn anew, or, without an id, by `number`, which is another for every call. A repetition
    /// counts as a further attempt for [`super::SimConfig::fault_attempts`].
    pub(super) fn fate(&self, server: &str, path: &str, id: Option<&str>, number: u64) -> Fate {
        let by = match id {
            Some(id) => digest(id.as_bytes()),
            None => digest(&number.to_le_bytes()),
        };
        let parts = [
            OF_CALL,
            digest(server.as_bytes()),
            digest(path.as_bytes()),
            by,
        ];
        let mut draws = Draws::keyed(self.seed, &parts);
        let unit = draws.unit();
        let fault = match id.and_then(CallId::parse) {
            Some(CallId { key, repetition }) => {
                let tries = key.attempt.saturating_add(repetition);
                self.fault(key, tries, unit)
            }
            None => self.faults.pick(unit),
        };
        let fault = fault.filter(|kind| can_happen(*kind, path));
        let slow = fault == Some(FaultKind::SlowFirstByte);
        let extra = if slow {
            self.slow_first_byte
        } else {
            Duration::ZERO
        };
        Fate {
            fault,
            latency: self.latency.sample(&mut draws).saturating_add(extra),
        }
    }
}

/// Only some answers have a reward, and only a verify response has flags.
fn can_happen(kind: FaultKind, path: &str) -> bool {
    match kind {
        FaultKind::MissingReward | FaultKind::NotANumber => matches!(path, "/verify" | "/step"),
        FaultKind::NoPersist | FaultKind::FailureClass | FaultKind::FailureTerminal => {
            path == "/verify"
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::SimConfig;
    use super::*;

    fn id(text: &str) -> Option<(u64, u64, u64, u64)> {
        let CallId { key, repetition } = CallId::parse(text)?;
        Some((key.task, key.rollout, key.attempt, repetition))
    }

    #[test]
    fn an_id_names_task_rollout_attempt_and_repetition() {
        assert_eq!(id("3-1-a2-c7"), Some((3, 1, 2, 0)));
        assert_eq!(id("3-1-a2-c7-t4"), Some((3, 1, 2, 4)));
        for text in [
            "",
            "3",
            "3-1-a2",
            "3-1-2-7",
            "3-1-a2-c7-4",
            "3-1-a2-c7-t4-",
            "x-1-a2-c7",
        ] {
            assert_eq!(id(text), None, "{text}");
        }
    }

    fn profile(text: &str) -> Profile {
        let config: SimConfig = toml::from_str(text).unwrap();
        Profile::with(&config, Default::default())
    }

    #[test]
    fn a_repetition_and_another_path_are_drawn_anew() {
        let profile = profile("faults = { error_500 = 0.5 }");
        let faults = |ids: &dyn Fn(u64) -> (String, String)| {
            let fault = |n| {
                let (path, id) = ids(n);
                profile.fate("m", &path, Some(&id), 0).fault.is_some()
            };
            (0..400).filter(|n| fault(*n)).count()
        };
        let repeated = faults(&|n| ("/verify".into(), format!("1-1-a0-c0-t{n}")));
        assert!((150..250).contains(&repeated), "{repeated}");
        let paths = faults(&|n| (format!("/{n}"), "1-1-a0-c0".into()));
        assert!((150..250).contains(&paths), "{paths}");
        let same = faults(&|_| ("/verify".into(), "1-1-a0-c0".into()));
        assert!([0, 400].contains(&same), "{same}");
        let anonymous = (0..400).filter(|n| profile.fate("m", "/x", None, *n).fault.is_some());
        assert!((150..250).contains(&anonymous.count()));
    }

    #[test]
    fn places_and_attempts_count_for_calls_too() {
        let profile = profile(
            "faults = { hang = 1.0 }\nfault_attempts = 2\nfault_at = [{ task = 3, kind = 'reset' }]",
        );
        let fault = |id: &str| profile.fate("m", "/x", Some(id), 0).fault;
        assert_eq!(fault("3-0-a0-c0"), Some(FaultKind::Reset));
        assert_eq!(fault("4-0-a0-c0-t1"), Some(FaultKind::Hang));
        assert_eq!(fault("4-0-a0-c0-t2"), None);
        assert_eq!(fault("4-0-a1-c0-t1"), None);
    }

    #[test]
    fn what_has_no_reward_cannot_lose_it() {
        let profile = profile("faults = { missing_reward = 1.0 }");
        let fault = |path: &str| profile.fate("m", path, Some("1-0-a0-c0"), 0).fault;
        assert_eq!(fault("/verify"), Some(FaultKind::MissingReward));
        assert_eq!(fault("/v1/responses"), None);
    }
}
