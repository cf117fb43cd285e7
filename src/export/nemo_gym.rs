//! [`export_nemo_gym`]: a run as the files of a NeMo Gym collection.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::prelude::{DataFrame, SessionContext};
use futures::TryStreamExt;
use hyper::StatusCode;

use super::ExportError;
use super::calls::CallLog;
use super::stamps::{self, StampIndex, one_line};
use super::target::{ExportTarget, Key, Lines, SortedLines};
use super::trajectory::with_evidence;
use crate::config::SeedField;
use crate::gym::{AGGREGATE_METRICS, GymRules};
use crate::json::{Object, ObjectError, quote};
use crate::python::repr_str;
use crate::request::RequestTemplate;
use crate::retry::gym_class;
use crate::session::{self, Rows, RunTables, row};
use crate::store::{RunRecord, RunStore};

const ROLLOUTS: &str = include_str!("../../queries/export/rollouts.sql");
const FAILURES: &str = include_str!("../../queries/export/failures.sql");

/// Rows per batch, few since answers can be large.
const BATCH_ROWS: usize = 16;

/// Memory in bytes for what can spill to temporary files.
const MEMORY: usize = 256_000_000;

/// The files that an export wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportReport {
    /// Each file and its number of rows: materialized inputs, rollouts, failures, and the metrics, if there are any.
    pub files: Vec<(PathBuf, u64)>,
    /// Answers that were left out, and why.
    pub warnings: Vec<String>,
}

/// Writes a run as the files of a NeMo Gym collection: the materialized inputs in the order of the input, answers by
/// task and rollout, flagged answers by task, rollout and attempt. Answers keep their bytes, except for the stamps that
/// NeMo Gym adds. Of a run in progress it writes what exists. In memory it keeps a few numbers per answer; the answers
/// wait in a temporary file beside the output.
///
/// # Errors
/// A file exists and must not be replaced, a file cannot be written, or the run cannot be read. No partial file is left.
pub async fn export_nemo_gym(
    run: &RunStore,
    record: &RunRecord,
    target: &ExportTarget,
    overwrite: bool,
) -> Result<ExportReport, ExportError> {
    if let Some(path) = target.existing().filter(|_| !overwrite) {
        return Err(ExportError::Exists(path.clone()));
    }
    let session = open(run).await?;
    let mut warnings = Vec::new();
    let inputs = inputs(&session, record, target).await?;
    let stamper = Stamper::new(&session, record, record.rules().health).await?;
    let rollouts = session.sql(ROLLOUTS).await?;
    let failures = failed_attempts(&session, record.rules()).await?;
    let files = [
        inputs,
        answers(rollouts, &target.rollouts, &stamper, &mut warnings).await?,
        answers(failures, &target.failures, &stamper, &mut warnings).await?,
    ];
    let metrics = metrics(run, target).await?;
    if metrics.is_none() && overwrite {
        warnings.extend(target.remove_metrics()?);
    }
    let files = files.into_iter().chain(metrics);
    let files = files.map(|lines| lines.finish(overwrite));
    Ok(ExportReport {
        files: files.collect::<Result<_, _>>()?,
        warnings,
    })
}

/// Opens a session with the tables of a run and small batches, since answers are large.
async fn open(run: &RunStore) -> Result<SessionContext, ExportError> {
    let config = session::config().with_target_partitions(1);
    let session = SessionContext::new_with_config_rt(
        config.with_batch_size(BATCH_ROWS),
        session::spilling(MEMORY)?,
    );
    RunTables::look(run).await?.register(&session).await?;
    Ok(session)
}

/// Writes the metrics of a run, if it was measured, and returns the path. An existing file is replaced.
///
/// # Errors
/// They can't be read or written.
pub async fn export_metrics(
    place: &RunStore,
    target: &ExportTarget,
) -> Result<Option<PathBuf>, ExportError> {
    let metrics = metrics(place, target).await?;
    let written = metrics.map(|lines| lines.finish(true)).transpose()?;
    Ok(written.map(|(path, _)| path))
}

async fn metrics(run: &RunStore, target: &ExportTarget) -> Result<Option<Lines>, ExportError> {
    let Some(mut pieces) = run.stream(AGGREGATE_METRICS).await? else {
        return Ok(None);
    };
    let mut copy = Lines::create(&target.aggregate_metrics)?;
    while let Some(piece) = pieces.try_next().await? {
        copy.write_piece(&piece)?;
    }
    Ok(Some(copy))
}

async fn inputs(
    session: &SessionContext,
    record: &RunRecord,
    target: &ExportTarget,
) -> Result<Lines, ExportError> {
    let seed = seed(record);
    let mut lines = Lines::create(&target.materialized_inputs)?;
    let mut line = String::new();
    // Interleaved repeats take one pass over the tasks per rollout index.
    let interleaved = record.identity.get("interleave_repeats");
    let mut round = (interleaved == Some(&true.into())).then_some(0);
    let mut end = 0;
    loop {
        let mut inputs = stamps::inputs(session).await?;
        while let Some(input) = inputs.next().await? {
            let rollouts = input.rollouts();
            end = end.max(rollouts.end);
            let rollouts = match round {
                Some(round) if rollouts.contains(&round) => round..round + 1,
                Some(_) => continue,
                None => rollouts,
            };
            let template = RequestTemplate::new(&input.request, seed)?;
            for rollout_index in rollouts {
                line.clear();
                template.write(rollout_index, 0, &mut line);
                lines.write(line.as_bytes())?;
            }
        }
        match &mut round {
            Some(round) if *round + 1 < end => *round += 1,
            _ => break,
        }
    }
    Ok(lines)
}

/// Returns the field of a request that holds the seed, if a run has seeds. Imported requests contain theirs.
fn seed(record: &RunRecord) -> Option<SeedField> {
    let is_seeded = record.identity.get("num_repeats_add_seed")?.as_bool()?;
    let field = record.identity.get("seed_field").cloned();
    let field = field.and_then(|field| serde_json::from_value(field).ok());
    is_seeded.then(|| field.unwrap_or_default())
}

async fn answers(
    frame: DataFrame,
    path: &Path,
    stamper: &Stamper,
    warnings: &mut Vec<String>,
) -> Result<Lines, ExportError> {
    let mut lines = SortedLines::new(Lines::create(path)?)?;
    let mut answers = Rows::start(frame, Answer::rows).await?;
    while let Some(answer) = answers.next().await? {
        let (task, rollout, _) = answer.key();
        match stamper.line(&answer)? {
            Ok(line) => lines.add(answer.key(), &line)?,
            Err(error) => warnings.push(format!(
                "the answer to rollout {rollout} of task {task} is left out of '{}': NeMo Gym could not read it \
                 ({error}); the run has it",
                path.display()
            )),
        }
    }
    lines.finish()
}

row! {
    /// An answer, or an attempt without one.
    struct Answer {
        task_index: i64,
        rollout_index: i64,
        attempt: i64,
        agent_name: String,
        sent_at: i64,
        answer: Option<String>,
        is_answered: bool,
        outcome: String,
        http_status: Option<i64>,
        error: String,
    }
}

impl Answer {
    fn key(&self) -> Key {
        (self.task_index, self.rollout_index, self.attempt)
    }
}

/// Turns answers into NeMo Gym's rows.
struct Stamper {
    stamps: StampIndex,
    calls: CallLog,
    /// Addresses of the agents.
    addresses: BTreeMap<String, String>,
    /// Whether answers of agents that rollstream runs itself get their trajectory.
    has_evidence: bool,
}

impl Stamper {
    async fn new(
        session: &SessionContext,
        record: &RunRecord,
        has_evidence: bool,
    ) -> Result<Self, ExportError> {
        let servers = record.environment_servers.clone();
        let servers = record.rules().servers.then_some(servers);
        Ok(Self {
            stamps: StampIndex::read(session, servers).await?,
            calls: CallLog::of(session).await?,
            addresses: record.agents.clone(),
            has_evidence,
        })
    }

    /// Returns a row of NeMo Gym's files, or why NeMo Gym could not read it.
    fn line(&self, row: &Answer) -> Result<Result<String, ObjectError>, ExportError> {
        let key = row.key();
        if !row.is_answered {
            return Ok(self.stamps.stamp(&self.failure(row), key));
        }
        let answer = row.answer.as_deref().unwrap_or_default();
        // Imported answers have no time, and were stamped by whoever wrote the file.
        if row.sent_at == 0 {
            return Ok(Ok(one_line(answer.to_owned())));
        }
        if !self.has_evidence {
            return Ok(self.stamps.stamp(answer, key));
        }
        let calls = self.calls.get(key)?;
        let answer = with_evidence(answer, &self.stamps.identity(key), &calls);
        Ok(answer.and_then(|answer| self.stamps.stamp(&answer, key)))
    }

    /// Returns the row of an attempt without an answer, as NeMo Gym writes it since 0.7.
    fn failure(&self, row: &Answer) -> String {
        let (status, error) = (row.http_status, row.error.clone());
        let (kind, message) = match (status, row.outcome.as_str()) {
            (Some(status), _) if status >= 400 => {
                let address = self.addresses.get(&row.agent_name);
                let address = format!("{}/run", address.map_or("", String::as_str));
                let (reason, address) = (repr_str(reason(status)), repr_str(&address));
                let message = format!("{status}, message={reason}, url={address}");
                ("ClientResponseError", message)
            }
            (Some(_), "infra") => ("ClientPayloadError", error),
            (_, "timeout") => ("TimeoutError", error),
            (Some(_), "data") => ("JSONDecodeError", error),
            (_, outcome) => (outcome, error),
        };
        let null = || "null".to_owned();
        let mut failure = Object::default();
        failure.set("_ng_failure_class", quote(gym_class(status)));
        failure.set("_ng_failure_type", quote(kind));
        failure.set("_ng_failure_message", quote(&message));
        let status = status.map_or_else(null, |status| status.to_string());
        failure.set("_ng_failure_http_status", status);
        let body = row.answer.clone().unwrap_or_else(null);
        failure.set("_ng_failure_response_body", body);
        failure.to_string()
    }
}

/// The rollouts of a run as NeMo Gym's rows, in any order.
pub struct RolloutRows {
    stamper: Stamper,
    answers: Rows<Answer>,
    failures: Option<Rows<Answer>>,
}

impl RolloutRows {
    /// Opens a run.
    ///
    /// # Errors
    /// The run cannot be read.
    pub async fn of(run: &RunStore, record: &RunRecord) -> Result<Self, ExportError> {
        let session = open(run).await?;
        Ok(Self {
            stamper: Stamper::new(&session, record, true).await?,
            answers: Rows::of(&session, ROLLOUTS, Answer::rows).await?,
            failures: None,
        })
    }

    /// Opens a run; the rollouts are followed by the attempts that NeMo Gym's file of failures has.
    ///
    /// # Errors
    /// The run cannot be read.
    pub(crate) async fn with_failures(
        run: &RunStore,
        record: &RunRecord,
    ) -> Result<Self, ExportError> {
        let session = open(run).await?;
        let failures = failed_attempts(&session, record.rules()).await?;
        Ok(Self {
            stamper: Stamper::new(&session, record, record.rules().health).await?,
            answers: Rows::of(&session, ROLLOUTS, Answer::rows).await?,
            failures: Some(Rows::start(failures, Answer::rows).await?),
        })
    }

    /// Returns the next row; `None` at the end. A row that NeMo Gym could not read stays as it came.
    ///
    /// # Errors
    /// The run cannot be read.
    pub async fn next(&mut self) -> Result<Option<String>, ExportError> {
        let row = match (self.answers.next().await?, &mut self.failures) {
            (Some(row), _) => row,
            (None, Some(failures)) => match failures.next().await? {
                Some(row) => row,
                None => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        let line = self.stamper.line(&row)?;
        Ok(Some(line.unwrap_or_else(|_| {
            one_line(row.answer.unwrap_or_default())
        })))
    }
}

/// Returns Python's phrase for a status; some are newer than hyper's.
fn reason(status: i64) -> &'static str {
    match status {
        413 => "Content Too Large",
        414 => "URI Too Long",
        416 => "Range Not Satisfiable",
        422 => "Unprocessable Content",
        _ => {
            let status = u16::try_from(status).ok();
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            status
                .and_then(|status| status.canonical_reason())
                .unwrap_or_default()
        }
    }
}

/// Returns the failed attempts of a session's run that belong in NeMo Gym's file of failures.
///
/// # Errors
/// The session lacks the table.
pub async fn failed_attempts(
    session: &SessionContext,
    rules: &GymRules,
) -> Result<DataFrame, DataFusionError> {
    let without_answer = ScalarValue::from(rules.all_failures);
    let failures = session.sql(FAILURES).await?;
    failures.with_param_values(vec![("without_answer", without_answer)])
}
