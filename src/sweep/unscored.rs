//! Whether a sweep has anything to be scored when it ends.

use super::prepare::Sweep;
use crate::error::Error;
use crate::expand::AgentCounts;
use crate::import::Zeros;
use crate::measure::zeros;
use crate::report::NothingScored;
use crate::run::StopReason;
use crate::session::{RunTables, measuring};
use crate::store::RunState;

/// Bytes of memory for looking at what failed.
const MEMORY: usize = 32 * 1024 * 1024;

/// Why there is nothing to be scored, where the rules ask for a score: no rollout is done, and none that failed or is
/// missing counts.
pub(super) async fn look(sweep: &Sweep) -> Result<Option<NothingScored>, Error> {
    let dispatched: u64 = sweep.counts.iter().map(AgentCounts::num_pending).sum();
    let counts = sweep.record.rollouts;
    let has_ended = matches!(
        sweep.record.state,
        RunState::Finished | RunState::Incomplete
    );
    if !sweep.rules.needs_score || !has_ended || dispatched == 0 || counts.done > 0 {
        return Ok(None);
    }
    let zeros = zeros::of_settings(&sweep.settings, sweep.rules)?;
    let zeros = Zeros {
        missing: zeros.missing && sweep.settings.aggregate,
        ..zeros
    };
    let session = measuring(MEMORY)?;
    RunTables::look(&sweep.run)
        .await?
        .register(&session)
        .await?;
    let found = zeros::add(&session, &zeros, sweep.rules).await?;
    if found.num_zeros > 0 {
        return Ok(None);
    }
    let mut classes = found.classes;
    let is_drained = sweep.shutdown.reason() == Some(StopReason::DispatchBudget);
    let drained = counts.pending * u64::from(is_drained);
    if drained > 0 {
        *classes.entry("cancelled".to_owned()).or_default() += drained;
    }
    Ok(Some(NothingScored {
        dispatched,
        classes,
        drained,
        place: sweep.run.display(""),
    }))
}
