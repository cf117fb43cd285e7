//! [`Import`]: files of rows to tables of a session.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use super::builder::{RolloutRows, Source, TaskRows, renumbered, rollouts_schema, tasks_schema};
use super::error::{ImportError, RowProblem};
use super::keys::{ROLLOUT, RowKey, TASK, TaskKeys};
use super::lines::{Line, LineRule, for_each_line};
use super::rollout::{ResponseRule, reduce};
use super::runners::{AgentServers, Runners};
use super::zeros::{Reading, ZeroRows, Zeros};
use crate::gym::GymRules;
use crate::json::{Object, ObjectError};
use crate::outcome::AnswerFields;
use crate::python::repr_str;
use crate::request::{ENVIRONMENT_SERVER, agent_name};
use crate::store::EnvironmentServer;

/// Whose rollouts a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSource {
    /// Of `agent_ref.name` of each row; rows without are no rollouts of anyone, and are left out.
    Row,
    /// Of the agent of the materialized input with the same key, whatever the rows say.
    Inputs,
    /// One agent's, whatever the rows say.
    Fixed(String),
}

/// Whether rows must say which task and rollout they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    /// Each must.
    Required,
    /// All or none: rows of both kinds cannot be put in order. None count as task 0, rollout 0.
    AllOrNone,
    /// What is missing counts as 0.
    Optional,
}

/// What the rows of a file of rollouts are like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutOptions {
    /// Blank lines are passed over, and only LF ends a line: so it is with shards.
    pub is_shard: bool,
    /// Whether rows must say which task and rollout they are.
    pub keys: KeyRule,
    /// What a row must have of a response.
    pub response: ResponseRule,
    /// Whose they are.
    pub agent: AgentSource,
    /// By which rules they are read.
    pub rules: &'static GymRules,
    /// Environment servers of agents, for rows that name none.
    pub servers: AgentServers,
    /// Which rollouts count as zero that are not there, where the files are shards.
    pub zeros: Zeros,
}

/// Reads files into the tables `tasks` and `rollouts`. They have the columns of a run's tables, with
/// one row of `tasks` for each rollout that was asked for, and say where each row was read. Of an
/// answer, `result` keeps what metrics can read; its text stays in the file.
#[derive(Default)]
pub struct Import {
    keys: TaskKeys,
    agent: Option<AgentSource>,
    tasks: Vec<RecordBatch>,
    rollouts: Vec<RecordBatch>,
    with_keys: u64,
    without_keys: u64,
    without_agent: u64,
    runners: Runners,
    zeros: ZeroRows,
}

/// What an import gave beside the tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// Names of the tasks by index, where they are named by strings.
    pub task_names: Option<Vec<String>>,
    /// Rows of `rollouts`.
    pub num_rollouts: u64,
    /// Some do not say which task and rollout they are, and count as 0.
    pub without_keys: bool,
    /// Rows that name no agent, though they were to, and are not in `rollouts`.
    pub without_agent: u64,
    /// Environment servers by what their rollouts are called.
    pub servers: BTreeMap<String, EnvironmentServer>,
    /// What is to be known of rollouts that are not there.
    pub notes: Vec<String>,
}

impl Import {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads materialized inputs. `shown` is the file in messages.
    ///
    /// # Errors
    /// The file cannot be read, or a row is malformed or has no key, or nobody that ran it.
    pub fn materialized_inputs(
        &mut self,
        path: &Path,
        shown: &str,
        rules: &GymRules,
    ) -> Result<(), ImportError> {
        let none = AgentServers::new();
        let mut rows = TaskRows::new();
        for_each_line(path, shown, LineRule::Text, |line| {
            let row = parse(&line, shown)?;
            let failed = |problem| failed(problem, &line, shown);
            let key = self.keys.key(&row).map_err(failed)?;
            let agent = match self.runners.of(&row, &none, rules) {
                // An agent may have an empty name.
                name if name.is_empty() && agent_name(&row).is_none() => {
                    return Err(failed(RowProblem::NoAgent));
                }
                name => name,
            };
            let request = without_keys(&row);
            rows.append(key, &agent, &request, shown, source(&line, 0))
        })?;
        self.tasks.extend(rows.finish()?);
        Ok(())
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
        let mut rows = RolloutRows::new();
        let rule = match options.is_shard {
            true => LineRule::Shard,
            false => LineRule::Text,
        };
        for (number, (path, shown)) in files.iter().enumerate() {
            for_each_line(path.as_ref(), shown, rule, |line| {
                let row = parse(&line, shown)?;
                let failed = |problem| failed(problem, &line, shown);
                let key = self.rollout_key(&row, &line, shown, options)?;
                let response = match (options.rules.lenient_rows, options.response) {
                    (true, ResponseRule::Required | ResponseRule::Optional) => ResponseRule::Any,
                    (_, rule) => rule,
                };
                let result = reduce(&row, response, options.rules).map_err(failed)?;
                let mut fields =
                    AnswerFields::parse(&result).map_err(|_| failed(RowProblem::NotAnObject))?;
                fields.masked &= options.rules.masks;
                let agent = match &options.agent {
                    AgentSource::Row => {
                        let name = self.runners.of(&row, &options.servers, options.rules);
                        self.without_agent += u64::from(name.is_empty());
                        name
                    }
                    AgentSource::Inputs => String::new(),
                    AgentSource::Fixed(name) => name.clone(),
                };
                if options.zeros.any() {
                    self.zeros.done(number, &agent, key, &row);
                }
                rows.append(key, &agent, result, fields, source(&line, number))
            })?;
        }
        if options.is_shard && options.rules.servers {
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
                    .of_shard(number, path.as_ref(), zeros, &mut reading)?;
                for zero in found {
                    let fields = AnswerFields::parse(&zero.result);
                    let fields = fields.map_err(|_| ImportError::Row {
                        path: shown.clone(),
                        line: 0,
                        problem: RowProblem::NotAnObject,
                    })?;
                    let nowhere = Source::nowhere(zero.shard);
                    rows.append(zero.key, &zero.runner, zero.result, fields, nowhere)?;
                    self.with_keys += 1;
                }
            }
        }
        self.rollouts.extend(rows.finish()?);
        self.agent = Some(options.agent.clone());
        Ok(())
    }

    fn rollout_key(
        &mut self,
        row: &Object<'_>,
        line: &Line,
        shown: &str,
        options: &RolloutOptions,
    ) -> Result<RowKey, ImportError> {
        let is_lenient = options.rules.lenient_rows && options.keys != KeyRule::Required;
        let has_keys = is_lenient || row.contains(TASK) && row.contains(ROLLOUT);
        let seen = match has_keys {
            true => &mut self.with_keys,
            false => &mut self.without_keys,
        };
        *seen += 1;
        if options.keys == KeyRule::AllOrNone && self.with_keys.min(self.without_keys) > 0 {
            let spelled = |has_keys| if has_keys { "both" } else { "not both of" };
            return Err(ImportError::MixedKeys {
                path: shown.to_owned(),
                line: line.number,
                what: spelled(has_keys),
                earlier: spelled(!has_keys),
            });
        }
        let key = match options.keys {
            KeyRule::Required => self.keys.key(row),
            KeyRule::AllOrNone | KeyRule::Optional => self.keys.key_or_zero(row),
        };
        key.map_err(|problem| failed(problem, line, shown))
    }

    /// Registers in a session the tables `tasks` and `imported_rollouts`, in memory, and the view
    /// `rollouts` of what counts.
    ///
    /// # Errors
    /// The session has such tables, or does not take them.
    pub async fn register(self, ctx: &SessionContext) -> Result<Imported, ImportError> {
        let ranks = self.keys.ranks();
        let tables = [
            ("tasks", tasks_schema(), self.tasks),
            ("imported_rollouts", rollouts_schema(), self.rollouts),
        ];
        for (name, schema, batches) in tables {
            let ranks = ranks.as_ref().map(|(_, ranks)| ranks.as_slice());
            let batches: Result<Vec<_>, _> = batches
                .iter()
                .map(|batch| self.runners.labelled(batch))
                .collect();
            register(ctx, name, schema, batches?, ranks)?;
        }
        let view = match self.agent {
            Some(AgentSource::Row) => include_str!("../../queries/import/rollouts_of_agents.sql"),
            Some(AgentSource::Inputs) => {
                include_str!("../../queries/import/rollouts_of_inputs.sql")
            }
            Some(AgentSource::Fixed(_)) | None => "SELECT * FROM imported_rollouts",
        };
        ctx.register_table("rollouts", ctx.sql(view).await?.into_view())?;
        Ok(Imported {
            task_names: ranks.map(|(names, _)| names),
            num_rollouts: self.with_keys + self.without_keys,
            without_keys: self.without_keys > 0,
            without_agent: self.without_agent,
            servers: self.runners.servers(),
            notes: self.zeros.notes(),
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
    /// its rows as inputs, too, hence the name in the message. Of several, the smallest key is named,
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
        match self.without_keys && ctx.table("rollouts").await?.count().await? > 0 {
            true => Err(ImportError::NoKeys),
            false => Ok(()),
        }
    }

    async fn first_duplicate(
        &self,
        ctx: &SessionContext,
        in_key_order: bool,
    ) -> Result<Option<String>, ImportError> {
        let sql = match in_key_order {
            true => include_str!("../../queries/import/smallest_duplicate_rollout.sql"),
            false => include_str!("../../queries/import/first_duplicate_rollout.sql"),
        };
        self.first_key(ctx, sql).await
    }

    async fn first_key(
        &self,
        ctx: &SessionContext,
        sql: &str,
    ) -> Result<Option<String>, ImportError> {
        let batches = ctx.sql(sql).await?.collect().await?;
        let Some(batch) = batches.iter().find(|batch| batch.num_rows() > 0) else {
            return Ok(None);
        };
        let index = |column: usize| batch.column(column).as_primitive::<Int64Type>().value(0);
        let (task, rollout) = (index(0), index(1));
        let names = self.task_names.as_ref();
        let name = usize::try_from(task).ok();
        let name = name.and_then(|task| names.and_then(|names| names.get(task)));
        let task = name.map_or_else(|| task.to_string(), |name| repr_str(name));
        Ok(Some(format!("({task}, {rollout})")))
    }
}

/// Whether rows of a file say which environment server they came from, as those of NeMo Gym do since 0.7. The first one
/// tells.
///
/// # Errors
/// The file cannot be read.
pub fn is_stamped(path: &Path) -> Result<bool, ImportError> {
    let shown = path.display().to_string();
    let mut first = Ok(false);
    let found = for_each_line(path, &shown, LineRule::Shard, |line| {
        first = parse(&line, &shown).map(|row| STAMPS.iter().any(|stamp| row.contains(stamp)));
        Err(ImportError::Abandoned)
    });
    match found {
        // What is wrong with the row is said by whoever reads it.
        Err(ImportError::Abandoned) => Ok(first.unwrap_or(false)),
        found => found.map(|()| false),
    }
}

/// What the results of an environment server are stamped with.
const STAMPS: [&str; 2] = [ENVIRONMENT_SERVER, "_ng_result_type"];

fn register(
    ctx: &SessionContext,
    name: &str,
    schema: SchemaRef,
    mut batches: Vec<RecordBatch>,
    ranks: Option<&[i64]>,
) -> Result<(), ImportError> {
    if let Some(ranks) = ranks {
        for batch in &mut batches {
            *batch = renumbered(batch, ranks)?;
        }
    }
    let table = MemTable::try_new(schema, vec![batches])?;
    ctx.register_table(name, Arc::new(table))?;
    Ok(())
}

pub(super) fn parse<'a>(line: &'a Line, shown: &str) -> Result<Object<'a>, ImportError> {
    Object::parse(&line.text).map_err(|error| match error {
        ObjectError::Syntax(source) => ImportError::Malformed {
            path: shown.to_owned(),
            line: line.number,
            source,
        },
        ObjectError::NotAnObject(_) => failed(RowProblem::NotAnObject, line, shown),
    })
}

pub(super) fn failed(problem: RowProblem, line: &Line, shown: &str) -> ImportError {
    ImportError::Row {
        path: shown.to_owned(),
        line: line.number,
        problem,
    }
}

fn source(line: &Line, number: usize) -> Source {
    Source {
        number,
        line: line.number,
        offset: line.offset,
        length: line.text.len(),
    }
}

/// The row without what tells the rollouts of a task apart.
fn without_keys(row: &Object<'_>) -> String {
    let fields = row
        .iter()
        .filter(|(name, ..)| ![TASK, ROLLOUT].contains(name));
    let fields: Vec<String> = fields
        .map(|(_, quoted, value)| format!("{quoted}:{value}"))
        .collect();
    format!("{{{}}}", fields.join(","))
}
