//! [`Admission`]: which executors may send, where more may join than the limits were divided by.
//!
//! An executor claims its slots before it reads who is admitted, and the driver reads the claims after it has written who is
//! not admitted any more. So one that lost its slots while it was idle never sends before it has some again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Mutex;

use super::ClusterError;
use super::board::{Board, Claim, INTERVAL};
use crate::error::Error;
use crate::store::{Process, StoreError};

/// An executor that renews no claim for so long is dead: a put may take ten seconds.
const DEAD: Duration = Duration::from_secs(15);

/// What an executor claims of each sweep.
#[derive(Debug)]
pub(super) struct Claims {
    name: String,
    process: Process,
    slots: usize,
    /// The shards at work, by the digests of their specs. It is locked while a claim is put, so that the last one holds.
    shards: Mutex<HashMap<String, usize>>,
}

impl Claims {
    pub(super) fn new(name: String, slots: usize) -> Self {
        Self {
            name,
            process: Process::this(),
            slots,
            shards: Mutex::default(),
        }
    }

    /// Makes sure that no other process of this name works on the sweep: both would send what one may.
    ///
    /// # Errors
    /// Another does, or the store failed.
    pub(super) async fn check(&self, board: &Board) -> Result<(), Error> {
        let found = board.first_claim(&self.claim(true)).await?;
        if !self.is_of_another(&found) || found.process.has_died() {
            return Ok(());
        }
        let until = Instant::now() + DEAD;
        while Instant::now() < until {
            tokio::time::sleep(INTERVAL).await;
            match board.claim_of(&self.name).await? {
                Some(again) if again == found => {}
                Some(again) if self.is_of_another(&again) => {
                    return Err(ClusterError::Namesake.into());
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn is_of_another(&self, claim: &Claim) -> bool {
        claim.is_active && claim.process != self.process
    }

    fn claim(&self, is_active: bool) -> Claim {
        Claim {
            executor: self.name.clone(),
            process: self.process.clone(),
            slots: self.slots,
            is_active,
            at: SystemTime::now(),
        }
    }

    /// Counts shards more or less, and claims slots while there are any.
    pub(super) async fn put(&self, board: &Board, change: isize) -> Result<(), StoreError> {
        let mut shards = self.shards.lock().await;
        let own = shards.entry(board.digest().to_owned()).or_default();
        *own = own.saturating_add_signed(change);
        let is_active = *own > 0;
        if !is_active {
            shards.remove(board.digest());
        }
        board.claim(&self.claim(is_active)).await
    }

    /// Renews the claim, and ends when another process has the same name. Of two that began at the same moment, one goes on.
    pub(super) async fn keep(&self, board: &Board) -> ClusterError {
        loop {
            tokio::time::sleep(INTERVAL).await;
            match board.claim_of(&self.name).await {
                Ok(Some(found)) if self.is_of_another(&found) && found.process > self.process => {
                    return ClusterError::Namesake;
                }
                // Another shard of this process has renewed it.
                Ok(Some(found)) if found.process == self.process && is_new(&found) => {}
                // One that is lost is followed by another.
                _ => drop(self.put(board, 0).await),
            }
        }
    }
}

fn is_new(claim: &Claim) -> bool {
    claim.is_active && claim.at.elapsed().is_ok_and(|age| age < INTERVAL)
}

/// The executors of a sweep that have claimed slots.
#[derive(Debug, Default)]
pub(super) struct Admission(BTreeMap<String, Claimant>);

#[derive(Debug)]
struct Claimant {
    claim: Claim,
    heard: Instant,
    place: Place,
}

/// Whether an executor may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waits,
    Admitted,
    /// It may not any more, and may not know yet.
    Leaves,
    /// It is gone, unless it claims again.
    Left,
}

impl Admission {
    /// Takes the newest claims, and gives the slots to those who wait for them. `is_told` says whether executors could read
    /// the last [`Self::admitted`]. One that is silent for longer than `lease` has dropped its calls. Returns the names of
    /// those that go on waiting.
    pub(super) fn look(
        &mut self,
        claims: BTreeMap<String, Claim>,
        slots: usize,
        lease: Duration,
        is_told: bool,
    ) -> Vec<&str> {
        for (name, claim) in claims {
            let place = match self.0.get(&name) {
                Some(known) if known.claim == claim => continue,
                Some(known) if matches!(known.place, Place::Admitted | Place::Leaves) => {
                    Place::Admitted
                }
                _ => Place::Waits,
            };
            let heard = Instant::now();
            self.0.insert(
                name,
                Claimant {
                    claim,
                    heard,
                    place,
                },
            );
        }
        let is_in = |of: &&mut Claimant| matches!(of.place, Place::Admitted | Place::Leaves);
        let left = |of: &&mut Claimant| is_told && of.place == Place::Leaves;
        self.0
            .values_mut()
            .filter(left)
            .for_each(|of| of.place = Place::Left);
        let mut used: usize = self
            .0
            .values_mut()
            .filter(is_in)
            .map(|of| of.claim.slots)
            .sum();
        let is_waiting = |of: &&mut Claimant| of.place == Place::Waits && of.claim.is_active;
        for waiting in self.0.values_mut().filter(is_waiting) {
            // One that has more slots than there are is alone.
            if used == 0 || used + waiting.claim.slots <= slots {
                used += waiting.claim.slots;
                waiting.place = Place::Admitted;
            }
        }
        if self.0.values_mut().any(|of| is_waiting(&of)) {
            let ends = |of: &&mut Claimant| !of.claim.is_active || of.heard.elapsed() > lease;
            let idle = self.0.values_mut().filter(is_in).filter(ends);
            idle.for_each(|of| of.place = Place::Leaves);
        }
        let waiting = self.0.values_mut().filter(is_waiting);
        waiting.map(|of| of.claim.executor.as_str()).collect()
    }

    /// Returns the executors that may send.
    pub(super) fn admitted(&self) -> BTreeSet<String> {
        let admitted = self.0.values().filter(|of| of.place == Place::Admitted);
        admitted.map(|of| of.claim.executor.clone()).collect()
    }
}
