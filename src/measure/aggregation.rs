//! Computes metrics: an [`Aggregation`] those of runs or files, [`Live`] those of a run while it is collected.

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
        /// Paths and globs; each entry can be a comma-separated list.
        globs: Vec<String>,
        /// The file to which the rows of all files are written, sorted by task and rollout.
        merged: Option<PathBuf>,
    },
}

/// Metrics over the union of runs or of files, which need not be merged first.
#[derive(Debug, Clone)]
pub struct Aggregation {
    /// The runs or files to measure.
    pub source: AggregationSource,
    /// The store to which `metrics/` and `aggregate_metrics.json` are written.
    pub output: RunStore,
    /// The version of NeMo Gym whose rules apply.
    pub gym: GymChoice,
    /// Which metrics are computed, and how.
    pub measurement: Measurement,
}

impl Aggregation {
    /// Computes the metrics and writes them.
    ///
    /// # Errors
    /// The source can't be read, a metric fails, or the output can't be written.
    pub async fn run(mut self) -> Result<MetricsReport, Error> {
        let mut notes = Vec::new();
        let mut report = match &self.source {
            AggregationSource::Runs(runs) => {
                let (runs, rules) = by_rules(runs, self.gym).await?;
                self.measurement.rules = rules;
                check_zeros(&self.measurement, "the runs follow the rules of 0.5")?;
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
                        "{} of {} rollouts name no agent (agent_ref), and are left out of all metrics",
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
            "only the rules of NeMo Gym 0.7 count missing or failed rollouts as zero; {why}: add --gym 0.7"
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
    check_zeros(measurement, "the files lack the stamps of 0.7")?;
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

/// The latest metrics of a sweep while it runs.
pub type LiveMetrics = watch::Receiver<Arc<[AgentMetric]>>;

/// The families that are computed while a sweep runs.
const FAMILIES: [&str; 3] = [AGENT_STATISTICS, "spread", "pass_at_k"];

/// The pause between measurements, as a multiple of the last one's duration: they take less than 1/20 of the time.
const PAUSES: u32 = 20;

/// Measures a run repeatedly, from its Parquet parts and its journal, until it is dropped.
#[derive(Debug)]
pub(crate) struct Live {
    _task: JoinSet<()>,
}

impl Live {
    /// Starts to measure at intervals of `every`, or longer ones if a measurement takes long.
    pub(crate) fn start(
        run: RunStore,
        mut measurement: Measurement,
        every: Duration,
        metrics: watch::Sender<Arc<[AgentMetric]>>,
    ) -> Result<Self, Error> {
        // Skips the families that the user's queries lack.
        let families: Vec<&str> = FAMILIES
            .into_iter()
            .filter(|name| measurement.queries.get(name).is_ok())
            .collect();
        measurement.queries = measurement.queries.only(&families)?;
        // Only standard errors are shown, not intervals, so one bootstrap sample is enough.
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
                // A failure may be transient, such as a part that is just being published or a full disk: the next
                // measurement tries again.
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
