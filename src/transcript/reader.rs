//! [`Reader`]: finds rollouts in the tables of a run, and reads one of them.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::StringViewArray;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::cast::as_string_view_array;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use serde_json::{Map, Value};

use super::conversation::{self, Item};
use super::{Attempt, RolloutState, Transcript};
use crate::error::Error;
use crate::json::Object;
use crate::session::{self, Rows, RunTables, row};
use crate::store::RunStore;

/// The query for the tasks of a run, in which `$metrics` stands for more columns.
pub(crate) const TASKS: &str = include_str!("../../queries/transcript/tasks.sql");
const QUESTIONS: &str = include_str!("../../queries/transcript/questions.sql");
const FAILURES: &str = include_str!("../../queries/transcript/failures.sql");

/// The most rollouts of a selection: their keys are held in memory.
pub const MAX_SELECTED: usize = 100_000;

/// Characters of a prompt that the list of tasks has room for.
const QUESTION: usize = 200;

row! {
    /// A rollout of a run.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Key {
        /// Index of the task.
        pub task_index: i64,
        /// Index of the rollout within its task.
        pub rollout_index: i64,
    }
}

row! {
    /// A task, and how its rollouts did.
    #[derive(Debug, Clone, PartialEq, serde::Serialize)]
    pub struct TaskLine {
        /// Index of the task.
        pub task_index: i64,
        /// The agent.
        pub agent_name: String,
        /// Rollouts that the sweep asks for.
        pub num_rollouts: u64,
        /// Rollouts that have an answer.
        pub num_done: u64,
        /// Rollouts that failed for good.
        pub num_failed: u64,
        /// The mean reward of those that are done, without masked ones.
        pub mean_reward: Option<f64>,
        /// The beginning of the prompt.
        pub question: String,
    }
}

row! {
    struct Neighbours {
        previous: Option<i64>,
        next: Option<i64>,
    }
}

/// What a rollout was asked.
pub struct Prompt {
    /// The agent.
    pub agent_name: String,
    /// The input file of the task, as given.
    pub source_file: String,
    /// The line of the task in its input file, from 1.
    pub source_line: i64,
    /// The conversation before the first turn.
    pub items: Vec<Item>,
    /// The fields of the task that say what the right answer is.
    pub expected: Map<String, Value>,
}

/// The end of an answer.
pub(crate) struct Said {
    /// The last item of the conversation.
    pub text: String,
    /// The other fields of the answer: scores, and what was extracted from it.
    pub scores: Map<String, Value>,
}

row! {
    struct ResultRow {
        rollout_index: i64,
        result: String,
    }
}

row! {
    struct Question {
        task_index: i64,
        question: String,
    }
}

row! {
    struct Asked {
        agent_name: String,
        source_file: String,
        source_line: i64,
        request: String,
    }
}

row! {
    struct Answered {
        reward: Option<f64>,
        input_tokens: Option<i64>,
        output_tokens: Option<i64>,
        started_at: Option<String>,
        latency_ms: Option<f64>,
        truncated: bool,
        masked: bool,
        result: String,
    }
}

row! {
    struct Text {
        text: String,
    }
}

impl Key {
    /// The condition that is true of this rollout alone.
    pub(crate) fn condition(self) -> String {
        format!(
            "task_index = {} AND rollout_index = {}",
            self.task_index, self.rollout_index
        )
    }
}

/// Which rollouts are shown, and in which order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Select {
    /// Only those of this task.
    pub task_index: Option<i64>,
    /// Those that have no answer because their last attempt failed.
    pub failed: bool,
    /// The lowest reward first; of the same rewards, those of the task with the lowest mean.
    pub worst: bool,
}

impl Select {
    /// Returns the query for the keys. `condition` is over the columns of `rollouts`, or of `attempts` if those that
    /// failed are wanted.
    pub fn query(&self, condition: Option<&str>) -> String {
        let (with, from) = if self.failed {
            (format!("WITH failures AS (\n{FAILURES})\n"), "failures")
        } else {
            (String::new(), "rollouts")
        };
        let task = self.task_index.map(|task| format!("task_index = {task}"));
        // A line break ends a comment at the end of the condition.
        let given = condition.map(|condition| format!("({condition}\n)"));
        let conditions: Vec<String> = task.into_iter().chain(given).collect();
        let conditions = if conditions.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", conditions.join(" AND "))
        };
        let selected = format!("SELECT task_index, rollout_index FROM {from} {conditions}");
        let end = format!("task_index, rollout_index LIMIT {MAX_SELECTED}");
        if !self.worst || self.failed {
            return format!("{with}{selected} ORDER BY {end}");
        }
        // Among equal rewards, first those of the tasks that are solved least often.
        format!(
            "SELECT task_index, rollout_index
            FROM ({selected}) AS selected
            JOIN (
                SELECT task_index, rollout_index, reward, avg(reward) OVER (PARTITION BY task_index) AS mean_reward
                FROM rollouts
            ) AS scored USING (task_index, rollout_index)
            ORDER BY reward ASC NULLS LAST, mean_reward ASC NULLS LAST, {end}"
        )
    }
}

/// The rollouts of one task, and the tasks beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// The rollouts in order, done or not.
    pub keys: Vec<Key>,
    /// The task before it.
    pub previous: Option<i64>,
    /// The task after it.
    pub next: Option<i64>,
}

/// Reads rollouts from the tables of a run.
pub struct Reader {
    run: RunStore,
    session: SessionContext,
}

impl Reader {
    /// Looks at a run.
    ///
    /// # Errors
    /// The store failed.
    pub async fn open(run: RunStore) -> Result<Self, Error> {
        let session = Self::look_at(&run).await?;
        Ok(Self { run, session })
    }

    /// Looks at the run again: it may be growing.
    ///
    /// # Errors
    /// The store failed.
    pub async fn look(&mut self) -> Result<(), Error> {
        self.session = Self::look_at(&self.run).await?;
        Ok(())
    }

    async fn look_at(run: &RunStore) -> Result<SessionContext, Error> {
        let mut config = session::config()
            .with_target_partitions(1)
            .with_batch_size(64);
        // The answers are large, and only those of the rollout that is asked for are decoded.
        config.options_mut().execution.parquet.pushdown_filters = true;
        let session = SessionContext::new_with_config(config);
        RunTables::look(run).await?.register(&session).await?;
        register_questions(&session);
        Ok(session)
    }

    /// Returns the tasks, the one with the lowest mean reward first.
    ///
    /// # Errors
    /// The tables can't be read.
    pub async fn tasks(&self) -> Result<Vec<TaskLine>, Error> {
        let counts = TASKS.replace("$metrics", "");
        let sql = QUESTIONS.replace("$counts", &counts);
        let rows = Rows::of(&self.session, &sql, TaskLine::rows).await?;
        Ok(rows.collect().await?)
    }

    /// Returns the rollouts of a selection.
    ///
    /// # Errors
    /// The tables can't be read.
    pub async fn select(&self, select: &Select) -> Result<Vec<Key>, Error> {
        let rows = Rows::of(&self.session, &select.query(None), Key::rows).await?;
        Ok(rows.collect().await?)
    }

    /// Returns the rollouts of a task; none if there is no such task.
    ///
    /// # Errors
    /// The tables can't be read.
    pub async fn task(&self, task: i64) -> Result<Walk, Error> {
        let keys = format!(
            "SELECT DISTINCT task_index, rollout_index FROM (
                SELECT task_index, unnest(range(first_rollout_index, first_rollout_index + num_repeats)) AS rollout_index
                FROM tasks WHERE task_index = {task}
            ) AS planned ORDER BY rollout_index"
        );
        let neighbours = format!(
            "SELECT max(task_index) FILTER (WHERE task_index < {task}) AS previous,
                min(task_index) FILTER (WHERE task_index > {task}) AS next FROM tasks"
        );
        let keys = Rows::of(&self.session, &keys, Key::rows).await?;
        let keys = keys.collect().await?;
        let mut neighbours = Rows::of(&self.session, &neighbours, Neighbours::rows).await?;
        let neighbours = neighbours.next().await?;
        Ok(Walk {
            keys,
            previous: neighbours.as_ref().and_then(|found| found.previous),
            next: neighbours.and_then(|found| found.next),
        })
    }

    /// Returns the beginning of the prompts of some tasks, in one line each. `tasks` is a list of their indices as SQL
    /// has it.
    ///
    /// # Errors
    /// The tables can't be read.
    pub(crate) async fn questions(&self, tasks: &str) -> Result<HashMap<i64, String>, Error> {
        if tasks.is_empty() {
            return Ok(HashMap::new());
        }
        let sql = format!(
            "SELECT task_index, question(request) AS question FROM tasks WHERE task_index IN ({tasks})"
        );
        let rows = Rows::of(&self.session, &sql, Question::rows).await?;
        let rows = rows.collect().await?.into_iter();
        Ok(rows.map(|row| (row.task_index, row.question)).collect())
    }

    /// Returns the texts of all tasks or rollouts: index of the task, of the rollout, and a column of text. Few of them
    /// are in memory at a time.
    ///
    /// # Errors
    /// The tables can't be read.
    pub(crate) async fn texts(
        &self,
        table: &str,
        rollout: &str,
        text: &str,
    ) -> Result<SendableRecordBatchStream, Error> {
        let sql = format!("SELECT task_index, {rollout}, {text} FROM {table}");
        Ok(self.session.sql(&sql).await?.execute_stream().await?)
    }

    /// Returns the answer of a rollout as it came; `None` if there is none.
    ///
    /// # Errors
    /// The tables can't be read.
    pub async fn result(&self, key: Key) -> Result<Option<String>, Error> {
        let sql = format!(
            "SELECT result AS text FROM rollouts WHERE {}",
            key.condition()
        );
        let mut rows = Rows::of(&self.session, &sql, Text::rows).await?;
        Ok(rows.next().await?.map(|row| row.text))
    }

    /// Returns what rollouts of a task said last, by the index of the rollout.
    ///
    /// # Errors
    /// The tables can't be read.
    pub(crate) async fn said(
        &self,
        task_index: i64,
        rollouts: RangeInclusive<i64>,
    ) -> Result<HashMap<i64, Said>, Error> {
        let (first, last) = rollouts.into_inner();
        let key = Key {
            task_index,
            rollout_index: first,
        };
        let asked = self.asked(key).await?.map(|asked| asked.request);
        let request = Object::parse(asked.as_deref().unwrap_or_default()).unwrap_or_default();
        let sql = format!(
            "SELECT rollout_index, result FROM rollouts WHERE task_index = {task_index}
                AND rollout_index BETWEEN {first} AND {last}"
        );
        let mut said = HashMap::new();
        let mut rows = Rows::of(&self.session, &sql, ResultRow::rows).await?;
        while let Some(row) = rows.next().await? {
            let Ok(answer) = Object::parse(&row.result) else {
                continue;
            };
            let items = conversation::answer(&answer, Vec::new());
            let last = Said {
                text: items
                    .into_iter()
                    .next_back()
                    .map_or_else(String::new, |item| item.text),
                scores: conversation::fields(&answer, Some(&request)),
            };
            said.insert(row.rollout_index, last);
        }
        Ok(said)
    }

    async fn asked(&self, key: Key) -> Result<Option<Asked>, Error> {
        let Key {
            task_index,
            rollout_index,
        } = key;
        let asked = format!(
            "SELECT agent_name, source_file, source_line, request FROM tasks WHERE task_index = {task_index}
                AND first_rollout_index <= {rollout_index} AND {rollout_index} < first_rollout_index + num_repeats"
        );
        let mut asked = Rows::of(&self.session, &asked, Asked::rows).await?;
        Ok(asked.next().await?)
    }

    /// Reads what a rollout was asked; `None` if there is no such task.
    ///
    /// # Errors
    /// The tables can't be read.
    pub async fn prompt(&self, key: Key) -> Result<Option<Prompt>, Error> {
        let Some(asked) = self.asked(key).await? else {
            return Ok(None);
        };
        let request = Object::parse(&asked.request).unwrap_or_default();
        let (expected, _) = conversation::expected(conversation::fields(&request, None));
        Ok(Some(Prompt {
            items: conversation::prompt(&request),
            expected,
            agent_name: asked.agent_name,
            source_file: asked.source_file,
            source_line: asked.source_line,
        }))
    }

    /// Reads a rollout; `None` if there is no such task.
    ///
    /// # Errors
    /// The tables can't be read.
    pub async fn read(&self, key: Key) -> Result<Option<Transcript>, Error> {
        let Key {
            task_index,
            rollout_index,
        } = key;
        let this = key.condition();
        let attempts = format!(
            "SELECT attempt, outcome, http_status, error, terminal, dispatched_at, server_ms
            FROM attempts WHERE {this} ORDER BY attempt"
        );
        let answered = format!(
            "SELECT reward, input_tokens, output_tokens, started_at, latency_ms, truncated, masked, result
            FROM rollouts WHERE {this}"
        );
        let Some(asked) = self.asked(key).await? else {
            return Ok(None);
        };
        let attempts = Rows::of(&self.session, &attempts, Attempt::rows).await?;
        let attempts = attempts.collect().await?;
        let mut answered = Rows::of(&self.session, &answered, Answered::rows).await?;
        let answered = answered.next().await?;
        let request = Object::parse(&asked.request).unwrap_or_default();
        let prompt = conversation::prompt(&request);
        let (expected, task) = conversation::expected(conversation::fields(&request, None));
        let mut transcript = Transcript {
            task_index,
            rollout_index,
            agent_name: asked.agent_name,
            state: RolloutState::Pending,
            reward: None,
            input_tokens: None,
            output_tokens: None,
            started_at: None,
            latency_ms: None,
            truncated: false,
            masked: false,
            source_file: asked.source_file,
            source_line: asked.source_line,
            tools: conversation::tools(&request),
            items: Vec::new(),
            expected,
            task,
            scores: Map::new(),
            attempts,
        };
        if let Some(answered) = answered {
            transcript.state = RolloutState::Done;
            transcript.reward = answered.reward;
            transcript.input_tokens = answered.input_tokens;
            transcript.output_tokens = answered.output_tokens;
            transcript.started_at = answered.started_at;
            transcript.latency_ms = answered.latency_ms;
            transcript.truncated = answered.truncated;
            transcript.masked = answered.masked;
            transcript.add_answer(&answered.result, &request, prompt);
            return Ok(Some(transcript));
        }
        if transcript.attempts.iter().any(|attempt| attempt.terminal) {
            transcript.state = RolloutState::Failed;
        }
        let last = format!(
            "SELECT answer AS text FROM attempts WHERE {this} AND answer IS NOT NULL ORDER BY attempt DESC LIMIT 1"
        );
        let mut last = Rows::of(&self.session, &last, Text::rows).await?;
        match last.next().await? {
            Some(last) => transcript.add_answer(&last.text, &request, prompt),
            None => transcript.items = prompt,
        }
        Ok(Some(transcript))
    }
}

impl Transcript {
    fn add_answer(&mut self, text: &str, request: &Object<'_>, mut prompt: Vec<Item>) {
        let Ok(answer) = Object::parse(text) else {
            let text = crate::json::unquote(text).unwrap_or(text.into());
            prompt.push(Item::other("answer", text));
            self.items = prompt;
            return;
        };
        self.scores = conversation::fields(&answer, Some(request));
        self.items = conversation::answer(&answer, prompt);
    }
}

/// Registers `question(request)`: the beginning of a request's prompt, in one line.
fn register_questions(session: &SessionContext) {
    let function = |columns: &[ColumnarValue]| {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        let requests = as_string_view_array(&columns[0])?.iter();
        let questions = requests.map(|request| {
            let question = conversation::question(request?)?;
            let words = question.split_whitespace().flat_map(|word| [" ", word]);
            let letters = words.skip(1).flat_map(str::chars);
            Some(letters.take(QUESTION).collect::<String>())
        });
        let questions = questions.collect::<StringViewArray>();
        Ok(ColumnarValue::Array(Arc::new(questions)))
    };
    session.register_udf(create_udf(
        "question",
        vec![DataType::Utf8View],
        DataType::Utf8View,
        Volatility::Immutable,
        Arc::new(function),
    ));
}
