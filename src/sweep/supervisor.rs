use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::config::Settings;
use crate::run::{Shutdown, StopReason};
use crate::store::{RunLock, StoreError};

/// Far enough away for a deadline that there is not.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What happens beside a sweep: its lock is kept, and it is ended when its time is up.
pub(super) struct Supervisor {
    deadline: Option<Instant>,
    grace: Duration,
    shutdown: Shutdown,
}

impl Supervisor {
    /// The sweep begins now.
    pub(super) fn new(settings: &Settings, shutdown: Shutdown) -> Self {
        let deadline = settings.deadline.map(|deadline| deadline.duration());
        Self {
            deadline: deadline.and_then(|deadline| Instant::now().checked_add(deadline)),
            grace: settings.grace.duration().min(NEVER),
            shutdown,
        }
    }

    /// Watches over a sweep until it is dropped, or the lock is lost: then somebody else writes, and
    /// this process must not.
    pub(super) async fn watch(&self, lock: &RunLock) -> StoreError {
        tokio::select! {
            lost = lock.keep() => lost,
            never = self.end_in_time() => match never {},
            never = self.cut_off() => match never {},
        }
    }

    async fn end_in_time(&self) -> Infallible {
        if let Some(deadline) = self.deadline {
            sleep_until(deadline).await;
            self.shutdown.stop(StopReason::Deadline);
        }
        pending().await
    }

    async fn cut_off(&self) -> Infallible {
        self.shutdown.cutting_off().await;
        tokio::time::sleep(self.grace).await;
        self.shutdown.abort();
        pending().await
    }
}
