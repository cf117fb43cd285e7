//! What every agent and server has: [`Endpoint`] holds its settings, its counts, its [`Capacity`] and the switch of its
//! port, answers requests with faults and latency, and makes an [`AgentChange`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hyper::header::{HeaderValue, SET_COOKIE};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use super::super::agent::{Refusal, fail, spoil, truncated};
use super::super::config::{OverCapacity, SimError, check_capacity};
use super::super::fault::{FaultKind, FaultRates};
use super::super::latency::Latency;
use super::super::plan::Profile;
use super::http::{Abrupt, Reply, json as json_reply};
use super::port::PortSwitch;
use super::requests::{Admission, Requests, now_us};
use super::service::{Answer, Rejected};

/// A change of an agent or a server while it serves. What is missing stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentChange {
    /// Requests that are worked on at a time; `Some(None)`, or `null`, for no limit. If it falls, running requests
    /// finish.
    #[serde(deserialize_with = "given")]
    pub capacity: Option<Option<usize>>,
    /// What happens to a request beyond the capacity.
    pub over_capacity: Option<OverCapacity>,
    /// If down, the port refuses connections, and open ones are reset.
    pub down: Option<bool>,
    /// Replaces all fault rates. Faults at exact places stay.
    pub faults: Option<FaultRates>,
    /// Time from a request to its answer. It applies, as the faults do, to requests that arrive later.
    pub latency: Option<Latency>,
}

impl AgentChange {
    /// Names the first setting that is out of range.
    fn check(&self) -> Result<(), SimError> {
        check_capacity("capacity", self.capacity.flatten())?;
        let faults = self.faults.as_ref().map_or(Ok(()), FaultRates::check);
        faults.map_err(SimError::Setting)
    }
}

/// Reads a value so that `null` and a missing value differ, for serde.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// What all agents and servers have in common.
#[derive(Debug)]
pub(crate) struct Endpoint {
    profile: RwLock<Arc<Profile>>,
    requests: Arc<Requests>,
    capacity: Arc<Capacity>,
    port: PortSwitch,
}

impl Endpoint {
    pub(crate) fn new(profile: Profile, port: PortSwitch) -> Self {
        Self {
            capacity: Capacity::new(profile.capacity),
            profile: RwLock::new(Arc::new(profile)),
            requests: Arc::default(),
            port,
        }
    }

    pub(crate) fn profile(&self) -> Arc<Profile> {
        let profile = self.profile.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&profile)
    }

    pub(crate) fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// Checks the change and makes it. It is in force when this returns.
    ///
    /// # Errors
    /// A setting is out of range: nothing is changed. The port cannot be bound again: everything but the port is
    /// changed.
    pub(crate) async fn change(&self, change: &AgentChange) -> Result<(), SimError> {
        change.check()?;
        self.change_profile(change);
        match change.down {
            Some(down) => self.port.set(down).await,
            None => Ok(()),
        }
    }

    fn change_profile(&self, change: &AgentChange) {
        let mut current = self.profile.write().unwrap_or_else(PoisonError::into_inner);
        let Profile(settings) = Arc::make_mut(&mut current);
        if let Some(capacity) = change.capacity {
            settings.capacity = capacity;
            self.capacity.set(capacity);
        }
        if let Some(faults) = &change.faults {
            settings.faults = faults.clone();
        }
        settings.over_capacity = change.over_capacity.unwrap_or(settings.over_capacity);
        settings.latency = change.latency.unwrap_or(settings.latency);
    }

    /// Returns the settings that an [`AgentChange`] can change.
    pub(crate) fn state(&self) -> Value {
        let profile = self.profile();
        json!({
            "capacity": profile.capacity,
            "over_capacity": profile.over_capacity,
            "down": self.port.is_down(),
            "faults": profile.faults,
            "latency": profile.latency,
        })
    }

    /// Replies to a request within the capacity, after `latency`, with `answer` or with the fault that is planned.
    pub(crate) async fn reply(
        &self,
        admission: &mut Admission,
        profile: &Profile,
        fault: Option<FaultKind>,
        latency: Duration,
        answer: impl FnOnce() -> Result<Answer, Rejected>,
    ) -> Result<Reply, Abrupt> {
        let slot = match profile.over_capacity {
            OverCapacity::Wait => Some(self.capacity.slot().await),
            OverCapacity::Refuse => self.capacity.free_slot(),
        };
        let Some(slot) = slot else {
            let now = now_us();
            let refusal = Refusal::over_capacity(profile.retry_after, now);
            admission.refuse(now, refusal.not_before_us);
            return Ok(refusal.reply);
        };
        admission.begin_work(slot);
        if !latency.is_zero() {
            sleep(latency).await;
        }
        let now = now_us();
        if let Some(kind) = fault.filter(|kind| !kind.has_answer()) {
            let refusal = Refusal::of_fault(kind, profile.retry_after, now);
            let not_before_us = refusal.as_ref().map(|refusal| refusal.not_before_us);
            admission.fault(kind, now, not_before_us);
            return match refusal {
                Some(refusal) => Ok(refusal.reply),
                None => fail(kind).await,
            };
        }
        let Answer { mut body, cookie } = match answer() {
            Ok(answer) => answer,
            Err(rejected) => {
                admission.decline(now);
                return Ok(rejected.reply());
            }
        };
        match fault {
            None => admission.answer(now),
            Some(kind) => {
                admission.fault(kind, now, None);
                if kind == FaultKind::TruncatedBody {
                    return Err(Abrupt::Raw(truncated(&body)));
                }
                body = spoil(kind, body);
            }
        }
        let mut reply = json_reply(body);
        // The cookies made here are valid headers.
        if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()) {
            reply.headers_mut().insert(SET_COOKIE, cookie);
        }
        Ok(reply)
    }
}

/// A limit on the requests that are worked on at a time, first come, first served, which can change meanwhile.
#[derive(Debug)]
pub(crate) struct Capacity {
    permits: Arc<Semaphore>,
    state: Mutex<Limit>,
}

/// There are `limit + surplus` permits.
#[derive(Debug)]
struct Limit {
    limit: usize,
    /// Permits that were in use when the limit fell, and disappear when they come back.
    surplus: usize,
}

impl Capacity {
    /// Creates a limit; none if it is missing.
    pub(crate) fn new(limit: Option<usize>) -> Arc<Self> {
        let limit = limit.unwrap_or(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(limit)),
            state: Mutex::new(Limit { limit, surplus: 0 }),
        })
    }

    /// Changes the limit. A higher one admits waiting requests at once. Under a lower one, running requests finish, and
    /// none begins before there is room.
    pub(crate) fn set(&self, limit: Option<usize>) {
        let limit = limit.unwrap_or(Semaphore::MAX_PERMITS);
        let mut state = self.state();
        if limit >= state.limit {
            let more = limit - state.limit;
            let kept = more.min(state.surplus);
            state.surplus -= kept;
            self.permits.add_permits(more - kept);
        } else {
            let fewer = state.limit - limit;
            state.surplus += fewer - self.permits.forget_permits(fewer);
        }
        state.limit = limit;
    }

    pub(crate) async fn slot(self: &Arc<Self>) -> Slot {
        loop {
            // Nobody closes the semaphore, so there is a permit in the end.
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
            if let Some(permit) = self.unless_surplus(permit) {
                return Slot(Arc::clone(self), Some(permit));
            }
        }
    }

    /// Returns a slot if one is free now.
    pub(crate) fn free_slot(self: &Arc<Self>) -> Option<Slot> {
        loop {
            let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
            if let Some(permit) = self.unless_surplus(Some(permit)) {
                return Some(Slot(Arc::clone(self), Some(permit)));
            }
        }
    }

    /// Removes the permit if the limit has fallen meanwhile.
    fn unless_surplus(&self, permit: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        let mut state = self.state();
        if state.surplus == 0 {
            return permit;
        }
        state.surplus -= 1;
        permit?.forget();
        None
    }

    fn state(&self) -> MutexGuard<'_, Limit> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one request within a [`Capacity`]. Dropping it frees the place for the next request.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Capacity>, Option<OwnedSemaphorePermit>);

impl Drop for Slot {
    fn drop(&mut self) {
        let Self(capacity, permit) = self;
        drop(capacity.unless_surplus(permit.take()));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn take(capacity: &Arc<Capacity>, most: usize) -> Vec<Slot> {
        let free = std::iter::from_fn(|| capacity.free_slot());
        free.take(most).collect()
    }

    #[test]
    fn there_are_as_many_slots_as_the_limit_says() {
        let capacity = Capacity::new(Some(3));
        let slots = take(&capacity, 10);
        assert_eq!(slots.len(), 3);
        drop(slots);
        assert_eq!(take(&capacity, 10).len(), 3);
        assert_eq!(take(&Capacity::new(None), 1000).len(), 1000);
    }

    #[test]
    fn a_limit_that_falls_lets_work_finish_and_nothing_begin() {
        let capacity = Capacity::new(None);
        let mut slots = take(&capacity, 5);
        capacity.set(Some(2));
        for left in [4, 3, 2] {
            assert!(capacity.free_slot().is_none(), "{}", slots.len());
            slots.pop();
            assert_eq!(slots.len(), left);
        }
        assert!(capacity.free_slot().is_none());
        slots.pop();
        assert_eq!(take(&capacity, 10).len(), 1);
        drop(slots);
        assert_eq!(take(&capacity, 10).len(), 2);
        capacity.set(None);
        assert_eq!(take(&capacity, 1000).len(), 1000);
    }

    #[test]
    fn a_limit_that_rises_again_takes_back_the_surplus() {
        let capacity = Capacity::new(Some(5));
        let slots = take(&capacity, 5);
        capacity.set(Some(1));
        capacity.set(Some(6));
        assert_eq!(take(&capacity, 10).len(), 1);
        drop(slots);
        assert_eq!(take(&capacity, 10).len(), 6);
    }

    #[test]
    fn who_waits_is_let_in_when_the_limit_rises() {
        let capacity = Capacity::new(Some(1));
        let slot = capacity.free_slot().unwrap();
        let mut waiting = Box::pin(capacity.slot());
        assert!(waiting.as_mut().now_or_never().is_none());
        capacity.set(Some(2));
        assert!(waiting.as_mut().now_or_never().is_some());
        drop(slot);
    }

    #[test]
    fn a_permit_on_its_way_to_who_waits_counts_against_a_limit_that_falls() {
        let capacity = Capacity::new(Some(2));
        let mut slots = take(&capacity, 2);
        let mut waiting = Box::pin(capacity.slot());
        assert!(waiting.as_mut().now_or_never().is_none());
        slots.pop();
        capacity.set(Some(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(slots);
        assert!(waiting.as_mut().now_or_never().is_some());
    }

    fn read(text: &str) -> AgentChange {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn no_limit_is_not_the_same_as_no_change() {
        assert_eq!(read("{}"), AgentChange::default());
        assert_eq!(read(r#"{"capacity": null}"#).capacity, Some(None));
        assert_eq!(read(r#"{"capacity": 96}"#).capacity, Some(Some(96)));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (text, fragment) in [
            (r#"{"capacity": 0}"#, "capacity is 0"),
            (r#"{"faults": {"hang": 2}}"#, "rate of 'hang' is 2"),
        ] {
            let error = read(text).check().unwrap_err().to_string();
            assert!(error.contains(fragment), "{error}");
        }
    }
}
