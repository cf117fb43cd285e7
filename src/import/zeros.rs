//! Rollouts that are not among the rows of a shard, and count as zero all the same: those that failed in certain ways, and
//! those that left no row at all. [`ZeroRows`] makes rows of them, as NeMo Gym does since 0.7.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use indexmap::{IndexMap, IndexSet};

use super::collection::{FAILURES, INPUTS, with_suffix};
use super::error::ImportError;
use super::keys::{ROLLOUT, RowKey, TASK, TaskKeys};
use super::lines::{Line, LineRule, for_each_line};
use super::rollout::{ResponseRule, reduce};
use super::runners::{AgentServers, Runners};
use super::tables::{failed, parse};
use crate::answer::MASK_SAMPLE;
use crate::gym::GymRules;
use crate::json::{Object, unquote};
use crate::request::{AGENT_REF, ENVIRONMENT_SERVER, RESPONSES_CREATE_PARAMS};

/// Which rollouts count as zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zeros {
    /// Those whose last failure is of one of these classes (`_ng_failure_class`).
    pub failure_classes: Vec<String>,
    /// Those that were materialized, and neither answered nor failed.
    pub missing: bool,
}

impl Zeros {
    /// Some do.
    pub fn any(&self) -> bool {
        self.missing || !self.failure_classes.is_empty()
    }
}

/// What ran a rollout, and which one it is.
type Key = (String, RowKey);

/// Fields that say of a failure what a score does not.
const OF_FAILURES: [&str; 2] = ["failure_kind", "failure_reason"];

/// What real rows say, as far as zeros need it, and what became of the rest.
#[derive(Debug, Default)]
pub(super) struct ZeroRows {
    /// The rollouts of each shard.
    done: Vec<HashSet<Key>>,
    /// The fields that rows of a runner have.
    fields: HashMap<String, IndexSet<String>>,
    counted: u64,
    missing: u64,
    nobodys: u64,
    uncounted: u64,
    materialized: u64,
}

/// A row that counts as zero.
pub(super) struct ZeroRow {
    pub(super) shard: usize,
    pub(super) runner: String,
    pub(super) key: RowKey,
    pub(super) result: String,
}

/// How the rows of a shard's other files are read.
pub(super) struct Reading<'a> {
    pub(super) keys: &'a mut TaskKeys,
    pub(super) runners: &'a mut Runners,
    pub(super) servers: &'a AgentServers,
    pub(super) rules: &'static GymRules,
}

impl ZeroRows {
    /// Takes notice of a rollout of a shard.
    pub(super) fn see(&mut self, shard: usize, runner: &str, key: RowKey, row: &Object<'_>) {
        if self.done.len() <= shard {
            self.done.resize_with(shard + 1, HashSet::new);
        }
        if let Some(done) = self.done.get_mut(shard) {
            done.insert((runner.to_owned(), key));
        }
        let known = self.fields.entry(runner.to_owned()).or_default();
        for name in row.names().filter(|name| is_of_task(name)) {
            if !known.contains(name) {
                known.insert(name.to_owned());
            }
        }
    }

    /// The rows of a shard that count as zero.
    ///
    /// # Errors
    /// A file beside it can't be read, or a row of it is malformed.
    pub(super) fn of_shard(
        &mut self,
        shard: usize,
        path: &Path,
        zeros: &Zeros,
        reading: &mut Reading<'_>,
    ) -> Result<Vec<ZeroRow>, ImportError> {
        let none = HashSet::new();
        let done = self.done.get(shard).unwrap_or(&none);
        let mut failures: IndexMap<Key, String> = IndexMap::new();
        reading.rows(
            &with_suffix(&path.with_extension(""), FAILURES),
            |key, _, line| {
                failures.insert(key, line.text.clone());
            },
        )?;
        if !zeros.any() {
            return Ok(Vec::new());
        }
        failures.retain(|key, _| !done.contains(key));
        let mut counted: IndexMap<Key, String> = IndexMap::new();
        for (key, text) in &failures {
            let row = Object::parse(text).unwrap_or_default();
            let class = row.get("_ng_failure_class").and_then(unquote);
            match class.is_some_and(|class| zeros.failure_classes.iter().any(|one| *one == *class))
            {
                true => drop(counted.insert(key.clone(), of_failure(&row))),
                false => self.uncounted += 1,
            }
        }
        self.counted += counted.len() as u64;
        let (fields, done) = (&self.fields, done.clone());
        let (mut missing, mut nobodys, mut materialized) = (0, 0, 0);
        reading.rows(
            &with_suffix(&path.with_extension(""), INPUTS),
            |key, row, _| {
                let is_nobodys = key.0.is_empty();
                nobodys += u64::from(is_nobodys && zeros.missing);
                materialized += u64::from(!is_nobodys);
                if !counted.contains_key(&key) {
                    let is_missing = !failures.contains_key(&key) && !done.contains(&key);
                    if !zeros.missing || !is_missing || is_nobodys {
                        return;
                    }
                    missing += 1;
                    counted.insert(key.clone(), of_input(row));
                }
                let known = fields.get(&key.0);
                if let Some(text) = counted.get_mut(&key) {
                    *text = with_fields(text, row, known);
                }
            },
        )?;
        self.missing += missing;
        self.nobodys += nobodys;
        self.materialized += materialized;
        let rows = counted.into_iter().map(|((runner, key), text)| {
            let row = Object::parse(&text).unwrap_or_default();
            let result = reduce(&row, ResponseRule::Stripped, reading.rules).unwrap_or_default();
            ZeroRow {
                shard,
                runner,
                key,
                result,
            }
        });
        Ok(rows.collect())
    }

    /// What is to be known of it.
    pub(super) fn notes(&self) -> Vec<String> {
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
                "{} failed rollouts are in no score{}",
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
        mut take: impl FnMut(Key, &Object<'_>, &Line),
    ) -> Result<(), ImportError> {
        if !path.is_file() {
            return Ok(());
        }
        let shown = path.display().to_string();
        for_each_line(path, &shown, LineRule::Shard, |line| {
            let row = parse(&line, &shown)?;
            let key = self.keys.key_or_zero(&row);
            let key = key.map_err(|problem| failed(problem, &line, &shown))?;
            let runner = self.runners.of(&row, self.servers, self.rules);
            take((runner, key), &row, &line);
            Ok(())
        })
    }
}

/// Whether a file can be one of rollouts, and not one that stands beside such.
pub fn is_shard(path: &str) -> bool {
    let stem = Path::new(path).file_stem().unwrap_or_default();
    let stem = stem.to_string_lossy();
    let mut beside = [FAILURES, INPUTS].into_iter();
    !beside.any(|end| stem.ends_with(end.trim_end_matches(".jsonl")))
}

/// Whether a field can be one that a task brings.
fn is_of_task(name: &str) -> bool {
    !name.starts_with('_') && name != "response" && name != RESPONSES_CREATE_PARAMS
}

/// A failure's row without what it says of the failure, with a reward of zero unless it has one.
fn of_failure(row: &Object<'_>) -> String {
    let is_kept = |name: &str| !name.starts_with("_ng_failure_") && !OF_FAILURES.contains(&name);
    let dropped: Vec<&str> = row.names().filter(|name| !is_kept(name)).collect();
    let mut kept = String::new();
    row.write_without(&dropped, &mut kept);
    let mut zero = Object::parse(&kept).unwrap_or_default();
    zero.set(MASK_SAMPLE, "false");
    if !zero.contains("reward") {
        zero.set("reward", "0.0");
    }
    zero.to_string()
}

/// A materialized row as the row of a rollout with a reward of zero.
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

/// A row with those fields of its task that real rows have as well.
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
