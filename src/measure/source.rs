//! Opens the tables to measure: a [`Source`], of runs or of a session, becomes two sessions.

use datafusion::common::Result as QueryResult;
use datafusion::prelude::SessionContext;

use super::error::MeasureError;
use crate::error::Error;
use crate::gym::{GYM_07, GymChoice, GymRules};
use crate::schema::TABLES;
use crate::session::{self, RunTables, register_union};
use crate::store::{RunRecord, RunStore};

/// Where the tables come from.
pub(crate) enum Source<'a> {
    /// Runs, read as one.
    Runs(&'a [RunStore]),
    /// A run at one moment.
    Look(&'a RunTables),
    /// The tables of a session, such as those of NeMo Gym's files.
    Tables(&'a SessionContext),
}

/// Two sessions with the same tables. Of a run that is being collected, both hold the same state.
pub(crate) struct Sessions {
    /// Uses all cores and keeps no order of rows: for queries that read all of a run.
    pub(crate) gathering: SessionContext,
    /// Keeps the order of rows, so that sums do not depend on the number of cores.
    pub(crate) measuring: SessionContext,
    /// Whether the tasks of several runs were renumbered.
    pub(crate) is_renumbered: bool,
}

impl Sessions {
    /// Wraps sessions that already have the tables; both may be the same session.
    pub(crate) fn of(gathering: &SessionContext, measuring: &SessionContext) -> Self {
        Self {
            gathering: gathering.clone(),
            measuring: measuring.clone(),
            is_renumbered: false,
        }
    }
}

impl Source<'_> {
    /// Opens the tables. Queries spill to temporary files beyond `memory` bytes.
    pub(crate) async fn open(&self, memory: usize) -> Result<Sessions, MeasureError> {
        let gathering = session::gathering(memory)?;
        let measuring = session::measuring(memory)?;
        let is_renumbered = self.register(&gathering).await?;
        match self {
            Self::Runs(runs) => {
                let stores = &gathering.runtime_env().object_store_registry;
                for run in *runs {
                    // What it knows of the parts holds for both.
                    let store = stores.get_store(run.base())?;
                    measuring.register_object_store(run.base(), store);
                }
                copy_tables(&gathering, &measuring).await?;
            }
            Self::Look(run) => run.register(&measuring).await?,
            Self::Tables(source) => copy_tables(source, &measuring).await?,
        }
        Ok(Sessions {
            gathering,
            measuring,
            is_renumbered,
        })
    }

    /// Registers the tables with a session. Returns whether tasks were renumbered.
    pub(crate) async fn register(&self, session: &SessionContext) -> QueryResult<bool> {
        match self {
            Self::Runs(runs) => register_union(session, runs).await,
            Self::Look(run) => run.register(session).await.map(|()| false),
            Self::Tables(source) => copy_tables(source, session).await.map(|()| false),
        }
    }
}

async fn copy_tables(from: &SessionContext, to: &SessionContext) -> QueryResult<()> {
    for table in TABLES {
        if from.table_exist(table)? {
            let provider = from.table_provider(table).await?;
            to.deregister_table(table)?;
            to.register_table(table, provider)?;
        }
    }
    Ok(())
}

/// Returns the runs with the chosen rules, or each with its own, and the rules by which their metrics are written: the
/// chosen ones, or the newest of the runs.
pub(super) async fn by_rules(
    runs: &[RunStore],
    gym: GymChoice,
) -> Result<(Vec<RunStore>, &'static GymRules), Error> {
    let mut is_new = false;
    for run in runs {
        let run = RunRecord::identify(run).await?;
        is_new |= run.rules() == Some(&GYM_07);
    }
    let rules = gym.rules(|| is_new);
    let runs = match gym {
        GymChoice::Auto => runs.to_vec(),
        GymChoice::Of(rules) => runs.iter().map(|run| run.following(rules)).collect(),
    };
    Ok((runs, rules))
}
