//! How many rollouts an agent works on at a time: [`Capacity`], a limit that can change while work
//! is under way, and [`Slot`], the place of one rollout in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A limit on what is worked on at a time, first come, first served.
#[derive(Debug)]
pub(super) struct Capacity {
    permits: Arc<Semaphore>,
    state: Mutex<State>,
}

/// There are `limit + owed` permits.
#[derive(Debug)]
struct State {
    limit: usize,
    /// Permits that were at work when the limit fell, and are not to come back.
    owed: usize,
}

impl Capacity {
    /// A limit; none at all where it is missing.
    pub(super) fn new(limit: Option<usize>) -> Arc<Self> {
        let limit = limit.unwrap_or(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(limit)),
            state: Mutex::new(State { limit, owed: 0 }),
        })
    }

    /// Changes the limit. A higher one lets in at once who waits; under a lower one, what is at work
    /// is finished, and nothing begins before there is room.
    pub(super) fn set(&self, limit: Option<usize>) {
        let limit = limit.unwrap_or(Semaphore::MAX_PERMITS);
        let mut state = self.state();
        if limit >= state.limit {
            let more = limit - state.limit;
            let kept = more.min(state.owed);
            state.owed -= kept;
            self.permits.add_permits(more - kept);
        } else {
            let fewer = state.limit - limit;
            state.owed += fewer - self.permits.forget_permits(fewer);
        }
        state.limit = limit;
    }

    /// Waits in line for a slot.
    pub(super) async fn slot(self: &Arc<Self>) -> Slot {
        loop {
            // Nobody closes the semaphore, so that there is always a permit in the end.
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
            if let Some(slot) = self.keep(permit) {
                return slot;
            }
        }
    }

    /// A slot, if there is one right now.
    pub(super) fn free_slot(self: &Arc<Self>) -> Option<Slot> {
        loop {
            let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
            if let Some(slot) = self.keep(Some(permit)) {
                return Some(slot);
            }
        }
    }

    /// Who waited may have been given a permit just before the limit fell.
    fn keep(self: &Arc<Self>, permit: Option<OwnedSemaphorePermit>) -> Option<Slot> {
        let mut state = self.state();
        if state.owed > 0 {
            state.owed -= 1;
            if let Some(permit) = permit {
                permit.forget();
            }
            return None;
        }
        Some(Slot {
            capacity: Arc::clone(self),
            permit,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place at work; dropped, it is free for the next.
#[derive(Debug)]
pub(super) struct Slot {
    capacity: Arc<Capacity>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.capacity.state();
        let permit = self.permit.take();
        if state.owed > 0 {
            state.owed -= 1;
            if let Some(permit) = permit {
                permit.forget();
            }
        }
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
    fn a_limit_that_rises_again_takes_back_what_is_owed() {
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
}
