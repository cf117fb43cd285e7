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

/// A row of `turns`.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub call: i64,
    pub turn: i64,
    pub kind: String,
    pub outcome: String,
    pub http_status: Option<i32>,
    pub repetition: i64,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub request_bytes: Option<i64>,
}

/// `turns` of a run.
#[derive(Debug)]
pub struct Turns(pub BTreeMap<AttemptKey, Vec<Turn>>);

/// How many there were of what.
#[derive(Debug, Default)]
pub struct Figures {
    pub requests: usize,
    pub rows: usize,
    pub interrupted: usize,
    /// Rows that no server knows of: cut off before they arrived, or within a batch.
    pub unseen: usize,
}

impl Turns {
    /// Reads a run; the calls of each attempt in their order.
    pub fn read(run: &Path) -> Self {
        let mut turns: BTreeMap<AttemptKey, Vec<Turn>> = BTreeMap::new();
        for batch in parts(run, "turns")
            .iter()
            .flat_map(|part| batches(part, &[]))
        {
            let attempts = integers(&batch, "attempt");
            let [calls, numbers, repetitions] =
                ["call", "turn", "repetition"].map(|name| integers(&batch, name));
            let [input, output, sent] = ["input_tokens", "output_tokens", "request_bytes"]
                .map(|name| optional_integers(&batch, name));
            let statuses = column(&batch, "http_status").as_primitive::<Int32Type>();
            for (row, (task, rollout)) in keys(&batch).into_iter().enumerate() {
                let of_attempt = turns.entry((task, rollout, attempts[row])).or_default();
                of_attempt.push(Turn {
                    call: calls[row],
                    turn: numbers[row],
                    kind: text(&batch, "kind", row).unwrap(),
                    outcome: text(&batch, "outcome", row).unwrap(),
                    http_status: statuses.is_valid(row).then(|| statuses.value(row)),
                    repetition: repetitions[row],
                    input_tokens: input[row],
                    output_tokens: output[row],
                    request_bytes: sent[row],
                });
            }
        }
        turns
            .values_mut()
            .for_each(|of| of.sort_by_key(|turn| turn.call));
        Self(turns)
    }

    fn rows(&self) -> impl Iterator<Item = (&AttemptKey, &Turn)> {
        let attempts = self.0.iter();
        attempts.flat_map(|(key, turns)| turns.iter().map(move |turn| (key, turn)))
    }

    /// What holds at any time: calls are numbered from 0 without gaps, turns too, each repetition follows the try
    /// before it, and every attempt is in `attempts`; one that was not cut off has calls.
    #[track_caller]
    pub fn are_consistent(&self, ledger: &Ledger) {
        let outcomes: BTreeMap<AttemptKey, &str> = ledger
            .attempts
            .iter()
            .map(|row| (row.key(), row.outcome.as_str()))
            .collect();
        for (key, turns) in &self.0 {
            let outcome = outcomes.get(key);
            let outcome = outcome.unwrap_or_else(|| panic!("{key:?} is not in `attempts`"));
            for (number, turn) in turns.iter().enumerate() {
                assert_eq!(turn.call, number as i64, "{key:?}: {turns:#?}");
                let before = number.checked_sub(1).map(|before| &turns[before]);
                let before_turn = before.map_or(0, |before| before.turn);
                let is_next = (before_turn..=before_turn + 1).contains(&turn.turn);
                assert!(is_next, "{key:?}: {turns:#?}");
                if turn.repetition > 0 {
                    let before = before.unwrap();
                    let expected = ("model", turn.repetition - 1, turn.turn);
                    let actual = (before.kind.as_str(), before.repetition, before.turn);
                    assert_eq!(actual, expected, "{key:?}: {turns:#?}");
                }
                assert!(
                    *outcome != "ok" || turn.outcome != "interrupted",
                    "{key:?}: {turns:#?}"
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
        let mut rows: BTreeMap<String, &Turn> = BTreeMap::new();
        for (key, turn) in self.rows() {
            let twice = rows.insert(request_id(key, turn), turn);
            assert!(twice.is_none(), "{key:?}: {turn:?} and {twice:?}");
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
        let turns = self.0[&(task, rollout, attempt)].iter();
        let of_model = turns.filter(|turn| turn.kind == "model" && turn.outcome == "ok");
        of_model.fold([0, 0], |[input, output], turn| {
            [
                input + turn.input_tokens.unwrap(),
                output + turn.output_tokens.unwrap(),
            ]
        })
    }
}

/// The `x-request-id` that a call was sent with.
fn request_id((task, rollout, attempt): &AttemptKey, turn: &Turn) -> String {
    let first = turn.call - turn.repetition;
    let id = format!("{task}-{rollout}-a{attempt}-c{first}");
    match turn.repetition {
        0 => id,
        repetition => format!("{id}-t{repetition}"),
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
