use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use datafusion::error::DataFusionError;
use futures::TryStreamExt;

use super::report::{
    ComparedRun, ComparisonOptions, ComparisonReport, FlipsFile, MetricOverlap, Overlap,
    OverlapCounts,
};
use super::{Compared, ComparedPair, TaskMeans};
use crate::config::similar;
use crate::error::Error;
use crate::measure::report::AgentCoverage;
use crate::measure::{MetricTable, Source};
use crate::session::RunTables;
use crate::store::{RunRecord, RunStore, StoreError, plain_parquet};

/// The largest number of names in an error message.
const MAX_NAMES: usize = 20;

/// A run that is compared.
#[derive(Debug, Clone)]
pub struct CompareRun {
    /// Its name in the report.
    pub name: String,
    /// The agent to compare; `None` for all agents of the run.
    pub agent: Option<String>,
    /// The location of the run, as the user gave it.
    pub place: String,
    /// The store of the run.
    pub run: RunStore,
}

/// A side of the comparison, with its task means.
struct Side {
    compared: ComparedRun,
    means: TaskMeans,
}

/// Compares runs with a base, over the tasks that they have in common. Writes the tasks that flipped to
/// `flips`, a local Parquet file, if given. The runs may still be in progress.
///
/// # Errors
/// [`Error::Usage`] if there is nothing to compare: an agent or a metric does not exist, it is unclear which
/// agents to pair, or no task or metric is in common. Other errors: a run can't be read, or `flips`
/// can't be written.
pub async fn compare(
    base: &CompareRun,
    candidates: &[CompareRun],
    options: &ComparisonOptions,
    flips: Option<&Path>,
) -> Result<ComparisonReport, Error> {
    let (mut report, compared) = compared(base, candidates, options).await?;
    if let Some(path) = flips {
        report.flips = Some(write(compared.flips().await?, path).await?);
    }
    Ok(report)
}

/// Compares runs with a base. Returns the tables of the comparison, too.
///
/// # Errors
/// As [`compare`].
pub(crate) async fn compared(
    base: &CompareRun,
    candidates: &[CompareRun],
    options: &ComparisonOptions,
) -> Result<(ComparisonReport, Compared), Error> {
    let mut known = BTreeMap::new();
    let base = look(base, options, &mut known).await?;
    let mut sides = Vec::new();
    for candidate in candidates {
        sides.push(look(candidate, options, &mut known).await?);
    }
    let mut pairs = Vec::new();
    for side in &sides {
        for (base_agent, agent) in agents(&base.compared, &side.compared)? {
            pairs.push(ComparedPair {
                candidate: side.compared.name.clone(),
                base_agent,
                candidate_agent: agent,
                base: base.means.clone(),
                means: side.means.clone(),
            });
        }
    }
    let compared = Compared::new(&pairs, options).await?;
    for (pair, counts) in pairs.iter().zip(compared.overlaps()) {
        if counts.in_common == 0 {
            return Err(nothing_in_common(
                &base.compared.name,
                pair,
                counts,
                options,
            ));
        }
    }
    let left_out = left_out(&compared, options)?;
    let comparisons = compared.comparisons().await?;
    if comparisons.is_empty() {
        return Err(Error::Usage(format!(
            "nothing to compare: no metric has scores on both sides of a common task (of {}); `rollstream status` \
             says what the runs lack",
            names(left_out.iter().map(|metric| metric.metric.as_str()))
        )));
    }
    let overlaps = pairs.iter().zip(compared.overlaps());
    let overlaps = overlaps.map(|(pair, counts)| Overlap {
        candidate: pair.candidate.clone(),
        base_agent: pair.base_agent.clone(),
        candidate_agent: pair.candidate_agent.clone(),
        counts: *counts,
    });
    let report = ComparisonReport {
        base: base.compared,
        overlaps: overlaps.collect(),
        candidates: sides.into_iter().map(|side| side.compared).collect(),
        options: options.clone(),
        comparisons,
        left_out,
        flips: None,
    };
    Ok((report, compared))
}

/// Measures a run for the comparison, only once if it is given twice.
async fn look(
    given: &CompareRun,
    options: &ComparisonOptions,
    known: &mut BTreeMap<String, TaskMeans>,
) -> Result<Side, Error> {
    let place = given.place.clone();
    let means = match known.get(&place) {
        Some(known) => known.clone(),
        None => {
            let looked = measure(&given.run, options).await?;
            known.insert(place.clone(), looked.clone());
            looked
        }
    };
    let all = &means.coverage;
    let is_meant = |agent: &&AgentCoverage| {
        let name = given.agent.as_ref();
        name.is_none_or(|name| agent.agent_name == *name)
    };
    let agents: Vec<AgentCoverage> = all.iter().filter(is_meant).cloned().collect();
    if agents.is_empty() {
        return Err(Error::Usage(match &given.agent {
            Some(name) => format!(
                "the run {place} has no agent '{name}'; it has {}",
                list(all)
            ),
            None => format!("the run {place} has no tasks, so there is nothing to compare"),
        }));
    }
    Ok(Side {
        compared: ComparedRun {
            name: given.name.clone(),
            place,
            agents,
        },
        means,
    })
}

/// Computes the coverage and the scores of a run.
async fn measure(run: &RunStore, options: &ComparisonOptions) -> Result<TaskMeans, Error> {
    if RunRecord::load(run).await?.is_none() {
        return Err(StoreError::NoRun {
            place: run.display(""),
        }
        .into());
    }
    let tables = RunTables::look(run).await?;
    let sessions = Source::Look(&tables).open(options.memory).await?;
    let task_key = options.task_key.as_deref();
    Ok(TaskMeans::of(&sessions.gathering, &sessions.measuring, task_key).await?)
}

/// Pairs the agents to compare: the only ones of both runs, or those of the same name.
fn agents(base: &ComparedRun, candidate: &ComparedRun) -> Result<Vec<(String, String)>, Error> {
    let name = |agent: &AgentCoverage| agent.agent_name.clone();
    if let ([base], [candidate]) = (base.agents.as_slice(), candidate.agents.as_slice()) {
        return Ok(vec![(name(base), name(candidate))]);
    }
    let set = |run: &ComparedRun| run.agents.iter().map(name).collect::<BTreeSet<_>>();
    let same = set(base);
    if same == set(candidate) {
        return Ok(same.into_iter().map(|name| (name.clone(), name)).collect());
    }
    Err(Error::Usage(format!(
        "it is not clear which agents to compare: {} has {}, and {} has {}. Choose one of each with {}#AGENT and {}#AGENT",
        base.name,
        list(&base.agents),
        candidate.name,
        list(&candidate.agents),
        base.place,
        candidate.place,
    )))
}

fn list(agents: &[AgentCoverage]) -> String {
    names(agents.iter().map(|agent| agent.agent_name.as_str()))
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: BTreeSet<&str> = names.collect();
    let quoted: Vec<String> = all
        .iter()
        .take(MAX_NAMES)
        .map(|name| format!("'{name}'"))
        .collect();
    match all.len() - quoted.len() {
        0 => quoted.join(", "),
        more => format!("{} and {more} more", quoted.join(", ")),
    }
}

fn nothing_in_common(
    base: &str,
    pair: &ComparedPair,
    counts: &OverlapCounts,
    options: &ComparisonOptions,
) -> Error {
    let candidate = &pair.candidate;
    let (of_base, of_candidate) = (counts.only_in_base, counts.only_in_candidate);
    Error::Usage(match &options.task_key {
        None => format!(
            "{base} and {candidate} have no task in common: they have {of_base} and {of_candidate} tasks. Tasks \
             match if their whole content does; if their prompts differ, name a field that identifies a task, as in \
             --task-key id"
        ),
        Some(path) => format!(
            "{base} and {candidate} have no task in common: the field '{path}' (--task-key) has {of_base} values in one \
             and {of_candidate} in the other, and is missing in {} and {} tasks",
            counts.base_without_key, counts.candidate_without_key
        ),
    })
}

/// Returns the metrics that can't be compared, among those asked for or, without a choice, among all.
fn left_out(compared: &Compared, options: &ComparisonOptions) -> Result<Vec<MetricOverlap>, Error> {
    let metrics = compared.metrics();
    let is_there = |name: &String| metrics.iter().any(|metric| metric.metric == *name);
    let mut asked = options.metrics.iter().filter(|_| !options.all);
    if let Some(missing) = asked.find(|name| !is_there(name)) {
        let known = metrics.iter().map(|metric| metric.metric.as_str());
        let hint = similar(missing, known.clone());
        let hint = hint.map(|name| format!("; did you mean `{name}`?"));
        return Err(Error::Usage(format!(
            "no run has the metric '{missing}' on a common task{}; --metric takes {}",
            hint.unwrap_or_default(),
            names(known)
        )));
    }
    let is_left_out =
        |metric: &&MetricOverlap| options.wants(&metric.metric) && metric.num_tasks == 0;
    let left_out = metrics.iter().filter(is_left_out);
    Ok(left_out.cloned().collect())
}

/// Writes a table to a file, which appears under its name when it is complete.
async fn write(table: MetricTable, path: &Path) -> Result<FlipsFile, Error> {
    let failed = |source| StoreError::File {
        action: "write",
        path: path.to_owned(),
        source,
    };
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let file = tempfile::Builder::new()
        .prefix(".rollstream-")
        // The process's umask applies, as for any file.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))
        .map_err(failed)?;
    let output = BufWriter::new(file.as_file().try_clone().map_err(failed)?);
    let mut writer = plain_parquet(output, table.schema()).map_err(DataFusionError::from)?;
    let mut num_rows = 0;
    let mut rows = table.stream().await?;
    while let Some(batch) = rows.try_next().await? {
        num_rows += batch.num_rows() as u64;
        writer.write(&batch).map_err(DataFusionError::from)?;
    }
    writer.close().map_err(DataFusionError::from)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(FlipsFile {
        path: path.display().to_string(),
        num_rows,
    })
}
