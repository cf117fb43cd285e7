use std::path::PathBuf;
use std::sync::Arc;

use crate::store::{TableSink, Writer};
use crate::tally::Tally;

/// What [`LandExec`](super::LandExec) needs that is not in the plan: it travels as an extension of
/// the session's configuration.
#[derive(Debug)]
pub struct LandContext {
    /// Where rows become parts of tables.
    pub sink: Arc<dyn TableSink>,
    /// Local directory of the journal.
    pub journal: PathBuf,
    /// Who writes.
    pub writer: Arc<Writer>,
    /// The sweep's counts.
    pub tally: Arc<Tally>,
}
