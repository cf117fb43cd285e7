use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::time::Instant;

use super::directory::{self, FoundLock};
use super::record::age;
use super::{LockEntry, LockHolder, LockRecord, LockScope};
use crate::store::writer::Lease;
use crate::store::{RunStore, StoreError, Writer};

/// How often a lock is tried for that others try for at the same moment.
const MAX_ATTEMPTS: u32 = 5;

/// How long a write may continue that nobody waits for any more.
const SETTLE: Duration = Duration::from_secs(1);

/// How often is looked whether an owner that is to stop has stopped.
const LOOK: Duration = Duration::from_millis(500);

/// How often a lock is renewed, and a takeover looked for, within a lease.
const RENEWALS: u32 = 12;

/// The share of a lease that must be left when something is published.
const MARGIN: u32 = 4;

/// How a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// What is to be kept from others.
    pub scope: LockScope,
    /// How long the owner may be silent before others take over.
    pub lease: Duration,
    /// Take over from those who are alive, too.
    pub break_existing: bool,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            scope: LockScope::Run,
            lease: Duration::from_secs(60),
            break_existing: false,
        }
    }
}

/// A lock that is held, as long as [`Self::keep`] is polled and has not ended.
///
/// Whoever takes a lock creates its object first, and looks for others after; whoever renews one writes it first, and
/// looks for others after. So of two at least one sees the other, and gives way.
///
/// A lock is taken over when its owner has provably died (same boot, same process namespace, no such process), or after
/// its lease. The lease has passed if it has by the heartbeat and our clock, *and* by the time at which the store says that
/// the lock was written and the store's own clock: a clock that is wrong takes nothing from anybody, it can only make us
/// wait.
///
/// A process that is stopped for longer than its lease, and then continues, publishes nothing before [`Self::keep`] has
/// found out: see [`Writer::permit`]. An owner whose lock is broken while it lives is waited for until it has stopped or
/// its lease is over.
#[derive(Debug)]
pub struct RunLock {
    run: RunStore,
    object: String,
    scope: LockScope,
    record: LockRecord,
    lease: Duration,
    /// When the lease is over unless it is renewed.
    ends: watch::Sender<Instant>,
    /// A renewal is under way, or was when its future was dropped.
    is_writing: AtomicBool,
}

/// A lock that was taken and those that it displaces; an error where others were at it at the same moment, or the store
/// failed in passing.
type Attempt = Result<(RunLock, Vec<FoundLock>), StoreError>;

impl RunLock {
    /// Takes the lock, and takes over from those who overlap and are gone.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another overlaps and lives; else the store failed.
    pub async fn acquire(run: &RunStore, options: LockOptions) -> Result<Self, StoreError> {
        Self::acquire_and_tell(run, options, |_| {}).await
    }

    /// Does as [`Self::acquire`], and tells `tell` of a living owner whose lock is broken and who is waited for.
    ///
    /// # Errors
    /// As for [`Self::acquire`].
    pub async fn acquire_and_tell(
        run: &RunStore,
        options: LockOptions,
        tell: impl Fn(String),
    ) -> Result<Self, StoreError> {
        let mut record = LockRecord::new(options.lease, Utc::now());
        let mut attempts = 1;
        loop {
            match Self::attempt(run, options, &mut record).await? {
                Ok((lock, displaced)) => {
                    lock.wait_for(displaced, tell).await?;
                    return Ok(lock);
                }
                Err(_) if attempts < MAX_ATTEMPTS => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Lists every lock of a run, held or left behind, for people to see.
    pub async fn holders(run: &RunStore) -> Result<Vec<LockHolder>, StoreError> {
        let mut locks = directory::read(run, directory::list(run).await?).await?;
        locks.sort_by_key(|(entry, _)| entry.object());
        let now = Utc::now();
        let holder = |(entry, record): &FoundLock| LockHolder::new(entry.scope, record, now);
        Ok(locks.iter().map(holder).collect())
    }

    /// Renews the lock as long as it is polled, to be polled beside the work. Ends only when the lock is lost, with
    /// [`StoreError::LockLost`]: another took it over, it was deleted, or the store took no renewal for a whole lease. The
    /// work must stop then.
    pub async fn keep(&self) -> StoreError {
        self.keep_every(self.interval()).await
    }

    fn interval(&self) -> Duration {
        (self.lease / RENEWALS).max(Duration::from_millis(1))
    }

    /// Makes a writer of the owner, of an epoch that no other writer of the run has or had.
    pub async fn writer(&self) -> Result<Writer, StoreError> {
        let epoch = directory::begin_epoch(&self.run, &self.record).await?;
        let lease = Lease {
            ends: self.ends.subscribe(),
            margin: self.lease / MARGIN,
        };
        Ok(Writer::new(epoch, self.scope, lease))
    }

    pub(super) async fn keep_every(&self, interval: Duration) -> StoreError {
        let mut failure: Option<String> = None;
        let mut end = Instant::now() + self.lease;
        let mut next = Instant::now() + interval;
        loop {
            tokio::time::sleep_until(next).await;
            let began = Instant::now();
            let patience = match failure.take() {
                // Also after a long stop: if nobody took it over, it is still ours.
                None => interval,
                Some(cause) if began >= end => {
                    let lease = humantime::format_duration(self.lease);
                    return self.lost(format!("it could not be renewed for {lease}: {cause}"));
                }
                Some(_) => interval.min(end - began),
            };
            match tokio::time::timeout(patience, self.renew()).await {
                Ok(Ok(None)) => {
                    end = began + self.lease;
                    self.ends.send_replace(end);
                    next = began + interval;
                    continue;
                }
                Ok(Ok(Some(why))) => return self.lost(why),
                Ok(Err(error)) => failure = Some(error.to_string()),
                Err(_) => failure = Some("the store does not answer".to_owned()),
            }
            next = (began + interval).min(end);
        }
    }

    /// Gives the lock back, when `writer` has nothing under way any more. If the store fails, its lease ends it.
    pub async fn release_after(self, writer: Arc<Writer>) {
        // Longer than its lease nobody waits for it.
        let _ = tokio::time::timeout(self.lease, writer.quiet()).await;
        self.release().await;
    }

    /// Gives the lock back. If the store fails, its lease ends it.
    pub async fn release(self) {
        if self.is_writing.load(Ordering::Relaxed) {
            // What was under way when `keep` was dropped must not bring the object back.
            tokio::time::sleep(SETTLE).await;
        }
        self.withdraw().await;
    }

    async fn attempt(
        run: &RunStore,
        options: LockOptions,
        record: &mut LockRecord,
    ) -> Result<Attempt, StoreError> {
        let LockOptions {
            scope,
            lease,
            break_existing,
        } = options;
        let (now, ends) = (Utc::now(), Instant::now() + lease);
        let listed = directory::list(run).await?;
        let same_scope = listed.iter().filter(|entry| entry.scope == scope);
        let last = same_scope.map(|entry| entry.number).max();
        let object = directory::object(scope, last.unwrap_or_default().saturating_add(1));
        let found = overlapping(run, listed, scope).await?;
        // A write of ours that was given up may have been done since.
        let (own, displaced): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|(_, found)| found.owner == record.owner);
        for (entry, _) in own {
            directory::remove(run, &entry.object()).await?;
        }
        if !break_existing
            && let Some((entry, found, silent)) = living(run, &displaced, &record.owner).await?
        {
            return Err(locked(run, entry.scope, found, silent));
        }
        record.displaces = displaced
            .iter()
            .map(|(_, found)| found.owner.clone())
            .collect();
        record.acquired_at = now;
        record.heartbeat_at = now;

        let created = directory::create(run, &object, record).await;
        // A failure may only be one of the answer, and what is there already may be our own: the client sends a write
        // again whose answer was lost.
        if !matches!(created, Ok(true)) {
            let found = directory::record(run, &object, now).await?;
            let found = found.unwrap_or_else(|| LockRecord::unreadable(now));
            match created {
                _ if found.owner == record.owner => {}
                Err(error @ StoreError::NoAnswer { .. }) => return Err(error),
                Err(error) => return Ok(Err(error)),
                Ok(_) => {
                    let age = found.heartbeat_age(now);
                    return Ok(Err(locked(run, scope, &found, age)));
                }
            }
        }
        let lock = Self {
            run: run.clone(),
            object,
            scope,
            record: record.clone(),
            lease,
            ends: watch::Sender::new(ends),
            is_writing: AtomicBool::new(false),
        };
        let in_the_way = match lock.contender(scope, &displaced, break_existing).await {
            Ok(None) => return Ok(Ok((lock, displaced))),
            Ok(Some(contender)) => Ok(Err(contender)),
            Err(error) => Err(error),
        };
        lock.withdraw().await;
        in_the_way
    }

    /// Waits until those whose locks were broken have stopped, and removes the locks of the dead.
    async fn wait_for(
        &self,
        mut displaced: Vec<FoundLock>,
        tell: impl Fn(String),
    ) -> Result<(), StoreError> {
        let mut renewed = Instant::now();
        let mut is_told = false;
        loop {
            let living = living(&self.run, &displaced, &self.record.owner).await?;
            let Some((entry, found, silent)) = living else {
                for (entry, _) in &displaced {
                    // That we take over from it stands in our own lock: nothing rests on its deletion.
                    let _ = directory::remove(&self.run, &entry.object()).await;
                }
                return Ok(());
            };
            if !is_told {
                is_told = true;
                let holder = LockHolder::new(entry.scope, found, Utc::now());
                let left = found.lease().saturating_sub(silent).as_secs();
                tell(format!(
                    "the lock of {} is broken: waiting until {holder} has stopped, or for {left} s at most",
                    self.run.display("")
                ));
            }
            tokio::time::sleep(LOOK.min(self.interval())).await;
            if renewed.elapsed() >= self.interval() {
                let began = Instant::now();
                if let Some(why) = self.renew().await? {
                    return Err(self.lost(why));
                }
                self.ends.send_replace(began + self.lease);
                renewed = began;
            }
            // Who has stopped has removed its lock. One that was renewed meanwhile is alive.
            let mut still = directory::list(&self.run).await?;
            still.retain(|entry| {
                displaced
                    .iter()
                    .any(|(was, _)| was.object() == entry.object())
            });
            let mut still = directory::read(&self.run, still).await?;
            still.retain(|(_, found)| displaced.iter().any(|(_, was)| was.owner == found.owner));
            displaced = still;
        }
    }

    /// Looks, after the lock was created, who is in the way beside those whom it says that it displaces.
    async fn contender(
        &self,
        scope: LockScope,
        displaced: &[FoundLock],
        break_existing: bool,
    ) -> Result<Option<StoreError>, StoreError> {
        let now = Utc::now();
        let listed = directory::list(&self.run).await?;
        if !listed.iter().any(|entry| entry.object() == self.object) {
            let unknown = LockRecord::unreadable(now);
            return Ok(Some(locked(&self.run, scope, &unknown, Duration::ZERO)));
        }
        for (entry, found) in overlapping(&self.run, listed, scope).await? {
            let is_displaced = displaced.iter().any(|(before, was)| {
                before.object() == entry.object()
                    && was.owner == found.owner
                    // Else it has come to life again.
                    && (break_existing || was.heartbeat_at == found.heartbeat_at)
            });
            if found.owner != self.record.owner && !is_displaced {
                let age = found.heartbeat_age(now);
                return Ok(Some(locked(&self.run, entry.scope, &found, age)));
            }
        }
        Ok(None)
    }

    /// Writes the lock anew. Says why if it is not ours any more.
    pub(super) async fn renew(&self) -> Result<Option<String>, StoreError> {
        let ours = self.is_ours().await?;
        if ours {
            let mut record = self.record.clone();
            record.heartbeat_at = Utc::now();
            self.is_writing.store(true, Ordering::Relaxed);
            let written = directory::renew(&self.run, &self.object, &record).await;
            self.is_writing.store(false, Ordering::Relaxed);
            written?;
        }
        let listed = directory::list(&self.run).await?;
        let locks = overlapping(&self.run, listed, self.scope).await?;
        let taken = locks.iter().find(|(_, found)| self.yields_to(found));
        Ok(match taken {
            // Ours stays until it is released: its taker waits for that.
            Some((entry, found)) => {
                let taker = LockHolder::new(entry.scope, found, Utc::now());
                Some(format!("it was taken over by {taker}"))
            }
            None if ours => None,
            None => Some(format!("{} has gone", self.run.display(&self.object))),
        })
    }

    /// Whether another's lock that overlaps says that ours is over.
    fn yields_to(&self, other: &LockRecord) -> bool {
        let ours = &self.record;
        // Whoever has renewed its lock has found nobody in its way, so ours was gone then. One that is as new as on its
        // creation may yet give way to ours.
        let is_settled = other.heartbeat_at > other.acquired_at;
        let is_later = (other.acquired_at, &other.owner) > (ours.acquired_at, &ours.owner);
        other.displaces.contains(&ours.owner)
            || is_settled && is_later && !ours.displaces.contains(&other.owner)
    }

    fn lost(&self, why: String) -> StoreError {
        StoreError::LockLost {
            place: self.run.display(""),
            why,
        }
    }

    async fn is_ours(&self) -> Result<bool, StoreError> {
        let found = directory::record(&self.run, &self.object, Utc::now()).await?;
        Ok(found.is_some_and(|found| found.owner == self.record.owner))
    }

    /// Deletes the lock, if it is still ours. A failure leaves it to its lease.
    async fn withdraw(&self) {
        if self.is_ours().await.is_ok_and(|is_ours| is_ours) {
            let _ = directory::remove(&self.run, &self.object).await;
        }
    }
}

async fn overlapping(
    run: &RunStore,
    listed: Vec<LockEntry>,
    scope: LockScope,
) -> Result<Vec<FoundLock>, StoreError> {
    let overlaps = |entry: &LockEntry| entry.scope.overlaps(scope);
    directory::read(run, listed.into_iter().filter(overlaps)).await
}

/// Finds a lock that may still have its owner, and how long that was not heard of.
async fn living<'a>(
    run: &RunStore,
    locks: &'a [FoundLock],
    owner: &str,
) -> Result<Option<(&'a LockEntry, &'a LockRecord, Duration)>, StoreError> {
    let now = Utc::now();
    let mut store_now: Option<DateTime<Utc>> = None;
    for (entry, found) in locks {
        if found.process.has_died() {
            continue;
        }
        let mut silent = found.heartbeat_age(now);
        if silent > found.lease() {
            let store_now = match store_now {
                Some(known) => known,
                None => *store_now.insert(directory::clock(run, owner).await?),
            };
            silent = age(entry.modified, store_now);
        }
        if silent <= found.lease() {
            return Ok(Some((entry, found, silent)));
        }
    }
    Ok(None)
}

fn locked(run: &RunStore, scope: LockScope, found: &LockRecord, silent: Duration) -> StoreError {
    StoreError::Locked {
        place: run.display(""),
        holder: Box::new(LockHolder::new(scope, found, Utc::now())),
        silent: Duration::from_secs(silent.as_secs()),
    }
}
