//! Rollouts that are not among the rows of a shard, but count as zero: those that failed in certain ways, and those that
//! left no row at all. [`ZeroRows`] makes rows of them, as NeMo Gym does since 0.7.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use indexmap::{IndexMap, IndexSet};

use super::collection::{FAILURES, INPUTS, with_suffix};
use super::error::ImportError;
use super::keys::{AgentServers, ROLLOUT, RowKey, Runners, TASK, TaskKeys};
use super::lines::{Line, LineRule, for_each_line};
use super::rows::{ResponseRule, reduce};
use crate::gym::GymRules;
use crate::json::{Object, unquote};
use crate::outcome::MASK_SAMPLE;
use crate::outcome::resume::FAILURE_CLASS;
use crate::request::{AGENT_REF, ENVIRONMENT_SERVER, RESPONSES_CREATE_PARAMS};

/// Which rollouts count as zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zeros {
    /// Rollouts whose last failure is of one of these classes (`_ng_failure_class`).
    pub failure_classes: Vec<String>,
    /// Whether planned rollouts that neither answered nor failed count.
    pub missing: bool,
}

impl Zeros {
    /// Whether any rollouts count as zero.
    pub fn any(&self) -> bool {
        self.missing || !self.failure_classes.is_empty()
    }
}

/// What ran a rollout, and which one it is.
pub type Key = (String, RowKey);

/// Fields that describe a failure and are in no score.
const OF_FAILURES: [&str; 2] = ["failure_kind", "failure_reason"];

/// What became of rollouts. Callers first note all that are done, then, shard by shard, those that failed and those that
/// were planned.
#[derive(Debug, Default)]
pub struct ZeroRows {
    shards: BTreeMap<usize, Shard>,
    /// The fields that rows of each runner have.
    fields: HashMap<String, IndexSet<String>>,
    counted: u64,
    missing: u64,
    nobodys: u64,
    uncounted: u64,
    materialized: u64,
}

#[derive(Debug, Default)]
struct Shard {
    done: HashSet<Key>,
    /// The last failure of each rollout that is not done.
    failures: IndexMap<Key, LastFailure>,
    zeros: IndexMap<Key, String>,
}

#[derive(Debug, Default)]
struct LastFailure {
    /// Its position among all failures.
    place: u64,
    class: Option<String>,
    /// Its row, kept only if its class counts as zero: failures can be many, and rows large.
    text: Option<String>,
}

/// How the rows of a shard's other files are read.
pub(super) struct Reading<'a> {
    pub(super) keys: &'a mut TaskKeys,
    pub(super) runners: &'a mut Runners,
    pub(super) servers: &'a AgentServers,
    pub(super) rules: &'static GymRules,
}

impl ZeroRows {
    fn shard(&mut self, shard: usize) -> &mut Shard {
        self.shards.entry(shard).or_default()
    }

    /// Notes a rollout of a shard that is done.
    pub fn done(&mut self, shard: usize, runner: &str, key: RowKey, row: &Object<'_>) {
        self.shard(shard).done.insert((runner.to_owned(), key));
        let known = self.fields.entry(runner.to_owned()).or_default();
        for name in row.names().filter(|name| is_of_task(name)) {
            if !known.contains(name) {
                known.insert(name.to_owned());
            }
        }
    }

    /// Notes a failed attempt at a rollout: the one with the greatest `place` counts.
    pub fn failed(&mut self, shard: usize, key: Key, place: u64, text: &str, zeros: &Zeros) {
        let shard = self.shard(shard);
        if shard.done.contains(&key) {
            return;
        }
        let known = shard.failures.entry(key).or_default();
        if place >= known.place {
            let row = Object::parse(text).unwrap_or_default();
            let class = row.get(FAILURE_CLASS).and_then(unquote);
            let class = class.map(Cow::into_owned);
            let counts = |class: &String| zeros.failure_classes.contains(class);
            let text = class.as_ref().is_some_and(counts).then(|| text.to_owned());
            *known = LastFailure { place, class, text };
        }
    }

    /// Counts the failed rollouts of a shard whose class counts as zero.
    pub fn count_failures(&mut self, shard: usize) {
        let mut uncounted = 0;
        let shard = self.shard(shard);
        for (key, failure) in &mut shard.failures {
            if let Some(text) = failure.text.take() {
                let row = Object::parse(&text).unwrap_or_default();
                shard.zeros.insert(key.clone(), of_failure(&row));
            } else {
                uncounted += 1;
            }
        }
        let counted = shard.zeros.len() as u64;
        self.counted += counted;
        self.uncounted += uncounted;
    }

    /// Notes a rollout that was planned.
    pub fn planned(&mut self, shard: usize, key: Key, row: &Object<'_>, zeros: &Zeros) {
        let is_nobodys = key.0.is_empty();
        self.nobodys += u64::from(is_nobodys && zeros.missing);
        self.materialized += u64::from(!is_nobodys);
        let of = self.shard(shard);
        if !of.zeros.contains_key(&key) {
            let is_missing = !of.failures.contains_key(&key) && !of.done.contains(&key);
            if !zeros.missing || !is_missing || is_nobodys {
                return;
            }
            of.zeros.insert(key.clone(), of_input(row));
            self.missing += 1;
        }
        let known = self.fields.get(&key.0);
        let of = self.shards.get_mut(&shard);
        if let Some(text) = of.and_then(|of| of.zeros.get_mut(&key)) {
            *text = with_fields(text, row, known);
        }
    }

    /// Takes the rows of a shard that count as zero.
    pub fn take(&mut self, shard: usize) -> impl Iterator<Item = (Key, String)> {
        std::mem::take(&mut self.shard(shard).zeros).into_iter()
    }

    /// Returns how many rollouts failed, by the class of their last failure.
    pub fn failure_classes(&self) -> BTreeMap<String, u64> {
        let mut classes = BTreeMap::new();
        let shards = self.shards.values();
        for failure in shards.flat_map(|shard| shard.failures.values()) {
            let class = failure.class.clone().unwrap_or_default();
            *classes.entry(class).or_default() += 1;
        }
        classes
    }

    /// Returns the rows that count as zero, from the files beside a file of rollouts.
    ///
    /// # Errors
    /// A file beside it can't be read, or a row of it is malformed.
    pub(super) fn of_shard(
        &mut self,
        shard: usize,
        path: &Path,
        zeros: &Zeros,
        reading: &mut Reading<'_>,
    ) -> Result<Vec<(Key, String)>, ImportError> {
        let beside = |what| with_suffix(&path.with_extension(""), what);
        let rules = reading.rules;
        reading.rows(&beside(FAILURES), |key, row, line| {
            if zeros.any() {
                let text = reduce(row, ResponseRule::Stripped, rules).unwrap_or_default();
                self.failed(shard, key, line.number, &text, zeros);
            }
        })?;
        if !zeros.any() {
            return Ok(Vec::new());
        }
        self.count_failures(shard);
        reading.rows(&beside(INPUTS), |key, row, _| {
            self.planned(shard, key, row, zeros);
        })?;
        let rows = self.take(shard).map(|(key, text)| {
            let row = Object::parse(&text).unwrap_or_default();
            let result = reduce(&row, ResponseRule::Stripped, rules);
            (key, result.unwrap_or_default())
        });
        Ok(rows.collect())
    }

    /// Returns notes for the user.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.nobodys > 0 {
            notes.push(format!(
                "{} materialized rollouts name no agent and no environment server, and are not counted",
                self.nobodys
            ));
        }
        if self.counted > 0 {
            notes.push(format!("{} failed rollouts count as zero", self.counted));
        }
        if self.missing > 0 {
            notes.push(format!(
                "{} rollouts that left no row count as zero",
                self.missing
            ));
        }
        if self.uncounted > 0 {
            notes.push(format!(
                "{} failed rollouts are not in any score{}",
                self.uncounted,
                match self.materialized {
                    0 => String::new(),
                    all => format!(", of {all} materialized"),
                }
            ));
        }
        notes
    }
}

impl Reading<'_> {
    /// Calls `take` for every row of a file, if it is there.
    fn rows(
        &mut self,
        path: &Path,
        mut take: impl FnMut(Key, &Object<'_>, &Line<'_>),
    ) -> Result<(), ImportError> {
        if !path.is_file() {
            return Ok(());
        }
        let shown = path.display().to_string();
        for_each_line(path, &shown, LineRule::Shard, |line| {
            let row = line.row()?;
            let key = self.keys.key_or_zero(&row);
            let key = key.map_err(|problem| line.problem(problem))?;
            let runner = self.runners.of(&row, self.servers, self.rules);
            take((runner, key), &row, &line);
            Ok(())
        })
    }
}

/// Whether a path can be that of a file of rollouts, and not of one of the files beside it.
pub fn is_shard(path: &str) -> bool {
    let stem = Path::new(path).file_stem().unwrap_or_default();
    let stem = stem.to_string_lossy();
    let mut beside = [FAILURES, INPUTS].into_iter();
    !beside.any(|end| stem.ends_with(end.trim_end_matches(".jsonl")))
}

/// Whether a field may come from the task.
fn is_of_task(name: &str) -> bool {
    !name.starts_with('_') && name != "response" && name != RESPONSES_CREATE_PARAMS
}

/// Returns a failure's row without its failure fields, and with a reward of zero if it has none.
fn of_failure(row: &Object<'_>) -> String {
    let mut zero = row.clone();
    let is_kept = |name: &str| !name.starts_with("_ng_failure_") && !OF_FAILURES.contains(&name);
    for name in row.names().filter(|name| !is_kept(name)) {
        zero.remove(name);
    }
    zero.set(MASK_SAMPLE, "false");
    if !zero.contains("reward") {
        zero.set("reward", "0.0");
    }
    zero.to_string()
}

/// Returns the row of a materialized rollout with a reward of zero.
fn of_input(row: &Object<'_>) -> String {
    let mut zero = Object::default();
    for name in [TASK, ROLLOUT, AGENT_REF, ENVIRONMENT_SERVER] {
        if let Some(value) = row.get(name) {
            zero.set(name, value.to_owned());
        }
    }
    zero.set("reward", "0.0");
    zero.to_string()
}

/// Returns a row with those fields of its task that answered rollouts have too.
fn with_fields(text: &str, input: &Object<'_>, known: Option<&IndexSet<String>>) -> String {
    let mut row = Object::parse(text).unwrap_or_default();
    for (name, _, value) in input.iter() {
        let is_known = known.is_some_and(|known| known.contains(name));
        if is_known && !row.contains(name) {
            row.set(name.to_owned(), value.to_owned());
        }
    }
    row.to_string()
}
