use std::path::{Path, PathBuf};

use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use super::columns::{at, integers, texts};
use super::error::ExportError;
use super::sorted::SortedLines;
use super::stamps::{StampIndex, one_line};
use super::target::{ExportTarget, Lines};
use crate::config::SeedField;
use crate::request::RequestTemplate;
use crate::session::{self, RunTables};
use crate::store::{RunRecord, RunStore};

const INPUTS: &str = include_str!("../../queries/export/inputs.sql");
const ROLLOUTS: &str = include_str!("../../queries/export/rollouts.sql");
const FAILURES: &str = include_str!("../../queries/export/failures.sql");

/// Rows of a batch: answers can be large.
const BATCH_ROWS: usize = 16;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportReport {
    /// Each file and its rows: materialized inputs, rollouts, failures.
    pub files: Vec<(PathBuf, u64)>,
    /// Answers that were left out, and why.
    pub warnings: Vec<String>,
}

/// Writes a run as the files of a NeMo Gym collection: the materialized inputs in the order of the input, answers by
/// task and rollout, flagged answers by task, rollout and attempt. Answers keep the bytes that came, but for the
/// stamps that NeMo Gym adds. Of a run that is being collected it writes what is there. In memory it keeps a few numbers
/// per answer; the answers wait in a temporary file where the output goes.
///
/// # Errors
/// A file is there already and is not to be replaced, cannot be written, or the run cannot be read. Then no file is
/// there that is not whole.
pub async fn export_nemo_gym(
    run: &RunStore,
    record: &RunRecord,
    target: &ExportTarget,
    overwrite: bool,
) -> Result<ExportReport, ExportError> {
    if !overwrite {
        target.refuse_existing()?;
    }
    let config = session::config().with_target_partitions(1);
    let session = SessionContext::new_with_config(config.with_batch_size(BATCH_ROWS));
    RunTables::look(run).await?.register(&session).await?;
    let mut warnings = Vec::new();
    let (inputs, stamps) = inputs(&session, record, target).await?;
    let files = [
        inputs,
        answers(&session, ROLLOUTS, &target.rollouts, &stamps, &mut warnings).await?,
        answers(&session, FAILURES, &target.failures, &stamps, &mut warnings).await?,
    ];
    let files = files.into_iter().map(|lines| lines.finish(overwrite));
    Ok(ExportReport {
        files: files.collect::<Result<_, _>>()?,
        warnings,
    })
}

async fn inputs(
    session: &SessionContext,
    record: &RunRecord,
    target: &ExportTarget,
) -> Result<(Lines, StampIndex), ExportError> {
    let seed = seed(record);
    let mut lines = Lines::create(&target.materialized_inputs)?;
    let mut stamps = StampIndex::default();
    let mut batches = session.sql(INPUTS).await?.execute_stream().await?;
    let mut line = String::new();
    while let Some(batch) = batches.try_next().await? {
        let requests = texts(&batch, "request")?;
        let task_index = integers(&batch, "task_index")?;
        let first = integers(&batch, "first_rollout_index")?;
        let repeats = integers(&batch, "num_repeats")?;
        for row in 0..batch.num_rows() {
            let request = requests.value(row);
            let template = RequestTemplate::new(request, seed)?;
            let first = at(&first, row);
            let rollouts = first..first.saturating_add(at(&repeats, row));
            stamps.add(at(&task_index, row), rollouts.clone(), request);
            for rollout_index in rollouts {
                line.clear();
                template.write(rollout_index, 0, &mut line);
                lines.write(line.as_bytes())?;
            }
        }
    }
    stamps.sort();
    Ok((lines, stamps))
}

/// Where the rollouts of a run have their seed, if they have one. Those of an import have it in their tasks.
fn seed(record: &RunRecord) -> Option<SeedField> {
    let is_seeded = record.identity.get("num_repeats_add_seed")?.as_bool()?;
    let field = record.identity.get("seed_field").cloned();
    let field = field.and_then(|field| serde_json::from_value(field).ok());
    is_seeded.then(|| field.unwrap_or_default())
}

async fn answers(
    session: &SessionContext,
    query: &str,
    path: &Path,
    stamps: &StampIndex,
    warnings: &mut Vec<String>,
) -> Result<Lines, ExportError> {
    let mut lines = SortedLines::new(Lines::create(path)?)?;
    let mut batches = session.sql(query).await?.execute_stream().await?;
    while let Some(batch) = batches.try_next().await? {
        let answers = texts(&batch, "answer")?;
        let task_index = integers(&batch, "task_index")?;
        let rollout_index = integers(&batch, "rollout_index")?;
        let attempt = integers(&batch, "attempt")?;
        let sent_at = integers(&batch, "sent_at")?;
        for row in 0..batch.num_rows() {
            let (task, rollout) = (at(&task_index, row), at(&rollout_index, row));
            let key = (task, rollout, at(&attempt, row));
            let answer = answers.value(row);
            // What was imported has no time, and was stamped by whoever wrote the file.
            if at(&sent_at, row) == 0 {
                lines.add(key, &one_line(answer.to_owned()))?;
                continue;
            }
            match stamps.stamp(answer, key) {
                Ok(line) => lines.add(key, &line)?,
                Err(error) => warnings.push(format!(
                    "the answer to rollout {rollout} of task {task} is left out of '{}': NeMo Gym could not read it \
                     ({error}); the run has it",
                    path.display()
                )),
            }
        }
    }
    lines.finish()
}
