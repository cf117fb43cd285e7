use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::agent::Agents;
use crate::config::SeedField;
use crate::tally::Tally;

/// What [`RunExec`](super::RunExec) needs that is not in the plan: it travels as an extension of
/// the session's configuration.
#[derive(Debug)]
pub struct RunContext {
    /// Whom to ask.
    pub agents: Agents,
    /// Where the rollout index goes as a seed, if anywhere.
    pub seed: Option<SeedField>,
    /// Rows that may be queued beyond those in flight.
    pub lookahead: usize,
    /// The sweep's counts.
    pub tally: Arc<Tally>,
    /// How to end early.
    pub shutdown: Shutdown,
}

/// The two ways to end a sweep early.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Shutdown {
    /// Nothing more is sent; what is in flight is waited for.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// What is in flight is dropped as well, and owed again.
    pub fn abort(&self) {
        self.stop.cancel();
        self.abort.cancel();
    }

    /// [`Self::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for [`Self::stop`].
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Waits for [`Self::abort`].
    pub async fn aborting(&self) {
        self.abort.cancelled().await;
    }
}
