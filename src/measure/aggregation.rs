//! Measuring as a whole: an [`Aggregation`] of runs or files, and [`Live`], which measures a run while it is collected.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::prelude::SessionContext;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::families::AGENT_STATISTICS;
use super::measurement::{Measurement, measure};
use super::report::{AgentMetric, MetricsReport};
use super::source::{Source, by_rules};
use crate::error::Error;
use crate::gym::GymChoice;
use crate::import::{
    AgentServers, Import, ImportError, Imported, RolloutFiles, RolloutOptions, is_shard,
    is_stamped, merge,
};
use crate::python::glob;
use crate::session;
use crate::store::{RunRecord, RunStore};

/// What metrics are computed over.
#[derive(Debug, Clone)]
pub enum AggregationSource {
    /// Runs, as if they were one.
    Runs(Vec<RunStore>),
    /// Files of rollouts of NeMo Gym.
    Files {
        /// Paths and globs, each a list with commas.
        globs: Vec<String>,
        /// Where the rows of all files go, sorted by task and rollout.
        merged: Option<PathBuf>,
    },
}

/// Metrics over the union of runs, with no merging step before.
#[derive(Debug, Clone)]
pub struct Aggregation {
    /// What is measured.
    pub source: AggregationSource,
    /// Where `metrics/` and `aggregate_metrics.json` go.
    pub output: RunStore,
    /// The version of NeMo Gym by whose rules it is measured.
    pub gym: GymChoice,
    /// Which metrics, and how.
    pub measurement: Measurement,
}

impl Aggregation {
    /// Computes and writes.
    ///
    /// # Errors
    /// The source can't be read, a metric fails, or the output can't be written.
    pub async fn run(mut self) -> Result<MetricsReport, Error> {
        let mut notes = Vec::new();
        let mut report = match &self.source {
            AggregationSource::Runs(runs) => {
                let (runs, rules) = by_rules(runs, self.gym).await?;
                self.measurement.rules = rules;
                check_zeros(&self.measurement, "the runs follow those of 0.5")?;
                for run in runs.iter().filter(|_| rules.servers) {
                    let record = RunRecord::load(run).await?;
                    let servers = record.into_iter().map(|record| record.environment_servers);
                    self.measurement.servers.extend(servers.flatten());
                }
                measure(&Source::Runs(&runs), Some(&self.output), &self.measurement).await?
            }
            AggregationSource::Files { globs, merged } => {
                let (session, imported) =
                    files(globs, merged.as_ref(), self.gym, &mut self.measurement).await?;
                if imported.without_agent > 0 {
                    notes.push(format!(
                        "{} of {} rollouts name no agent (agent_ref), and are in no metric",
                        imported.without_agent, imported.num_rollouts
                    ));
                }
                self.measurement.labels = imported.labels;
                self.measurement.servers = imported.servers;
                self.measurement.is_stamped = true;
                notes.extend(imported.notes);
                let source = Source::Tables(&session);
                measure(&source, Some(&self.output), &self.measurement).await?
            }
        };
        notes.append(&mut report.notes);
        report.notes = notes;
        Ok(report)
    }
}

fn check_zeros(measurement: &Measurement, why: &str) -> Result<(), Error> {
    if measurement.zeros.any() && !measurement.rules.servers {
        return Err(Error::Usage(format!(
            "what is not there is counted as zero by the rules of NeMo Gym 0.7 alone; {why}: add --gym 0.7"
        )));
    }
    Ok(())
}

async fn files(
    globs: &[String],
    merged: Option<&PathBuf>,
    gym: GymChoice,
    measurement: &mut Measurement,
) -> Result<(SessionContext, Imported), Error> {
    let shown: Vec<String> = globs
        .iter()
        .flat_map(|pattern| glob(pattern, Path::new(".")))
        .filter(|path| is_shard(path))
        .collect();
    if shown.is_empty() {
        let globs = globs.join(",");
        return Err(Error::Usage(format!(
            "No shards matched input_glob='{globs}'"
        )));
    }
    let files: Vec<(PathBuf, String)> = shown
        .into_iter()
        .map(|path| (PathBuf::from(&path), path))
        .collect();
    let mut is_new = false;
    for (path, _) in &files {
        is_new |= is_stamped(path)?;
    }
    measurement.rules = gym.rules(|| is_new);
    check_zeros(measurement, "the files bear none of its stamps")?;
    let session = session::gathering(measurement.memory)?;
    let mut import = Import::new()?;
    let options = RolloutOptions {
        files: RolloutFiles::Shards,
        rules: measurement.rules,
        servers: AgentServers::new(),
        zeros: measurement.zeros.clone(),
    };
    import.rollouts(&files, &options)?;
    let imported = import.register(&session).await?;
    if let Some(path) = merged {
        let parent = path.parent().map(std::fs::create_dir_all).transpose();
        let file = parent.and_then(|_| File::create(path));
        let file = file.map_err(ImportError::Write)?;
        merge(&session, &files, &mut BufWriter::new(file)).await?;
    }
    imported.check_aggregate(&session, true).await?;
    Ok((session, imported))
}

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
        // A user's folder may lack a family; the others are shown.
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
                if let Ok(measured) = measure(&source, None, &measurement).await
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
