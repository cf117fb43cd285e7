//! [`Import`]: files of rows as tables of a session, and [`merge`], which writes their lines in the order of their keys.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use datafusion::prelude::SessionContext;

use super::error::{ImportError, RowProblem};
use super::keys::{AgentServers, ROLLOUT, RowKey, Runners, TASK, TaskKeys, renumbered};
use super::lines::{Line, LineRule, for_each_line};
use super::rows::{IMPORTED_ROLLOUTS, Placed, ResponseRule, Source, outcome, reduce};
use super::task_labels::TaskLabels;
use super::zeros::{Reading, ZeroRows, Zeros};
use crate::gym::GymRules;
use crate::json::Object;
use crate::outcome::{Answer, OutcomeBatchBuilder, Verdict};
use crate::read::{TaskBatchBuilder, TaskRow};
use crate::request::agent_name;
use crate::schema::{AGENT_NAME, ROLLOUTS, TASK_INDEX, TASKS};
use crate::session::{Rows, Spool, row};
use crate::store::EnvironmentServer;

/// The kinds of files of rollouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutFiles {
    /// Shards of a collection: only LF ends a line, and blank lines are skipped. All rows say which task and rollout they
    /// are, or all count as task 0, rollout 0. Rows without the name of an agent in `agent_ref` are left out.
    Shards,
    /// The answers to materialized inputs. Each has a key and a response, and belongs to the agent that the input with
    /// the same key names.
    Results,
    /// The rollouts that an agent's server is shown: keys and responses may be missing.
    OfAgent(String),
}

/// How a file of rollouts is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutOptions {
    /// What the files are.
    pub files: RolloutFiles,
    /// The rules by which the rows are read.
    pub rules: &'static GymRules,
    /// Environment servers of agents, for rows that name none.
    pub servers: AgentServers,
    /// Which missing rollouts count as zero, where the files are shards.
    pub zeros: Zeros,
}

/// Reads files into the tables `tasks` and `rollouts`. They have the columns of a run's tables, with
/// one row of `tasks` for each rollout that was asked for, and say where each row was read. Of an
/// answer, `result` keeps what metrics can read; its text stays in the file. The rows go to temporary
/// files as they are read; only keys are held in memory.
pub struct Import {
    spool: Spool,
    keys: TaskKeys,
    /// The query for the rollouts that count.
    view: &'static str,
    tasks: Placed<TaskBatchBuilder>,
    rollouts: Placed<OutcomeBatchBuilder>,
    with_keys: u64,
    without_keys: u64,
    without_agent: u64,
    runners: Runners,
    zeros: ZeroRows,
}

/// The result of an import besides its tables, which can be read as long as this exists.
#[derive(Debug)]
pub struct Imported {
    /// Names of the tasks.
    pub labels: TaskLabels,
    /// Rows of `rollouts`.
    pub num_rollouts: u64,
    /// Whether some rows do not say which task and rollout they are, and count as 0.
    pub without_keys: bool,
    /// Rows that name no agent although they should, and are not in `rollouts`.
    pub without_agent: u64,
    /// Environment servers by the names of their rollouts in reports.
    pub servers: BTreeMap<String, EnvironmentServer>,
    /// Notes on missing rollouts.
    pub notes: Vec<String>,
    _files: Spool,
}

impl Import {
    /// Creates an import.
    ///
    /// # Errors
    /// There is no place for temporary files.
    pub fn new() -> Result<Self, ImportError> {
        let spool = Spool::new()?;
        Ok(Self {
            tasks: Placed::tasks(&spool)?,
            rollouts: Placed::rollouts(&spool)?,
            spool,
            keys: TaskKeys::default(),
            view: "SELECT * FROM imported_rollouts",
            with_keys: 0,
            without_keys: 0,
            without_agent: 0,
            runners: Runners::default(),
            zeros: ZeroRows::default(),
        })
    }

    /// Reads materialized inputs. `shown` is the name of the file in messages.
    ///
    /// # Errors
    /// The file cannot be read, or a row is malformed, has no key, or does not say what ran it.
    pub fn materialized_inputs(
        &mut self,
        path: &Path,
        shown: &str,
        rules: &GymRules,
    ) -> Result<(), ImportError> {
        let none = AgentServers::new();
        let file = Arc::from(shown);
        for_each_line(path, shown, LineRule::Text, |line| {
            let row = line.row()?;
            let key = self
                .keys
                .key(&row)
                .map_err(|problem| line.problem(problem))?;
            let agent = self.runners.of(&row, &none, rules);
            // An agent may have an empty name.
            if agent.is_empty() && agent_name(&row).is_none() {
                return Err(line.problem(RowProblem::NoAgent));
            }
            // Leaves out what differs between the rollouts of a task.
            let mut request = String::new();
            row.write_without(&[TASK, ROLLOUT], &mut request);
            let task = TaskRow {
                task_index: key.task_index,
                first_rollout_index: key.rollout_index,
                num_repeats: 1,
                agent_name: Arc::from(agent),
                source_file: Arc::clone(&file),
                source_line: line.number,
                // Only runs on disk are joined by the digest.
                task_digest: [0; 16],
                request,
            };
            self.tasks
                .append(Source::of(&line, 0), |tasks| tasks.append(&task))
        })
    }

    /// Reads files of rollouts, each with its name in messages.
    ///
    /// # Errors
    /// A file cannot be read, or a row is malformed or not what the options want.
    pub fn rollouts<P: AsRef<Path>>(
        &mut self,
        files: &[(P, String)],
        options: &RolloutOptions,
    ) -> Result<(), ImportError> {
        let is_shard = options.files == RolloutFiles::Shards;
        let (lines, mut response) = match &options.files {
            RolloutFiles::Shards => {
                self.view = include_str!("../../queries/import/rollouts_of_agents.sql");
                (LineRule::Shard, ResponseRule::Stripped)
            }
            RolloutFiles::Results => {
                self.view = include_str!("../../queries/import/rollouts_of_inputs.sql");
                (LineRule::Text, ResponseRule::Required)
            }
            RolloutFiles::OfAgent(_) => (LineRule::Text, ResponseRule::Optional),
        };
        if options.rules.lenient_rows && !is_shard {
            response = ResponseRule::Any;
        }
        for (number, (path, shown)) in files.iter().enumerate() {
            for_each_line(path.as_ref(), shown, lines, |line| {
                let row = line.row()?;
                let key = self.rollout_key(&row, &line, options)?;
                let result = reduce(&row, response, options.rules);
                let result = result.map_err(|problem| line.problem(problem))?;
                let answer = Answer::parse(result);
                let mut answer = answer.map_err(|_| line.problem(RowProblem::NotAnObject))?;
                answer.fields.masked &= options.rules.masks;
                let agent = match &options.files {
                    RolloutFiles::Shards => {
                        let name = self.runners.of(&row, &options.servers, options.rules);
                        self.without_agent += u64::from(name.is_empty());
                        name
                    }
                    RolloutFiles::Results => String::new(),
                    RolloutFiles::OfAgent(name) => name.clone(),
                };
                if options.zeros.any() {
                    self.zeros.done(number, &agent, key, &row);
                }
                let outcome = outcome(key, 0, &agent, Verdict::Ok(answer));
                let source = Source::of(&line, number);
                self.rollouts.append(source, |rows| rows.append(outcome))
            })?;
        }
        if is_shard && options.rules.servers {
            let mut reading = Reading {
                keys: &mut self.keys,
                runners: &mut self.runners,
                servers: &options.servers,
                rules: options.rules,
            };
            for (number, (path, shown)) in files.iter().enumerate() {
                let zeros = &options.zeros;
                let found = self
                    .zeros
                    .of_shard(number, path.as_ref(), zeros, &mut reading);
                for ((runner, key), result) in found? {
                    let answer = Answer::parse(result);
                    let answer = answer.map_err(|_| ImportError::Row {
                        path: shown.clone(),
                        line: 0,
                        problem: RowProblem::NotAnObject,
                    })?;
                    let outcome = outcome(key, 0, &runner, Verdict::Ok(answer));
                    let source = Source::nowhere(number);
                    self.rollouts.append(source, |rows| rows.append(outcome))?;
                    self.with_keys += 1;
                }
            }
        }
        Ok(())
    }

    fn rollout_key(
        &mut self,
        row: &Object<'_>,
        line: &Line<'_>,
        options: &RolloutOptions,
    ) -> Result<RowKey, ImportError> {
        let needs_keys = options.files == RolloutFiles::Results;
        let is_lenient = options.rules.lenient_rows && !needs_keys;
        let has_keys = is_lenient || row.contains(TASK) && row.contains(ROLLOUT);
        self.with_keys += u64::from(has_keys);
        self.without_keys += u64::from(!has_keys);
        if options.files == RolloutFiles::Shards && self.with_keys.min(self.without_keys) > 0 {
            let spelled = |has_keys| if has_keys { "both" } else { "not both of" };
            return Err(line.problem(RowProblem::MixedKeys {
                what: spelled(has_keys),
                earlier: spelled(!has_keys),
            }));
        }
        let key = if needs_keys {
            self.keys.key(row)
        } else {
            self.keys.key_or_zero(row)
        };
        key.map_err(|problem| line.problem(problem))
    }

    /// Registers in a session the tables `tasks` and `imported_rollouts`, and the view
    /// `rollouts` of what counts.
    ///
    /// # Errors
    /// The session has such tables already, or refuses them.
    pub async fn register(self, ctx: &SessionContext) -> Result<Imported, ImportError> {
        let (names, ranks) = self.keys.ranks().unzip();
        let columns = [
            (AGENT_NAME, self.runners.labelled()),
            (TASK_INDEX, ranks.map(renumbered)),
        ];
        self.tasks.finish()?.register(ctx)?;
        self.rollouts.finish()?.register(ctx)?;
        for name in [TASKS, IMPORTED_ROLLOUTS] {
            for (column, values) in &columns {
                if let Some(values) = values {
                    let table = ctx.table(name).await?.with_column(column, values.clone())?;
                    ctx.deregister_table(name)?;
                    ctx.register_table(name, table.into_view())?;
                }
            }
        }
        ctx.register_table(ROLLOUTS, ctx.sql(self.view).await?.into_view())?;
        Ok(Imported {
            labels: TaskLabels(names),
            num_rollouts: self.with_keys + self.without_keys,
            without_keys: self.without_keys > 0,
            without_agent: self.without_agent,
            servers: self.runners.servers(),
            notes: self.zeros.notes(),
            _files: self.spool,
        })
    }
}

impl Imported {
    /// Refuses two rows of `tasks` with one key, and two of `rollouts`.
    ///
    /// # Errors
    /// There are such, or the tables cannot be read.
    pub async fn check_profile(&self, ctx: &SessionContext) -> Result<(), ImportError> {
        let sql = include_str!("../../queries/import/duplicate_input.sql");
        if let Some(key) = self.first_key(ctx, sql).await? {
            return Err(ImportError::DuplicateInput(key));
        }
        match self.first_duplicate(ctx, true).await? {
            Some(key) => Err(ImportError::DuplicateResult(key)),
            None => Ok(()),
        }
    }

    /// Refuses two rollouts of one agent with one key, and rollouts without keys. An aggregation sees
    /// its rows as inputs, too, hence the name in the message. The error names the smallest key,
    /// or, unless `in_key_order`, the first in the files.
    ///
    /// # Errors
    /// There are such, or the tables cannot be read.
    pub async fn check_aggregate(
        &self,
        ctx: &SessionContext,
        in_key_order: bool,
    ) -> Result<(), ImportError> {
        if let Some(key) = self.first_duplicate(ctx, in_key_order).await? {
            return Err(ImportError::DuplicateInput(key));
        }
        if self.without_keys && ctx.table("rollouts").await?.count().await? > 0 {
            return Err(ImportError::NoKeys);
        }
        Ok(())
    }

    async fn first_duplicate(
        &self,
        ctx: &SessionContext,
        in_key_order: bool,
    ) -> Result<Option<String>, ImportError> {
        let sql = if in_key_order {
            include_str!("../../queries/import/smallest_duplicate_rollout.sql")
        } else {
            include_str!("../../queries/import/first_duplicate_rollout.sql")
        };
        self.first_key(ctx, sql).await
    }

    async fn first_key(
        &self,
        ctx: &SessionContext,
        sql: &str,
    ) -> Result<Option<String>, ImportError> {
        let first = Rows::of(ctx, sql, Key::rows).await?.next().await?;
        Ok(first.map(|key| self.labels.key(key.task_index, key.rollout_index)))
    }
}

row! {
    struct Key {
        task_index: i64,
        rollout_index: i64,
    }
}

row! {
    /// The place of a line.
    struct Place {
        source_number: u64,
        source_offset: u64,
        source_length: u64,
    }
}

/// Writes every imported rollout's line as it stands in its file, by task and rollout, those of one
/// key in the order of the files. `files` are those that were imported. Only keys are sorted: the
/// lines are read again one by one.
///
/// # Errors
/// A file has changed or gone, or the output cannot be written.
pub async fn merge<P: AsRef<Path>>(
    ctx: &SessionContext,
    files: &[(P, String)],
    out: &mut impl Write,
) -> Result<(), ImportError> {
    let mut sources = Vec::new();
    for (path, shown) in files {
        let file = File::open(path).map_err(|source| ImportError::Read {
            path: shown.clone(),
            source,
        })?;
        sources.push((file, shown.as_str()));
    }
    let sql = include_str!("../../queries/import/merge.sql");
    let mut places = Rows::of(ctx, sql, Place::rows).await?;
    let mut line = Vec::new();
    while let Some(place) = places.next().await? {
        if let Some((file, shown)) = sources.get_mut(place.source_number as usize) {
            let failed = |source| ImportError::Read {
                path: (*shown).to_owned(),
                source,
            };
            line.resize(place.source_length as usize, 0);
            file.seek(SeekFrom::Start(place.source_offset))
                .map_err(failed)?;
            file.read_exact(&mut line).map_err(failed)?;
            line.push(b'\n');
            out.write_all(&line).map_err(ImportError::Write)?;
        }
    }
    Ok(())
}
