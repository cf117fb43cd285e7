//! [`TaskReader`]: from inputs to [`TaskRow`]s, one line at a time.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use super::errors::{Finding, InputErrors, Kind};
use super::identity::{Content, Identity, line_key};
use super::lines::{Line, Lines};
use super::routes::Router;
use super::row::{self, Refusal};
use super::task::{AgentRows, ReadError, ReadOptions, ReadSummary, TaskRow};
use crate::config::SeedField;
use crate::json::{Object, quote};
use crate::python::repr_list;
use crate::request::{AGENT_REF, ENVIRONMENT_SERVER, RequestTemplate, TASK_INDEX, agent_ref};

/// Reads inputs one after another as if they were one.
///
/// ```
/// use rollstream::config::Repeats;
/// use rollstream::read::{ReadError, ReadOptions, TaskReader};
///
/// let mut tasks = TaskReader::new(ReadOptions {
///     agent_name: Some("alpha".into()),
///     repeats: Repeats::All(4),
///     ..ReadOptions::default()
/// });
/// let lines = "{\"responses_create_params\":{}}\n{\"responses_create_params\":{}}\n";
/// let mut rows = Vec::new();
/// tasks.read("tasks.jsonl", lines.as_bytes(), |row| Ok::<(), ReadError>(rows.push(row)))?;
/// assert_eq!((rows[1].task_index, rows[1].first_rollout_index), (0, 4));
/// assert_eq!(tasks.finish()?.agents["alpha"].rollouts, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TaskReader {
    options: ReadOptions,
    /// The `agent_ref` for rows without one, as JSON text.
    agent_ref: Option<(Arc<str>, String)>,
    /// Decides who gets a row, if rows are routed.
    router: Option<Router>,
    rows: u64,
    plan: Plan,
    /// Names under which rows look for their number of repeats.
    names: HashSet<Arc<str>>,
    errors: InputErrors,
}

/// The tasks planned so far.
#[derive(Default)]
struct Plan {
    identity: Identity,
    agents: BTreeMap<Arc<str>, AgentRows>,
    seed: Option<SeedField>,
}

impl Plan {
    /// Numbers the rollouts of a task, and counts them for its agent.
    fn add(&mut self, mut task: TaskRow) -> Result<TaskRow, Refusal> {
        if self.seed.is_some() {
            let template = RequestTemplate::new(&task.request, self.seed);
            template.map_err(|error| (Kind::Task, error.to_string()))?;
        }
        let agent = self.agents.entry(Arc::clone(&task.agent_name)).or_default();
        agent.rows += 1;
        agent.rollouts += u64::from(task.num_repeats);
        task.first_rollout_index = self
            .identity
            .take_rollouts(task.task_index, task.num_repeats);
        Ok(task)
    }

    /// Returns the index of a row's task: the row's own, or that of its line, which is then written into the row.
    fn index(
        &mut self,
        row: &mut Object<'_>,
        line: &Line<'_>,
        digest: [u8; 16],
    ) -> Result<i64, Refusal> {
        if let Some(given) = row.get(TASK_INDEX) {
            return self.identity.of_value(given).ok_or_else(|| {
                let what =
                    format!("{TASK_INDEX} must be a number or a string, not an array or object");
                (Kind::Task, what)
            });
        }
        let index = self.identity.of_line(line_key(line, digest));
        row.set(TASK_INDEX, index.to_string());
        Ok(index)
    }
}

impl TaskReader {
    /// Creates a reader.
    pub fn new(mut options: ReadOptions) -> Self {
        let agent_name = options
            .agent_name
            .as_deref()
            .filter(|name| !name.is_empty());
        let agent_ref = agent_name.map(|name| (Arc::from(name), agent_ref(name)));
        let servers = options.servers.take();
        let routing = options.routing.take();
        let router = routing.map(|routing| Router::new(routing, servers));
        let plan = Plan {
            seed: options.seed,
            ..Plan::default()
        };
        Self {
            options,
            agent_ref,
            errors: InputErrors::new(router.is_some()),
            router,
            rows: 0,
            plan,
            names: HashSet::new(),
        }
    }

    /// Whether the limit has been reached, so that further inputs need not be opened.
    pub fn is_full(&self) -> bool {
        match self.options.limit {
            None | Some(0) => false,
            Some(limit) => u64::try_from(limit).map_or(true, |limit| self.rows >= limit),
        }
    }

    /// Reads one input to its end or the limit, and gives each task to `emit`. After the first line that cannot
    /// become a task, the following lines are only checked.
    ///
    /// # Errors
    /// If the input cannot be read to its end, or `emit` fails.
    pub fn read<E: From<ReadError>>(
        &mut self,
        name: &str,
        input: impl Read,
        mut emit: impl FnMut(TaskRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let file: Arc<str> = Arc::from(name);
        let mut lines = Lines::new(input);
        while !self.is_full() {
            let line = lines.number();
            let failed = |source| ReadError {
                file: Arc::clone(&file),
                line,
                source,
            };
            let Some(line) = lines.next().map_err(failed)? else {
                break;
            };
            let read = if self.router.is_some() {
                self.routed(&line, &file)
            } else {
                self.task(&line, &file).map(|task| vec![Ok(task)])
            };
            let tasks = read.unwrap_or_else(|refusal| vec![Err(refusal)]);
            for task in tasks {
                match task {
                    Ok(task) if self.errors.is_empty() => emit(task)?,
                    Ok(_) => {}
                    Err((kind, what)) => self.errors.add(
                        kind,
                        Finding {
                            row: self.rows,
                            file: Arc::clone(&file),
                            line: line.number,
                            what,
                        },
                    ),
                }
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// Returns the summary.
    ///
    /// # Errors
    /// If lines could not become tasks; the error has all of them.
    pub fn finish(mut self) -> Result<ReadSummary, InputErrors> {
        let repeats = &self.options.repeats;
        let mut warnings: Vec<String> = self.router.iter().filter_map(Router::warning).collect();
        if !self.errors.is_empty() {
            self.errors.set_listed_agents(repeats.listed());
            self.errors.warn(warnings);
            return Err(self.errors);
        }
        let seen = self.names.iter().chain(self.plan.agents.keys());
        let seen: HashSet<String> = seen.map(|name| name.to_string()).collect();
        let unused = repeats.unused(&seen);
        if !unused.is_empty() {
            warnings.push(format!(
                "num_repeats dict contains agent names that never appeared in input rows (possible typo?): {}",
                repr_list(unused)
            ));
        }
        Ok(ReadSummary {
            rows: self.rows,
            agents: self.plan.agents,
            num_replaced: self.router.as_ref().map_or(0, Router::num_replaced),
            routes: self.router.map(Router::into_routes).unwrap_or_default(),
            warnings,
        })
    }

    /// Returns the tasks of a line if rows are routed: one for each agent that gets it.
    fn routed(
        &mut self,
        line: &Line<'_>,
        file: &Arc<str>,
    ) -> Result<Vec<Result<TaskRow, Refusal>>, Refusal> {
        let Some(router) = &mut self.router else {
            return Ok(Vec::new());
        };
        let mut row = row::parse(line.text, &self.options)?;
        let mut way = router.way(&mut row)?;
        if way.is_task {
            row::refuse_changes(&self.options)?;
        } else {
            row::apply_overrides(&mut row, &self.options.overrides)?;
            row::fill_metadata(&mut row, self.options.seed)?;
        }
        let line_digest = Content::of(&row).digest;
        let task_index = self.plan.index(&mut row, line, line_digest)?;
        if let Some(server) = &way.server {
            row.set(ENVIRONMENT_SERVER, quote(server));
        }
        let mut tasks = Vec::new();
        let targets = std::mem::take(&mut way.targets);
        let mut left = targets.len();
        for target in &targets {
            left -= 1;
            let mut names: Vec<&Arc<str>> = target.name().into_iter().chain(&way.own).collect();
            names.dedup();
            for name in &names {
                if !self.names.contains(*name) {
                    self.names.insert(Arc::clone(name));
                }
            }
            let listed = self
                .options
                .repeats
                .for_first(names.iter().map(|name| &***name));
            let Some(num_repeats) = listed else {
                let names: Vec<&str> = names.into_iter().map(|name| &**name).collect();
                tasks.push(Err((Kind::UnlistedAgent, names.join(" / "))));
                continue;
            };
            let mut row = if left == 0 {
                std::mem::take(&mut row)
            } else {
                row.clone()
            };
            let agent_name = match router.address(&mut row, &way, target) {
                Ok(name) => name,
                Err(refusal) => {
                    tasks.push(Err(refusal));
                    continue;
                }
            };
            tasks.push(Ok(self.plan.add(TaskRow {
                task_index,
                first_rollout_index: 0,
                num_repeats,
                agent_name,
                source_file: Arc::clone(file),
                source_line: line.number,
                task_digest: Content::of(&row).digest,
                request: row.to_string(),
            })?));
        }
        Ok(tasks)
    }

    /// Returns the task of a line if rows name their agents.
    fn task(&mut self, line: &Line<'_>, file: &Arc<str>) -> Result<TaskRow, Refusal> {
        let mut row = row::parse(line.text, &self.options)?;
        let agent_name = match &self.agent_ref {
            Some((name, agent_ref)) if !row.contains(AGENT_REF) => {
                row.set(AGENT_REF, agent_ref.clone());
                name.clone()
            }
            _ => self.known_name(row::agent_name(&row)?),
        };
        self.plan.agents.entry(agent_name.clone()).or_default();
        row::apply_overrides(&mut row, &self.options.overrides)?;
        let content = Content::of(&row);
        let task_digest = content.digest;
        let task_index = self.plan.index(&mut row, line, task_digest)?;
        let num_repeats = self.options.repeats.for_agent(&agent_name);
        let num_repeats =
            num_repeats.ok_or_else(|| (Kind::UnlistedAgent, agent_name.to_string()))?;
        self.plan.add(TaskRow {
            task_index,
            first_rollout_index: 0,
            num_repeats,
            agent_name,
            source_file: Arc::clone(file),
            source_line: line.number,
            task_digest,
            request: content.numbered(&row, task_index),
        })
    }

    /// Returns the shared copy of a name that was seen before, or a new one.
    fn known_name(&self, name: String) -> Arc<str> {
        let known = self.plan.agents.get_key_value(name.as_str());
        known.map_or_else(|| Arc::from(name), |(known, _)| known.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Repeats;

    fn for_agent(name: &str) -> ReadOptions {
        ReadOptions {
            agent_name: Some(name.to_owned()),
            ..ReadOptions::default()
        }
    }

    /// Reads inputs that are called `0`, `1` and so on.
    fn read(
        options: ReadOptions,
        inputs: &[&str],
    ) -> (Vec<TaskRow>, Result<ReadSummary, InputErrors>) {
        let mut tasks = TaskReader::new(options);
        let mut rows = Vec::new();
        for (position, input) in inputs.iter().enumerate() {
            let emit = |row| {
                rows.push(row);
                Ok::<(), ReadError>(())
            };
            tasks
                .read(&position.to_string(), input.as_bytes(), emit)
                .unwrap();
        }
        (rows, tasks.finish())
    }

    #[test]
    fn the_same_line_is_the_same_task_in_any_input() {
        let options = ReadOptions {
            repeats: Repeats::All(2),
            ..for_agent("a")
        };
        let (first, second) = (
            r#"{"responses_create_params":{},"q":1}"#,
            r#"{"responses_create_params":{},"q":2}"#,
        );
        let inputs = [
            format!("{first}\n{second}\r\n"),
            format!("{second}\n{first}"),
        ];
        let (rows, summary) = read(options, &[&inputs[0], &inputs[1]]);
        let indices: Vec<_> = rows
            .iter()
            .map(|row| (row.task_index, row.first_rollout_index))
            .collect();
        // The last line has no line end, so it counts as another line, but its task has the same content.
        assert_eq!(indices, [(0, 0), (1, 0), (1, 2), (2, 0)]);
        assert_eq!(rows[0].task_digest, rows[3].task_digest);
        assert_ne!(rows[0].task_digest, rows[1].task_digest);
        assert_eq!((&*rows[2].source_file, rows[2].source_line), ("1", 1));
        assert_eq!(
            rows[1].request,
            r#"{"responses_create_params":{},"q":2,"agent_ref":{"name":"a"},"_ng_task_index":1}"#
        );
        assert_eq!(
            summary.unwrap().agents["a"],
            AgentRows {
                rows: 4,
                rollouts: 8
            }
        );
    }

    #[test]
    fn a_given_index_does_not_change_the_digest() {
        let input = r#"{"responses_create_params":{},"_ng_task_index":"x"}
            {"responses_create_params":{}, "_ng_task_index":7,"_ng_rollout_index":1}"#;
        let (rows, _) = read(for_agent("a"), &[input]);
        assert!(rows[0].task_index < 0 && rows[0].request.contains(r#""_ng_task_index":"x""#));
        assert_eq!(rows[1].task_index, 7);
        assert_eq!(rows[0].task_digest, rows[1].task_digest);
    }

    #[test]
    fn all_bad_lines_of_all_inputs_are_found_and_later_good_ones_withheld() {
        let good = r#"{"responses_create_params":{},"agent_ref":{"name":"a"}}"#;
        let inputs = [
            format!("{good}\n\n{{}}\n"),
            format!("{good}\n{{\"a\":}}\n[1]"),
        ];
        let (rows, summary) = read(ReadOptions::default(), &[&inputs[0], &inputs[1]]);
        assert_eq!(rows.len(), 1);
        let errors = summary.unwrap_err();
        let found: Vec<_> = errors
            .findings()
            .flat_map(|(kind, _, found)| {
                found
                    .iter()
                    .map(move |it| (kind, it.row, it.file.to_string(), it.line))
            })
            .collect();
        let expected = [
            (Kind::Malformed, 1, "0", 2),
            (Kind::Malformed, 4, "1", 2),
            (Kind::Task, 5, "1", 3),
            (Kind::NoAgent, 2, "0", 3),
        ];
        assert_eq!(
            found,
            expected.map(|(kind, row, file, line)| (kind, row, file.to_owned(), line))
        );
    }

    #[test]
    fn the_limit_counts_lines_of_all_inputs_and_later_ones_are_not_looked_at() {
        let line = "{\"responses_create_params\":{}}\n";
        let limited = |limit| {
            let options = ReadOptions {
                limit: Some(limit),
                ..for_agent("a")
            };
            read(options, &[line, &format!("{line}{line}"), "{bad"])
        };
        assert_eq!(limited(2).0.len(), 2);
        assert_eq!(limited(3).1.unwrap().rows, 3);
        assert_eq!(limited(-1).1.unwrap().rows, 0);
        assert!(limited(0).1.is_err());
    }

    #[test]
    fn a_seed_that_cannot_be_carried_is_found_while_reading() {
        let options = ReadOptions {
            seed: Some(SeedField::MetadataExtraBody),
            ..for_agent("a")
        };
        let (_, summary) = read(
            options,
            &[r#"{"responses_create_params":{"metadata":null}}"#],
        );
        assert!(summary.unwrap_err().messages()[0].contains("metadata must be an object"));
    }

    #[test]
    fn agents_without_a_number_are_errors_and_numbers_without_an_agent_warnings() {
        let input = r#"{"responses_create_params":{}}"#;
        let per_agent = |name: &str| ReadOptions {
            repeats: Repeats::PerAgent(vec![(name.to_owned(), 1), ("a".to_owned(), 1)]),
            ..for_agent("a")
        };
        let (rows, summary) = read(per_agent("typo"), &[input]);
        assert_eq!(rows.len(), 1);
        assert!(summary.unwrap().warnings[0].ends_with("(possible typo?): ['typo']"));

        let options = ReadOptions {
            agent_name: Some("b".to_owned()),
            ..per_agent("c")
        };
        let messages = read(options, &[input]).1.unwrap_err().messages();
        assert!(
            messages[0].ends_with("['b'] and no '_default' fallback. Listed agents: ['a', 'c']")
        );
    }

    #[test]
    fn an_input_that_breaks_off_says_where() {
        let mut tasks = TaskReader::new(for_agent("a"));
        let broken = "{\"responses_create_params\":{}}\n"
            .as_bytes()
            .chain(Broken);
        let error = tasks
            .read("in.jsonl.gz", broken, |_| Ok::<(), ReadError>(()))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "'in.jsonl.gz' cannot be read beyond line 1: bad block"
        );
    }

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("bad block"))
        }
    }
}
