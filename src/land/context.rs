use std::sync::Arc;

use crate::store::RunStore;
use crate::tally::Tally;

/// What [`LandExec`](super::LandExec) needs that is not in the plan: it travels as an extension of
/// the session's configuration.
#[derive(Debug)]
pub struct LandContext {
    /// Where the run is kept.
    pub run: RunStore,
    /// What the names of the journal's segments begin with, for this process alone.
    pub segments: String,
    /// The sweep's counts.
    pub tally: Arc<Tally>,
}
