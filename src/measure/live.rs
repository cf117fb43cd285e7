use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::measurement::{self, Measurement, Source};
use crate::error::Error;
use crate::measure::{AGENT_STATISTICS, AgentMetric};
use crate::store::RunStore;

/// The metrics of a sweep while it runs, the newest ones.
pub type LiveMetrics = watch::Receiver<Arc<[AgentMetric]>>;

/// What is measured while a sweep runs.
const FAMILIES: [&str; 3] = [AGENT_STATISTICS, "spread", "pass_at_k"];

/// Measuring takes at most this share of the time: a look waits as many times as long as the last one took.
const PAUSES: u32 = 20;

/// Measures a run again and again, from what has landed and what its journal holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Live {
    _task: JoinSet<()>,
}

impl Live {
    /// Begins; a look comes `every` so often, or less where looks take long.
    pub(crate) fn start(
        run: RunStore,
        mut measurement: Measurement,
        every: Duration,
        metrics: watch::Sender<Arc<[AgentMetric]>>,
    ) -> Result<Self, Error> {
        // A family that was replaced may be missing; what is there is shown.
        let families: Vec<&str> = FAMILIES
            .into_iter()
            .filter(|name| measurement.queries.get(name).is_ok())
            .collect();
        measurement.queries = measurement.queries.only(&families)?;
        // Standard errors are shown, intervals are not.
        measurement
            .parameters
            .insert("resamples".into(), 1_i64.into());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut pause = every;
            loop {
                tokio::time::sleep(pause).await;
                let began = Instant::now();
                let source = Source::Runs(std::slice::from_ref(&run));
                // What can't be measured now, since a part was just being published or the disk is full,
                // can be in a while.
                if let Ok(measured) = measurement::look(&source, &measurement).await
                    && metrics.send(measured.metrics.into()).is_err()
                {
                    break;
                }
                pause = every.max(began.elapsed() * PAUSES);
            }
        });
        Ok(Self { _task: task })
    }
}
