//! Where requests are received: [`Station`], the settings, the counters and the capacity of one
//! agent or server.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::sleep;

use super::capacity::Capacity;
use super::config::OverCapacity;
use super::control::AgentChange;
use super::counters::{Admission, AgentCounters};
use super::http::Reply;
use super::profile::Profile;
use super::refusal::Refusal;
use super::requests::now_us;

/// The settings, the counters and the capacity of one agent or server.
#[derive(Debug)]
pub(super) struct Station {
    profile: RwLock<Arc<Profile>>,
    counters: Arc<AgentCounters>,
    capacity: Arc<Capacity>,
}

impl Station {
    /// A station that nobody has come to yet.
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            capacity: Capacity::new(profile.capacity),
            profile: RwLock::new(Arc::new(profile)),
            counters: Arc::default(),
        }
    }

    /// What it lives by at this moment.
    pub(super) fn profile(&self) -> Arc<Profile> {
        let profile = self.profile.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&profile)
    }

    /// Its counters.
    pub(super) fn counters(&self) -> &Arc<AgentCounters> {
        &self.counters
    }

    /// Changes all that is its own, which is all but its port.
    pub(super) fn change(&self, change: &AgentChange) {
        let mut current = self.profile.write().unwrap_or_else(PoisonError::into_inner);
        let mut profile = Profile::clone(&current);
        if let Some(capacity) = change.capacity {
            profile.capacity = capacity;
            self.capacity.set(capacity);
        }
        if let Some(faults) = &change.faults {
            profile.faults = faults.clone();
        }
        profile.over_capacity = change.over_capacity.unwrap_or(profile.over_capacity);
        profile.latency = change.latency.unwrap_or(profile.latency);
        *current = Arc::new(profile);
    }

    /// Begins to work on a request, and takes `latency` for it.
    ///
    /// # Errors
    /// The refusal, where there is no room and nobody may wait.
    pub(super) async fn work(
        &self,
        profile: &Profile,
        latency: Duration,
        admission: &mut Admission,
    ) -> Result<(), Reply> {
        let slot = match profile.over_capacity {
            OverCapacity::Wait => Some(self.capacity.slot().await),
            OverCapacity::Refuse => self.capacity.free_slot(),
        };
        let Some(slot) = slot else {
            let now = now_us();
            let refusal = Refusal::over_capacity(profile.retry_after, now);
            admission.refuse(now, refusal.not_before_us);
            return Err(refusal.reply);
        };
        admission.begin_work(slot);
        if !latency.is_zero() {
            sleep(latency).await;
        }
        Ok(())
    }
}
