use std::fmt;

use serde::{Deserialize, Serialize};

/// What an executor of a cluster does for a sweep.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorProgress {
    /// Its name.
    pub name: String,
    /// Shards that it works on.
    pub shards: u64,
    /// Its calls in flight.
    pub in_flight: usize,
    /// Rollouts that were answered there and are safe.
    pub done: u64,
    /// Rollouts that failed there.
    pub failed: u64,
    /// Whether nothing was heard of it lately, though it had not ended its shards.
    pub is_silent: bool,
    /// Whether it has withdrawn: it does not work on the sweep.
    pub has_withdrawn: bool,
}

impl fmt::Display for ExecutorProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            shards,
            in_flight,
            done,
            failed,
            is_silent,
            has_withdrawn,
        } = self;
        write!(f, "executor {name}: ")?;
        if *has_withdrawn {
            f.write_str("has withdrawn, ")?;
        } else if *is_silent {
            f.write_str("is silent, ")?;
        } else {
            let noun = if *shards == 1 { "shard" } else { "shards" };
            write!(f, "{shards} {noun}, {in_flight} in flight, ")?;
        }
        write!(f, "{done} done")?;
        if *failed > 0 {
            write!(f, ", {failed} failed")?;
        }
        Ok(())
    }
}
