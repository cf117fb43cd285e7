use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;

use super::ModelError;
use crate::call::Target;
use crate::http::HttpClients;
use crate::retry::Backoff;

/// The time for which an endpoint is avoided after failures, unless it asks for longer.
const AVOIDANCE: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
};

/// The servers of one model, and their health. Clients that share an instance share the health, too.
#[derive(Debug)]
pub struct Endpoints {
    targets: Vec<Target>,
    states: Mutex<EndpointStates>,
}

#[derive(Debug, Default)]
struct EndpointStates {
    endpoints: Vec<EndpointState>,
    choices: u64,
}

/// The state of an endpoint.
#[derive(Debug, Default)]
struct EndpointState {
    in_flight: usize,
    /// Failures since the last success. Calls that fail together count as one failure.
    failures: u32,
    avoided_until: Option<Instant>,
    /// The instant until which the endpoint asked to be left alone.
    alone_until: Option<Instant>,
    /// The number of the choice that last chose this endpoint.
    chosen: u64,
}

impl EndpointState {
    /// Returns how long the endpoint still asks to be left alone.
    fn left_alone(&self, now: Instant) -> Duration {
        let until = self.alone_until.unwrap_or(now);
        until.saturating_duration_since(now)
    }

    /// Returns whether the endpoint failed recently, or failed before and has a call in flight that tries it out.
    fn is_avoided(&self, now: Instant) -> bool {
        let is_tried = self.failures > 0 && self.in_flight > 0;
        is_tried || self.avoided_until.is_some_and(|until| now < until)
    }
}

/// An endpoint that was chosen for a call. The call is over when this is dropped.
#[derive(Debug)]
pub struct Chosen {
    endpoints: Arc<Endpoints>,
    index: usize,
}

impl Endpoints {
    /// Creates the servers of a model at these addresses, with or without `/v1` at the end; `headers` go
    /// with every call.
    ///
    /// # Errors
    /// There are no addresses, or one can't be used.
    pub fn new(
        model: &str,
        bases: &[String],
        headers: &HeaderMap,
        http: &HttpClients,
    ) -> Result<Arc<Self>, ModelError> {
        let targets = bases.iter().map(|base| {
            let root = base.trim_end_matches('/');
            let root = root.strip_suffix("/v1").unwrap_or(root);
            Target::new(root, headers.clone(), http.clone()).map_err(|reason| ModelError::Address {
                model: model.to_owned(),
                url: base.clone(),
                reason,
            })
        });
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        if targets.is_empty() {
            return Err(ModelError::NoAddress {
                model: model.to_owned(),
            });
        }
        let endpoints = targets.iter().map(|_| EndpointState::default()).collect();
        Ok(Arc::new(Self {
            targets,
            states: Mutex::new(EndpointStates {
                endpoints,
                choices: 0,
            }),
        }))
    }

    /// Returns the servers.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Chooses the endpoint for a call that has failed at `failed_at`. It prefers, in this order: one that does not ask to be
    /// left alone, one at which the call has failed least, one that is not avoided, the fewest calls in flight, the one that
    /// was chosen least recently.
    pub fn choose(self: &Arc<Self>, failed_at: &[usize], now: Instant) -> Chosen {
        let mut states = self.states();
        let index = states.best(failed_at, now);
        states.choices += 1;
        let choice = states.choices;
        if let Some(state) = states.endpoints.get_mut(index) {
            state.in_flight += 1;
            state.chosen = choice;
        }
        Chosen {
            endpoints: Arc::clone(self),
            index,
        }
    }

    /// Returns how long the endpoint that [`Self::choose`] would choose wants to be left alone.
    pub fn left_alone(&self, failed_at: &[usize], now: Instant) -> Duration {
        let states = self.states();
        let best = states.endpoints.get(states.best(failed_at, now));
        best.map_or(Duration::ZERO, |state| state.left_alone(now))
    }

    fn states(&self) -> MutexGuard<'_, EndpointStates> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EndpointStates {
    fn best(&self, failed_at: &[usize], now: Instant) -> usize {
        let states = self.endpoints.iter().enumerate();
        let best = states.min_by_key(|(index, state)| {
            let failures = failed_at.iter().filter(|failed| *failed == index).count();
            (
                state.left_alone(now),
                failures,
                state.is_avoided(now),
                state.in_flight,
                state.chosen,
            )
        });
        best.map_or(0, |(index, _)| index)
    }
}

impl Chosen {
    /// Returns the index of the endpoint.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Notes that the endpoint answered with anything but a failure of its own.
    pub fn succeeded(&self) {
        self.change(|state| {
            state.failures = 0;
            // A request to be left alone remains valid, even if a call that was sent before it succeeds.
            state.avoided_until = None;
        });
    }

    /// Notes that the endpoint failed, or asked to be left alone for `retry_after`.
    pub fn failed(&self, retry_after: Option<Duration>, now: Instant) {
        self.change(|state| {
            if state.avoided_until.is_none_or(|until| until <= now) {
                state.failures = state.failures.saturating_add(1);
                state.avoided_until = Some(now + AVOIDANCE.longest(state.failures));
            }
            let alone_until = retry_after.map(|wait| now + wait);
            state.alone_until = state.alone_until.max(alone_until);
        });
    }

    fn change(&self, change: impl FnOnce(&mut EndpointState)) {
        let mut states = self.endpoints.states();
        if let Some(state) = states.endpoints.get_mut(self.index) {
            change(state);
        }
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.change(|state| state.in_flight = state.in_flight.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::scripted::http;

    fn endpoints(count: usize) -> Arc<Endpoints> {
        let bases: Vec<String> = (0..count).map(|at| format!("http://m{at}/v1/")).collect();
        Endpoints::new("m", &bases, &HeaderMap::new(), &http()).unwrap()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_model_without_address_or_with_a_bad_one_is_named() {
        let new = |bases: &[String]| Endpoints::new("big", bases, &HeaderMap::new(), &http());
        let none = new(&[]).unwrap_err().to_string();
        assert!(none.contains("model 'big'"), "{none}");
        let bad = new(&["ftp://x".into()]).unwrap_err().to_string();
        assert!(bad.contains("'ftp://x' of model 'big'"), "{bad}");
        let two = endpoints(2);
        let addresses: Vec<&str> = two.targets().iter().map(Target::address).collect();
        assert_eq!(addresses, ["http://m0/", "http://m1/"]);
    }

    #[test]
    fn the_least_loaded_is_chosen_and_ties_go_in_turn() {
        let (endpoints, now) = (endpoints(3), Instant::now());
        let mut calls: Vec<Chosen> = (0..6).map(|_| endpoints.choose(&[], now)).collect();
        let chosen: Vec<usize> = calls.iter().map(Chosen::index).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
        drop(calls.remove(1));
        assert_eq!(endpoints.choose(&[], now).index(), 1);
        drop(calls);
        let idle: Vec<usize> = (0..3).map(|_| endpoints.choose(&[], now).index()).collect();
        assert_eq!(idle, [0, 2, 1]);
    }

    #[test]
    fn one_that_fails_is_avoided_for_longer_each_time() {
        let (endpoints, start) = (endpoints(2), Instant::now());
        let mut now = start;
        for avoided in [1, 2, 4, 8, 16, 32, 60, 60] {
            let failing = endpoints.choose(&[1], now);
            assert_eq!(failing.index(), 0);
            failing.failed(None, now);
            // The failure of a call that was in flight at the same time tells nothing new.
            failing.failed(None, now);
            drop(failing);
            let busy = endpoints.choose(&[0], now);
            let before = now + seconds(avoided) - Duration::from_nanos(1);
            assert_eq!(endpoints.choose(&[], before).index(), 1);
            now += seconds(avoided);
            let probe = endpoints.choose(&[], now);
            assert_eq!(probe.index(), 0, "{avoided}");
            // One call is enough to find out.
            assert_eq!(endpoints.choose(&[], now).index(), 1);
            drop((busy, probe));
        }
        let well = endpoints.choose(&[1], now);
        well.succeeded();
        well.failed(None, now);
        drop(well);
        let _busy = endpoints.choose(&[0], now);
        assert_eq!(endpoints.choose(&[], now + seconds(1)).index(), 0);
    }

    #[test]
    fn one_that_asks_to_be_left_alone_is() {
        let (endpoints, now) = (endpoints(2), Instant::now());
        endpoints.choose(&[], now).failed(Some(seconds(300)), now);
        assert_eq!(endpoints.left_alone(&[], now), Duration::ZERO);
        let later = now + seconds(299);
        let chosen: Vec<Chosen> = (0..3).map(|_| endpoints.choose(&[1], later)).collect();
        assert!(chosen.iter().all(|chosen| chosen.index() == 1));
        // Both ask to be left alone: the one whose time is up first is chosen.
        endpoints.choose(&[], later).failed(Some(seconds(9)), later);
        assert_eq!(endpoints.choose(&[], later).index(), 0);
        assert_eq!(endpoints.left_alone(&[], later), seconds(1));
    }

    #[test]
    fn a_repetition_goes_where_the_call_has_failed_least() {
        let (endpoints, now) = (endpoints(3), Instant::now());
        let mut failed_at = Vec::new();
        for _ in 0..6 {
            let chosen = endpoints.choose(&failed_at, now);
            chosen.failed(None, now);
            failed_at.push(chosen.index());
        }
        assert_eq!(failed_at, [0, 1, 2, 0, 1, 2]);
    }
}
