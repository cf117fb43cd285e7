//! Imported rows: cut down to what is measured ([`reduce`], [`verify_response`]), and as a run's tables in temporary
//! files, with the places where they were read ([`Placed`]).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;

use super::error::{ImportError, RowProblem};
use super::keys::{ROLLOUT, RowKey, TASK};
use super::lines::Line;
use crate::call::RolloutKey;
use crate::gym::GymRules;
use crate::json::Object;
use crate::outcome::{Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of};
use crate::read::TaskBatchBuilder;
use crate::request::{AGENT_REF, ENVIRONMENT_SERVER, agent_ref};
use crate::schema;
use crate::session::{Spool, SpoolFile};

/// What the response of a row must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseRule {
    /// There must be one.
    Required,
    /// If there is one, it must be an object.
    Optional,
    /// Anything.
    Any,
    /// Only its usage is kept, and the heavy fields are dropped, as NeMo Gym does before an aggregation.
    Stripped,
}

/// Fields that hold most of an answer's bytes.
const HEAVY: [&str; 4] = [
    "responses_create_params",
    "ng_agent_observations",
    "ng_model_call_capture",
    "ng_trajectory",
];

/// Returns the row without what no metric reads. A heavy field stays only if it is a scalar other than a string and
/// the row is not stripped. Of the response, usage stays and, if stripped by 0.7's rules, `incomplete_details`.
///
/// # Errors
/// The response is not what the rule wants.
pub(super) fn reduce(
    row: &Object<'_>,
    rule: ResponseRule,
    rules: &GymRules,
) -> Result<String, RowProblem> {
    let response = row.get("response");
    let object = response.and_then(|response| Object::parse(response).ok());
    let is_there = response.is_some();
    if object.is_none()
        && (rule == ResponseRule::Required || rule == ResponseRule::Optional && is_there)
    {
        return Err(RowProblem::NoResponse);
    }
    let usage = object.as_ref().and_then(|response| response.get("usage"));
    Ok(match rule {
        ResponseRule::Stripped => stripped(row, object.as_ref(), rules),
        ResponseRule::Required | ResponseRule::Optional | ResponseRule::Any => kept(row, usage),
    })
}

fn kept(row: &Object<'_>, usage: Option<&str>) -> String {
    let mut kept = row.clone();
    if row.contains("response") {
        let usage = usage.map(|usage| format!(r#"{{"usage":{usage}}}"#));
        kept.set("response", usage.unwrap_or_else(|| "{}".to_owned()));
    }
    let is_large = |name: &&str| {
        row.get(name)
            .is_some_and(|value| value.starts_with(['{', '[', '"']))
    };
    let large: Vec<&str> = HEAVY.into_iter().filter(is_large).collect();
    let mut text = String::new();
    kept.write_without(&large, &mut text);
    text
}

fn stripped(row: &Object<'_>, response: Option<&Object<'_>>, rules: &GymRules) -> String {
    let mut reduced = row.clone();
    for name in HEAVY.into_iter().chain(["response"]) {
        reduced.remove(name);
    }
    let field = |name: &str| {
        let value = response.and_then(|response| response.get(name));
        value.filter(|value| *value != "null")
    };
    let has_fields = |usage: &str| Object::parse(usage).is_ok_and(|usage| !usage.is_empty());
    let mut shown = Object::default();
    if let Some(usage) = field("usage").filter(|usage| rules.servers || has_fields(usage)) {
        shown.set("usage", usage);
    }
    if let Some(details) = field("incomplete_details").filter(|_| rules.servers) {
        shown.set("incomplete_details", details);
    }
    if !shown.is_empty() {
        reduced.set("response", shown.to_string());
    }
    reduced.to_string()
}

/// Returns an answer with its stamps as NeMo Gym shows it to the server of its agent: without what an aggregation does not
/// read. `task_index` is JSON text.
pub(crate) fn verify_response<'a>(
    mut row: Object<'a>,
    task_index: impl Into<Cow<'a, str>>,
    rollout_index: i64,
    agent: &str,
    rules: &GymRules,
) -> String {
    row.set(TASK, task_index);
    row.set(ROLLOUT, rollout_index.to_string());
    // A rollout of an environment server may have no agent.
    if !row.contains(AGENT_REF) && !row.contains(ENVIRONMENT_SERVER) {
        row.set(AGENT_REF, agent_ref(agent));
    }
    let response = row.get("response").map(Object::parse);
    let response = response.and_then(Result::ok);
    stripped(&row, response.as_ref(), rules)
}

/// Returns the outcome of an attempt whose times are unknown.
pub(crate) fn outcome(key: RowKey, attempt: u32, agent_name: &str, verdict: Verdict) -> Outcome {
    let key = RolloutKey::new(key.task_index, key.rollout_index, attempt);
    Outcome {
        times: Times {
            server: Some(Duration::ZERO),
            ..Times::default()
        },
        // The files contain no times. The epoch tells an export that the answer was imported.
        ..Outcome::new(key, agent_name, UNIX_EPOCH, verdict)
    }
}

/// The table of all rollouts that were read.
pub(super) const IMPORTED_ROLLOUTS: &str = "imported_rollouts";
/// Running number of a row over all files of a table.
const SOURCE_ROW: &str = "source_row";
/// Which of the files a row is from, counted from 0.
const SOURCE_NUMBER: &str = "source_number";
/// Bytes before the row in its file.
const SOURCE_OFFSET: &str = "source_offset";
/// Bytes of the row; 0 where it is in no file.
const SOURCE_LENGTH: &str = "source_length";

/// Rows go to the temporary file at this many rows, or bytes of answers.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Where a row was read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Source {
    number: usize,
    offset: u64,
    length: usize,
}

impl Source {
    /// Returns the place of a line of file `number`.
    pub(super) fn of(line: &Line<'_>, number: usize) -> Self {
        Self {
            number,
            offset: line.offset,
            length: line.text.len(),
        }
    }

    /// Returns the place of a row that is in no file, but counts as one of file `number`.
    pub(super) fn nowhere(number: usize) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }
}

/// One of a run's tables in a temporary file, with the columns that say where each row was read. `B` builds its batches.
pub(super) struct Placed<B> {
    builder: B,
    is_full: fn(&B) -> bool,
    finish: fn(&mut B) -> Result<RecordBatch, ImportError>,
    sources: Vec<Source>,
    /// Rows in the file.
    rows: i64,
    file: SpoolFile,
}

impl Placed<TaskBatchBuilder> {
    /// Creates the table `tasks`, with a row for each planned rollout.
    pub(super) fn tasks(spool: &Spool) -> Result<Self, ImportError> {
        Ok(Self {
            // The requests of a task's rollouts differ in their keys at most, which are left out here.
            builder: TaskBatchBuilder::deduplicated(),
            is_full: TaskBatchBuilder::is_full,
            finish: |tasks| Ok(tasks.finish()?),
            sources: Vec::new(),
            rows: 0,
            file: spool.begin(schema::TASKS, with_sources(&schema::tasks()))?,
        })
    }
}

impl Placed<OutcomeBatchBuilder> {
    /// Creates the table of all rollouts that are read.
    pub(super) fn rollouts(spool: &Spool) -> Result<Self, ImportError> {
        Ok(Self {
            builder: OutcomeBatchBuilder::new(),
            is_full: |rows| rows.len() >= BATCH_ROWS || rows.num_bytes() >= BATCH_BYTES,
            finish: |rows| Ok(rollouts_of(&rows.finish()?)?),
            sources: Vec::new(),
            rows: 0,
            file: spool.begin(IMPORTED_ROLLOUTS, with_sources(&schema::rollouts()))?,
        })
    }
}

impl<B> Placed<B> {
    pub(super) fn append(
        &mut self,
        source: Source,
        append: impl FnOnce(&mut B) -> Result<(), ArrowError>,
    ) -> Result<(), ImportError> {
        append(&mut self.builder)?;
        self.sources.push(source);
        if (self.is_full)(&self.builder) {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let batch = (self.finish)(&mut self.builder)?;
        let column = |of: fn(&Source) -> u64| -> ArrayRef {
            let values = self.sources.iter().map(of);
            Arc::new(Int64Array::from_iter_values(values.map(u64::cast_signed)))
        };
        let end = self.rows + self.sources.len() as i64;
        let mut columns = batch.columns().to_vec();
        columns.extend([
            Arc::new(Int64Array::from_iter_values(self.rows..end)) as ArrayRef,
            column(|source| source.number as u64),
            column(|source| source.offset),
            column(|source| source.length as u64),
        ]);
        let schema = with_sources(batch.schema_ref());
        self.file.write(&RecordBatch::try_new(schema, columns)?)?;
        self.rows = end;
        self.sources.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<SpoolFile, ImportError> {
        self.flush()?;
        Ok(self.file)
    }
}

/// Returns the schema of a run's table with the columns that say where each row was read.
fn with_sources(schema: &SchemaRef) -> SchemaRef {
    let mut fields = schema.fields().to_vec();
    for name in [SOURCE_ROW, SOURCE_NUMBER, SOURCE_OFFSET, SOURCE_LENGTH] {
        fields.push(Arc::new(Field::new(name, DataType::Int64, false)));
    }
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gym::{GYM_05, GYM_07};

    fn reduced(row: &str, rule: ResponseRule) -> Result<String, RowProblem> {
        reduce(&parsed(row), rule, &GYM_05)
    }

    fn parsed(answer: &str) -> Object<'_> {
        Object::parse(answer).unwrap()
    }

    const ROW: &str = r#"{"a": 1, "response": {"output": [1], "usage": {"t": 2}}, "ng_trajectory": 3,
        "responses_create_params": {}, "kept": "x"}"#;

    #[test]
    fn what_no_metric_reads_is_left_out() {
        assert_eq!(
            reduced(ROW, ResponseRule::Required).unwrap(),
            r#"{"a":1,"response":{"usage":{"t": 2}},"ng_trajectory":3,"kept":"x"}"#
        );
        assert_eq!(
            reduced(ROW, ResponseRule::Stripped).unwrap(),
            r#"{"a":1,"kept":"x","response":{"usage":{"t": 2}}}"#
        );
    }

    #[test]
    fn a_usage_without_fields_is_none() {
        for usage in ["null", "{}", "[]"] {
            let row = format!(r#"{{"response": {{"usage": {usage}}}}}"#);
            assert_eq!(reduced(&row, ResponseRule::Stripped).unwrap(), "{}");
        }
    }

    #[test]
    fn a_server_is_shown_answers_with_their_stamps() {
        let answer = r#"{"_ng_task_index": 7, "a": 1.50, "response": {"usage": {"t": 2}}}"#;
        assert_eq!(
            verify_response(parsed(answer), "0", 3, "x", &GYM_05),
            r#"{"_ng_task_index":0,"a":1.50,"_ng_rollout_index":3,"agent_ref":{"name":"x"},"response":{"usage":{"t": 2}}}"#
        );
        let answer = r#"{"agent_ref": {"name": "x", "more": 1}, "response": null}"#;
        assert_eq!(
            verify_response(parsed(answer), r#""t""#, 0, "x", &GYM_05),
            r#"{"agent_ref":{"name": "x", "more": 1},"_ng_task_index":"t","_ng_rollout_index":0}"#
        );
    }

    #[test]
    fn an_environment_server_is_shown_how_an_answer_ended_and_no_agent_that_there_is_not() {
        let answer = r#"{"_ng_environment_server": "e", "response": {"usage": {}, "incomplete_details": {"reason": "x"}}}"#;
        assert_eq!(
            verify_response(parsed(answer), "0", 3, "e", &GYM_07),
            r#"{"_ng_environment_server":"e","_ng_task_index":0,"_ng_rollout_index":3,"response":{"usage":{},"incomplete_details":{"reason": "x"}}}"#
        );
    }

    #[test]
    fn a_response_must_be_what_the_rule_wants() {
        use ResponseRule::{Optional, Required, Stripped};
        for (row, required, optional) in [
            ("{}", false, true),
            (r#"{"response": null}"#, false, false),
            (r#"{"response": {}}"#, true, true),
        ] {
            assert_eq!(reduced(row, Required).is_ok(), required, "{row}");
            assert_eq!(reduced(row, Optional).is_ok(), optional, "{row}");
            assert!(reduced(row, Stripped).is_ok(), "{row}");
        }
    }
}
