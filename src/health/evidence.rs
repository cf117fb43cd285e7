//! [`Evidence`]: one line of a file becomes the rows of the tables that the rules read.

use std::collections::HashSet;

use serde_json::Value;

use super::calls::{Bindings, Call, CallIndex, Reference, has_content, has_text, has_tool_call};
use super::error::HealthError;
use super::shape::{Fields, Unreadable, objects, text, trajectory};
use super::tables::{
    CallRow, Calls, GapRow, Gaps, Index, Indices, RecordRow, Records, TurnRow, Turns, Unbound,
    UnboundRow, key,
};
use crate::json::{Object, ObjectError, unquote, value};
use crate::python::is_truthy;
use crate::request::{ROLLOUT_ID, ROLLOUT_INDEX, TASK_INDEX};

/// The field with the evidence of a rollout.
const TRAJECTORY: &str = "ng_trajectory";
/// The field with the stage of a row.
const STAGE_INDEX: &str = "stage_index";

/// Gaps that mean that calls are missing.
const MISSING_CALLS: [&str; 4] = [
    "model_calls_unavailable",
    "model_call_capture_incomplete",
    "model_call_capture_records_unreadable",
    "model_call_capture_unreadable",
];

/// The place of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Number of the file, from 0.
    pub file: usize,
    /// The file, as messages call it.
    pub shown: &'a str,
    /// Number of the line in its file, from 1.
    pub line: u64,
}

/// The rows of the records since the last flush.
#[derive(Default)]
pub(super) struct Evidence {
    pub records: Records,
    pub turns: Turns,
    pub calls: Calls,
    pub unbound: Unbound,
    pub gaps: Gaps,
    /// The number of rows in all tables.
    pub rows: usize,
    /// The number of records that were ever added.
    pub num_records: u64,
}

/// The readable parts of a line.
#[derive(Default)]
struct Row {
    indices: Indices,
    rollout_id: Option<String>,
    unreadable: Option<Unreadable>,
    bad_trajectory: Option<Unreadable>,
    trajectory: Option<Fields>,
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
}

impl Row {
    fn read(line: &[u8], place: Place<'_>, ordinal: u64) -> Result<Self, HealthError> {
        let row = std::str::from_utf8(line).map_err(|_| "JSONDecodeError");
        let row = row.and_then(|line| {
            Object::parse(line).map_err(|error| match error {
                ObjectError::Syntax(_) => "JSONDecodeError",
                ObjectError::NotAnObject(_) => "ValueError",
            })
        });
        let row = match row {
            Ok(row) => row,
            Err(error) => {
                let Place { file, line, .. } = place;
                let name = format!("__unreadable_record__:input-{file}:line-{line}");
                return Ok(Self {
                    indices: Indices {
                        task: Index::Text(name),
                        ..Indices::default()
                    },
                    unreadable: Some(error),
                    ..Self::default()
                });
            }
        };
        let index = |field: &'static str| {
            let wrong = || HealthError::Index {
                place: place.shown.to_owned(),
                line: place.line,
                field,
            };
            let text = row.get(field);
            let text = text.filter(|text| field != STAGE_INDEX || *text != "null");
            let index = text.map(|text| Index::read(text).ok_or_else(wrong));
            index.transpose()
        };
        let indices = Indices {
            task: index(TASK_INDEX)?.unwrap_or(Index::Whole(ordinal.into())),
            rollout: index(ROLLOUT_INDEX)?.unwrap_or_default(),
            stage: index(STAGE_INDEX)?,
        };
        let raw = row.get(TRAJECTORY).filter(|raw| *raw != "null");
        let raw = raw.map(|raw| value(raw).unwrap_or_default());
        let told = raw.as_ref().and_then(|raw| raw.get("rollout_id"));
        let told = told.map(Value::to_string);
        let own = row.get(ROLLOUT_ID).map(str::to_owned);
        let mut ids = own.into_iter().chain(told);
        let rollout_id = ids.find(|id| is_truthy(id));
        let rollout_id = rollout_id.map(|id| match unquote(&id) {
            Some(text) => text.into_owned(),
            None => id,
        });
        let trajectory = raw.map(trajectory);
        let response = row
            .get("response")
            .and_then(|text| Object::parse(text).ok());
        let usage = response.as_ref().and_then(|response| response.get("usage"));
        let usage = usage.and_then(|text| Object::parse(text).ok());
        let tokens = |name: &str, earlier: &str| {
            let usage = usage.as_ref()?;
            let count: i64 = usage
                .get(name)
                .or_else(|| usage.get(earlier))?
                .parse()
                .ok()?;
            (count >= 0).then_some(count)
        };
        Ok(Self {
            input_tokens: tokens("input_tokens", "prompt_tokens"),
            output_tokens: tokens("output_tokens", "completion_tokens"),
            bad_trajectory: trajectory
                .as_ref()
                .and_then(|read| read.as_ref().err().copied()),
            indices,
            rollout_id,
            unreadable: None,
            trajectory: trajectory.and_then(Result::ok),
        })
    }

    /// Returns the trajectory, unless its producer reports that it is unusable.
    fn observed(&self) -> Option<&Fields> {
        let trajectory = self.trajectory.as_ref()?;
        (!has_gap(trajectory, &["trajectory_projection_failed"])).then_some(trajectory)
    }
}

fn has_gap(trajectory: &Fields, codes: &[&str]) -> bool {
    objects(trajectory, "gaps")
        .filter_map(|gap| text(gap, "code"))
        .any(|code| codes.contains(&code))
}

fn count(number: usize) -> Option<i64> {
    i64::try_from(number).ok()
}

impl Evidence {
    /// Adds a line.
    pub(super) fn add(&mut self, line: &[u8], place: Place<'_>) -> Result<(), HealthError> {
        let ordinal = self.num_records;
        self.num_records += 1;
        let row = Row::read(line, place, ordinal)?;
        let nothing = Fields::new();
        let trajectory = row.observed().unwrap_or(&nothing);
        let record = key(&row.indices, ordinal);
        let is_observed = row.observed().is_some();
        let calls_observed = is_observed && !has_gap(trajectory, &MISSING_CALLS);
        let scope_complete =
            is_observed && !has_gap(trajectory, &["turn_model_call_scope_incomplete"]);

        let calls: Vec<Call<'_>> = objects(trajectory, "model_calls").map(Call::new).collect();
        let index = CallIndex::new(&calls);
        let references = |of: &'static str| {
            objects(trajectory, of)
                .flat_map(|item| objects(item, "model_calls"))
                .map(Reference::new)
        };
        let of_turns = Bindings::new(references("turns"), &index);
        let owned = Bindings::new(references("turns").chain(references("invocations")), &index);
        let turn_calls: Vec<&Call<'_>> = of_turns
            .calls
            .iter()
            .filter_map(|position| calls.get(*position))
            .collect();

        let turns_observed = is_observed && !has_gap(trajectory, &["turns_unavailable"]);
        let active_turns = self.add_turns(trajectory, turns_observed, &record);
        if calls_observed {
            self.add_unbound(&owned, &record);
        }
        self.add_calls(&calls, calls_observed.then_some(&owned), &record);
        self.add_gaps(trajectory, calls_observed, &record);

        let mut identities = HashSet::new();
        let known = calls.iter().filter_map(Call::identity);
        let replayed = known
            .filter(|identity| !identities.insert(*identity))
            .count();
        let sum = |name: &str| {
            let counts = turn_calls.iter().filter_map(|call| call.count(name));
            Some(counts.fold(0, i64::saturating_add))
        };
        let is_uncounted = |call: &&&Call<'_>| {
            call.count("prompt_tokens").is_none() || call.count("completion_tokens").is_none()
        };
        let is_successful = |call: &&&Call<'_>| call.is_successful();
        let indices = &row.indices;
        let own_id = || format!("{}-{}", indices.task.plain(), indices.rollout.plain());
        let judged = |number: usize| count(if calls_observed { number } else { 0 });
        self.records.add(RecordRow {
            record: Some(&record),
            source_file: Some(place.shown),
            source_line: i64::try_from(place.line).ok(),
            task: Some(&indices.task.json()),
            rollout: Some(&indices.rollout.json()),
            stage: indices.stage.as_ref().map(Index::json).as_deref(),
            rollout_id: Some(&row.rollout_id.clone().unwrap_or_else(own_id)),
            unreadable: row.unreadable,
            bad_trajectory: row.bad_trajectory,
            turns_observed: Some(turns_observed),
            calls_observed: Some(calls_observed),
            scope_complete: Some(scope_complete),
            num_calls: count(calls.len()),
            active_turns: Some(active_turns),
            references: judged(owned.references.len()),
            owned_calls: judged(owned.calls.len()),
            turn_calls: judged(of_turns.calls.len()),
            turns_bound: Some(of_turns.is_complete()),
            turn_input_tokens: sum("prompt_tokens"),
            turn_output_tokens: sum("completion_tokens"),
            uncounted_turn_calls: count(turn_calls.iter().filter(is_uncounted).count()),
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            successful_turn_calls: count(turn_calls.iter().filter(is_successful).count()),
            replayed_calls: count(replayed),
        });
        let lists = trajectory.values().filter_map(Value::as_array);
        self.rows += 1 + lists.map(Vec::len).sum::<usize>();
        Ok(())
    }

    /// Adds the turns of a record; returns the number of turns in which the model did something.
    fn add_turns(&mut self, trajectory: &Fields, is_observed: bool, record: &[u8]) -> i64 {
        let mut active = 0;
        for (position, turn) in objects(trajectory, "turns").enumerate() {
            let said = |name: &str| turn.get(name).is_some_and(has_text);
            let has_text = said("answer") || said("reasoning_content");
            let has_tool_call = turn.get("answer").is_some_and(has_tool_call);
            let refers = objects(turn, "model_calls").next().is_some();
            active += i64::from(has_text || has_tool_call || refers);
            self.turns.add(TurnRow {
                record: Some(record),
                position: count(position),
                is_observed: Some(is_observed),
                turn: turn.get("turn_no").and_then(Value::as_i64),
                has_text: Some(has_text),
                has_tool_call: Some(has_tool_call),
            });
        }
        active
    }

    fn add_calls(&mut self, calls: &[Call<'_>], owned: Option<&Bindings<'_>>, record: &[u8]) {
        for (position, call) in calls.iter().enumerate() {
            let place = owned.and_then(|owned| owned.calls.binary_search(&position).ok());
            let is_last = owned
                .is_some_and(|owned| owned.is_complete() && owned.calls.last() == Some(&position));
            let response = call.fields.get("response").filter(|text| !text.is_null());
            let content = response.map_or(Ok(false), has_content);
            let model = call.name.model.map(|(kind, name)| format!("{kind}/{name}"));
            self.calls.add(CallRow {
                record: Some(record),
                position: count(position),
                owned: place.and_then(count),
                is_last: Some(is_last),
                is_observed: Some(owned.is_some()),
                call_id: call.name.id(),
                model_ref: model.as_deref(),
                started_at: call.fields.get("started_at").and_then(Value::as_f64),
                status_code: call.status(),
                error_category: call
                    .metadata
                    .and_then(|metadata| metadata.get("error_category")?.as_str()),
                finish_reason: call.said("finish_reason"),
                input_tokens: call.count("prompt_tokens"),
                output_tokens: call.count("completion_tokens"),
                failed: Some(call.is_failed()),
                successful: Some(call.is_successful()),
                has_response: Some(response.is_some()),
                has_content: content.ok(),
                unreadable: content.err(),
            });
        }
    }

    fn add_unbound(&mut self, owned: &Bindings<'_>, record: &[u8]) {
        let unbound = owned.references.iter().enumerate();
        for (position, (reference, matches)) in unbound.filter(|(_, (_, matches))| *matches != 1) {
            self.unbound.add(UnboundRow {
                record: Some(record),
                position: count(position),
                call_id: Some(reference.locator()),
                matches: count(*matches),
            });
        }
    }

    fn add_gaps(&mut self, trajectory: &Fields, is_observed: bool, record: &[u8]) {
        for (position, gap) in objects(trajectory, "gaps").enumerate() {
            let said = |name: &str| gap.get(name).and_then(Value::as_str);
            self.gaps.add(GapRow {
                record: Some(record),
                position: count(position),
                is_observed: Some(is_observed),
                code: said("code"),
                invocation_id: said("invocation_id"),
                detail: said("detail"),
            });
        }
    }
}
