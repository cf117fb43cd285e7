use arrow::record_batch::RecordBatch;

use crate::measure::{AGENT_STATISTICS, COVERAGE, MeasureError, counts, floats, texts};
use crate::report::{AgentCoverage, AgentMetric, PassAt};

const SPREAD: &str = "spread";
const PASS_AT_K: &str = "pass_at_k";

/// What was measured, and where it stands.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) coverage: Vec<AgentCoverage>,
    pub(super) metrics: Vec<AgentMetric>,
    pub(super) written: Vec<String>,
    /// What is to be known of the numbers.
    pub(super) notes: Vec<String>,
    /// Tasks of several runs had to be numbered anew.
    pub(super) is_renumbered: bool,
    stderrs: Vec<(String, String, Option<f64>)>,
    passes: Vec<Pass>,
}

/// A row of `pass_at_k`.
#[derive(Debug)]
struct Pass {
    agent_name: String,
    metric: String,
    num_tasks: i64,
    pass_at: PassAt,
}

impl Measured {
    /// The families that are shown.
    pub(super) const FAMILIES: [&str; 4] = [AGENT_STATISTICS, COVERAGE, SPREAD, PASS_AT_K];

    /// Takes what is shown from the rows of a family. Of a family that a user has replaced by one of
    /// other columns nothing is shown, but for the statistics.
    pub(super) fn look(&mut self, family: &str, batch: &RecordBatch) -> Result<(), MeasureError> {
        match family {
            AGENT_STATISTICS => self.metrics.extend(agent_metrics(batch)?),
            COVERAGE => self.coverage.extend(coverage(batch).unwrap_or_default()),
            SPREAD => self.stderrs.extend(stderrs(batch).unwrap_or_default()),
            PASS_AT_K => self.passes.extend(passes(batch).unwrap_or_default()),
            _ => {}
        }
        Ok(())
    }

    /// Puts what several families say of a metric together.
    pub(super) fn join(&mut self) {
        for metric in &mut self.metrics {
            let is_it =
                |agent: &str, name: &str| agent == metric.agent_name && name == metric.metric;
            let stderr = self
                .stderrs
                .iter()
                .find(|(agent, name, _)| is_it(agent, name));
            metric.stderr = stderr.and_then(|(_, _, stderr)| *stderr);
            // Of k that only some tasks have rollouts for, nothing is said: these are easier ones, or faster.
            let passes = self.passes.iter();
            let passes = passes.filter(|pass| is_it(&pass.agent_name, &pass.metric));
            let most = passes.clone().map(|pass| pass.num_tasks).max();
            let of_all = passes.filter(|pass| Some(pass.num_tasks) == most);
            let largest = of_all.max_by_key(|pass| pass.pass_at.k);
            metric.pass_at = largest.map(|pass| pass.pass_at);
        }
    }
}

fn agent_metrics(batch: &RecordBatch) -> Result<Vec<AgentMetric>, MeasureError> {
    let mut names = texts(batch, "metric")?.into_iter();
    let mut counts = counts(batch, "count")?.into_iter();
    let mut means = floats(batch, "mean")?.into_iter();
    let mut stds = floats(batch, "std")?.into_iter();
    let mut mins = floats(batch, "min")?.into_iter();
    let mut medians = floats(batch, "median")?.into_iter();
    let mut maxs = floats(batch, "max")?.into_iter();
    let agents = texts(batch, "agent_name")?.into_iter();
    let metrics = agents.map(|agent_name| AgentMetric {
        agent_name,
        metric: names.next().unwrap_or_default(),
        count: counts.next().unwrap_or_default().unsigned_abs(),
        mean: means.next().flatten(),
        stderr: None,
        std: stds.next().flatten(),
        min: mins.next().flatten(),
        median: medians.next().flatten(),
        max: maxs.next().flatten(),
        pass_at: None,
    });
    Ok(metrics.collect())
}

fn coverage(batch: &RecordBatch) -> Result<Vec<AgentCoverage>, MeasureError> {
    let mut planned = counts(batch, "planned")?.into_iter();
    let mut done = counts(batch, "done")?.into_iter();
    let mut failed = counts(batch, "failed")?.into_iter();
    let mut pending = counts(batch, "pending")?.into_iter();
    // Metrics of earlier versions have no such column.
    let mut masked = counts(batch, "masked").unwrap_or_default().into_iter();
    let agents = texts(batch, "agent_name")?.into_iter();
    let coverage = agents.map(|agent_name| AgentCoverage {
        agent_name,
        planned: planned.next().unwrap_or_default(),
        done: done.next().unwrap_or_default(),
        failed: failed.next().unwrap_or_default(),
        pending: pending.next().unwrap_or_default(),
        masked: masked.next().unwrap_or_default(),
    });
    Ok(coverage.collect())
}

fn stderrs(batch: &RecordBatch) -> Result<Vec<(String, String, Option<f64>)>, MeasureError> {
    let agents = texts(batch, "agent_name")?.into_iter();
    let rows = agents
        .zip(texts(batch, "metric")?)
        .zip(floats(batch, "stderr")?);
    Ok(rows
        .map(|((agent, metric), stderr)| (agent, metric, stderr))
        .collect())
}

fn passes(batch: &RecordBatch) -> Result<Vec<Pass>, MeasureError> {
    let mut ks = counts(batch, "k")?.into_iter();
    let mut num_tasks = counts(batch, "num_tasks")?.into_iter();
    let mut pass_at = floats(batch, "pass_at_k")?.into_iter();
    let mut pass_hat = floats(batch, "pass_hat_k")?.into_iter();
    let agents = texts(batch, "agent_name")?.into_iter();
    let rows = agents
        .zip(texts(batch, "metric")?)
        .filter_map(|(agent_name, metric)| {
            let (k, num_tasks) = (ks.next()?, num_tasks.next()?);
            let (pass_at_k, pass_hat_k) = (pass_at.next()?, pass_hat.next()?);
            Some(Pass {
                agent_name,
                metric,
                num_tasks,
                pass_at: PassAt {
                    k,
                    pass_at_k: pass_at_k?,
                    pass_hat_k: pass_hat_k?,
                },
            })
        });
    Ok(rows.collect())
}
