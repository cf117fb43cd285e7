//! The calls within attempts that a run holds, against the requests that servers counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int32Type;

use super::agents::Agents;
use super::ledger::{
    Ledger, RolloutKey, batches, column, integers, keys, optional_integers, parts, text,
};
use super::scene::may_come_again;

/// Task, rollout and attempt.
pub type AttemptKey = (i64, i64, i64);

const SERVERS: [&str; 4] = ["sim_model", "sim_tools", "sim_gymnasium", "sim_environment"];

/// A row of `calls`.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    pub call: i64,
    pub turn: i64,
    pub kind: String,
    pub outcome: String,
    pub http_status: Option<i32>,
    pub retry: i64,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub request_bytes: Option<i64>,
}

/// `calls` of a run.
#[derive(Debug)]
pub struct Calls(pub BTreeMap<AttemptKey, Vec<CallRow>>);

/// How many there were of what.
#[derive(Debug, Default)]
pub struct Figures {
    pub requests: usize,
    pub rows: usize,
    pub interrupted: usize,
    /// Rows that no server knows of: cut off before they arrived, or within a batch.
    pub unseen: usize,
}

impl Calls {
    /// Reads a run; the calls of each attempt in their order.
    pub fn read(run: &Path) -> Self {
        let mut calls: BTreeMap<AttemptKey, Vec<CallRow>> = BTreeMap::new();
        for batch in parts(run, "calls")
            .iter()
            .flat_map(|part| batches(part, &[]))
        {
            let attempts = integers(&batch, "attempt");
            let [numbers, turns, retries] =
                ["call", "turn", "retry"].map(|name| integers(&batch, name));
            let [input, output, sent] = ["input_tokens", "output_tokens", "request_bytes"]
                .map(|name| optional_integers(&batch, name));
            let statuses = column(&batch, "http_status").as_primitive::<Int32Type>();
            for (row, (task, rollout)) in keys(&batch).into_iter().enumerate() {
                let of_attempt = calls.entry((task, rollout, attempts[row])).or_default();
                of_attempt.push(CallRow {
                    call: numbers[row],
                    turn: turns[row],
                    kind: text(&batch, "kind", row).unwrap(),
                    outcome: text(&batch, "outcome", row).unwrap(),
                    http_status: statuses.is_valid(row).then(|| statuses.value(row)),
                    retry: retries[row],
                    input_tokens: input[row],
                    output_tokens: output[row],
                    request_bytes: sent[row],
                });
            }
        }
        calls
            .values_mut()
            .for_each(|of| of.sort_by_key(|call| call.call));
        Self(calls)
    }

    fn rows(&self) -> impl Iterator<Item = (&AttemptKey, &CallRow)> {
        let attempts = self.0.iter();
        attempts.flat_map(|(key, calls)| calls.iter().map(move |call| (key, call)))
    }

    /// What holds at any time: calls are numbered from 0 without gaps, turns too, each retry follows the try
    /// before it, and every attempt is in `attempts`; one that was not cut off has calls.
    #[track_caller]
    pub fn are_consistent(&self, ledger: &Ledger) {
        let outcomes: BTreeMap<AttemptKey, &str> = ledger
            .attempts
            .iter()
            .map(|row| (row.key(), row.outcome.as_str()))
            .collect();
        for (key, calls) in &self.0 {
            let outcome = outcomes.get(key);
            let outcome = outcome.unwrap_or_else(|| panic!("{key:?} is not in `attempts`"));
            for (number, call) in calls.iter().enumerate() {
                assert_eq!(call.call, number as i64, "{key:?}: {calls:#?}");
                let before = number.checked_sub(1).map(|before| &calls[before]);
                let before_turn = before.map_or(0, |before| before.turn);
                let is_next = (before_turn..=before_turn + 1).contains(&call.turn);
                assert!(is_next, "{key:?}: {calls:#?}");
                if call.retry > 0 {
                    let before = before.unwrap();
                    let expected = ("model", call.retry - 1, call.turn);
                    let actual = (before.kind.as_str(), before.retry, before.turn);
                    assert_eq!(actual, expected, "{key:?}: {calls:#?}");
                }
                assert!(
                    *outcome != "ok" || call.outcome != "interrupted",
                    "{key:?}: {calls:#?}"
                );
            }
        }
        for row in &ledger.attempts {
            // Who waited for a batch can fail with a sibling before its own first call.
            let error = row.error.as_deref().unwrap_or_default();
            let needs_none = row.outcome == "interrupted" || error.contains("(group = all)");
            assert!(
                needs_none || self.0.contains_key(&row.key()),
                "without a call: {row:?}"
            );
        }
    }

    /// Every request that a server counted has exactly one row, of its kind; and a row has a request, unless it was
    /// cut off, no connection came about, or it went with the first of its batch.
    #[track_caller]
    pub fn are_what_servers_counted(&self, agents: &Agents) -> Figures {
        let mut rows: BTreeMap<String, &CallRow> = BTreeMap::new();
        for (key, call) in self.rows() {
            let twice = rows.insert(request_id(key, call), call);
            assert!(twice.is_none(), "{key:?}: {call:?} and {twice:?}");
        }
        let mut seen = BTreeSet::new();
        for server in SERVERS {
            for request in agents.requests(server) {
                let id = request.request_id.as_deref();
                let id = id.unwrap_or_else(|| panic!("without an id: {request:?}"));
                let row = rows.get(id);
                let row = row.unwrap_or_else(|| panic!("no row of {server}: {request:?}"));
                let path = request.path.as_deref().unwrap();
                assert!(fits(&row.kind, server, path), "{row:?} of {server}{path}");
                let is_first = seen.insert(id.to_owned()) || may_come_again(&request);
                assert!(is_first, "sent twice: {request:?}");
            }
        }
        let unseen = || rows.iter().filter(|(id, _)| !seen.contains(*id));
        for (id, row) in unseen() {
            let was_not_sent = match (row.outcome.as_str(), row.http_status) {
                ("interrupted", None) | ("infra", None) => true,
                _ => row.kind == "step" && row.request_bytes == Some(0),
            };
            assert!(was_not_sent, "no server knows of {id}: {row:?}");
        }
        let interrupted = rows.values().filter(|row| row.outcome == "interrupted");
        Figures {
            requests: seen.len(),
            rows: rows.len(),
            interrupted: interrupted.count(),
            unseen: unseen().count(),
        }
    }

    /// Tokens of the input and the output of the calls of the model that gave a rollout.
    pub fn tokens(&self, (task, rollout): RolloutKey, attempt: i64) -> [i64; 2] {
        let calls = self.0[&(task, rollout, attempt)].iter();
        let of_model = calls.filter(|call| call.kind == "model" && call.outcome == "ok");
        of_model.fold([0, 0], |[input, output], call| {
            [
                input + call.input_tokens.unwrap(),
                output + call.output_tokens.unwrap(),
            ]
        })
    }
}

/// The `x-request-id` that a call was sent with.
fn request_id((task, rollout, attempt): &AttemptKey, call: &CallRow) -> String {
    let first = call.call - call.retry;
    let id = format!("{task}-{rollout}-a{attempt}-c{first}");
    match call.retry {
        0 => id,
        retry => format!("{id}-t{retry}"),
    }
}

fn fits(kind: &str, server: &str, path: &str) -> bool {
    match server {
        "sim_model" => kind == "model",
        "sim_environment" => (kind, path) == ("step", "/step"),
        "sim_gymnasium" => path == format!("/{kind}"),
        _ => match path {
            "/seed_session" | "/verify" => path == format!("/{kind}"),
            _ => kind == "tool",
        },
    }
}
