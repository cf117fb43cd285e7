use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::call::RolloutKey;
use crate::config::GroupFailure;
use crate::retry::{Failure, FailureClass};

/// The rollouts in flight, grouped by task. A group exists as long as one of its rollouts is in flight.
#[derive(Debug)]
pub struct TaskGroups {
    policy: GroupFailure,
    /// The longest time for all rollouts in flight of one task together.
    timeout: Option<Duration>,
    groups: Mutex<HashMap<i64, TaskGroup>>,
}

#[derive(Debug)]
struct TaskGroup {
    began: Instant,
    members: usize,
    /// The failure that all rollouts of the group share.
    failure: watch::Sender<Option<Failure>>,
}

/// A rollout in flight.
#[derive(Debug)]
struct GroupMember<'a> {
    groups: &'a TaskGroups,
    task_index: i64,
    began: Instant,
    failure: watch::Receiver<Option<Failure>>,
}

impl TaskGroups {
    /// Creates a set without rollouts.
    pub fn new(policy: GroupFailure, timeout: Option<Duration>) -> Self {
        Self {
            policy,
            timeout,
            groups: Mutex::default(),
        }
    }

    /// Runs a rollout as a member of the group of its task.
    ///
    /// # Errors
    /// The rollout failed, another rollout failed and fails the group, or the group timed out.
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
            // The next rollout of the task begins a new group.
            self.forget(&member);
            let limit = humantime::format_duration(limit);
            let why = format!(
                "the rollouts of task {task_index} were not done within {limit} (group_timeout)"
            );
            Err(Failure::new(FailureClass::Timeout, why))
        })
    }

    fn enter(&self, task_index: i64, now: Instant) -> GroupMember<'_> {
        let mut groups = self.groups();
        let group = groups.entry(task_index).or_insert_with(|| TaskGroup {
            began: now,
            members: 0,
            failure: watch::Sender::new(None),
        });
        group.members += 1;
        GroupMember {
            groups: self,
            task_index,
            began: group.began,
            failure: group.failure.subscribe(),
        }
    }

    fn forget(&self, member: &GroupMember<'_>) -> Option<TaskGroup> {
        let mut groups = self.groups();
        let of_member = groups.get(&member.task_index)?;
        let is_same = of_member.failure.subscribe().same_channel(&member.failure);
        is_same.then(|| groups.remove(&member.task_index)).flatten()
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<i64, TaskGroup>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupMember<'_> {
    fn failed(&self, rollout_index: i64, failure: &Failure) {
        if failure.class.leaves_pending() || self.groups.policy != GroupFailure::All {
            return;
        }
        let Some(group) = self.groups.forget(self) else {
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

impl Drop for GroupMember<'_> {
    fn drop(&mut self) {
        let mut groups = self.groups.groups();
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

/// Waits for the failure that the whole group shares.
async fn taken_along(failure: &mut watch::Receiver<Option<Failure>>) -> Failure {
    let seen = failure.wait_for(Option::is_some).await;
    match seen.ok().and_then(|failure| failure.clone()) {
        Some(failure) => failure,
        // The group ended without one.
        None => std::future::pending().await,
    }
}
