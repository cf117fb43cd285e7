use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::config::GroupFailure;
use crate::retry::{Failure, FailureClass};
use crate::turn::RolloutKey;

/// The rollouts in flight, by task. A task is known as long as one of its rollouts is in flight.
#[derive(Debug)]
pub struct Siblings {
    policy: GroupFailure,
    /// What the rollouts in flight of one task may take together.
    timeout: Option<Duration>,
    groups: Mutex<HashMap<i64, Group>>,
}

#[derive(Debug)]
struct Group {
    began: Instant,
    members: usize,
    /// Why all of them fail.
    failure: watch::Sender<Option<Failure>>,
}

/// A rollout in flight.
#[derive(Debug)]
struct Member<'a> {
    siblings: &'a Siblings,
    task_index: i64,
    began: Instant,
    failure: watch::Receiver<Option<Failure>>,
}

impl Siblings {
    /// Nobody is in flight.
    pub fn new(policy: GroupFailure, timeout: Option<Duration>) -> Self {
        Self {
            policy,
            timeout,
            groups: Mutex::default(),
        }
    }

    /// Waits for a rollout, together with its siblings.
    ///
    /// # Errors
    /// Its own failure, that of a sibling which takes all with it, or the end of the time that all of
    /// them have.
    pub async fn run<T>(
        &self,
        key: RolloutKey,
        rollout: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let RolloutKey {
            task_index,
            rollout_index,
            ..
        } = key;
        let member = self.enter(task_index, Instant::now());
        let mut failure = member.failure.clone();
        let deadline = self.timeout.map(|limit| (member.began + limit, limit));
        let together = async {
            tokio::select! {
                biased;
                result = rollout => result.inspect_err(|failure| member.failed(rollout_index, failure)),
                failure = taken_along(&mut failure) => Err(failure),
            }
        };
        let result = match deadline {
            Some((deadline, limit)) => timeout_at(deadline, together).await.map_err(|_| limit),
            None => Ok(together.await),
        };
        result.unwrap_or_else(|limit| {
            // A sibling that comes now begins anew.
            self.forget(&member);
            let limit = humantime::format_duration(limit);
            let why = format!(
                "the rollouts of task {task_index} were not done within {limit} (group_timeout)"
            );
            Err(Failure::new(FailureClass::Timeout, why))
        })
    }

    fn enter(&self, task_index: i64, now: Instant) -> Member<'_> {
        let mut groups = self.groups();
        let group = groups.entry(task_index).or_insert_with(|| Group {
            began: now,
            members: 0,
            failure: watch::Sender::new(None),
        });
        group.members += 1;
        Member {
            siblings: self,
            task_index,
            began: group.began,
            failure: group.failure.subscribe(),
        }
    }

    fn forget(&self, member: &Member<'_>) -> Option<Group> {
        let mut groups = self.groups();
        let of_member = groups.get(&member.task_index)?;
        let is_same = of_member.failure.subscribe().same_channel(&member.failure);
        is_same.then(|| groups.remove(&member.task_index)).flatten()
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<i64, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member<'_> {
    fn failed(&self, rollout_index: i64, failure: &Failure) {
        if failure.class.leaves_pending() || self.siblings.policy != GroupFailure::All {
            return;
        }
        let Some(group) = self.siblings.forget(self) else {
            return;
        };
        let (task_index, why) = (self.task_index, &failure.message);
        let message =
            format!("rollout {rollout_index} of task {task_index} failed (group = all): {why}");
        group.failure.send_replace(Some(Failure {
            message,
            failure_terminal: false,
            answer: None,
            ..failure.clone()
        }));
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let mut groups = self.siblings.groups();
        let Some(group) = groups.get_mut(&self.task_index) else {
            return;
        };
        if !group.failure.subscribe().same_channel(&self.failure) {
            return;
        }
        group.members -= 1;
        if group.members == 0 {
            groups.remove(&self.task_index);
        }
    }
}

/// The failure of a sibling that takes all with it. Pending until there is one.
async fn taken_along(failure: &mut watch::Receiver<Option<Failure>>) -> Failure {
    let seen = failure.wait_for(Option::is_some).await;
    match seen.ok().and_then(|failure| failure.clone()) {
        Some(failure) => failure,
        // The group was forgotten without one.
        None => std::future::pending().await,
    }
}
