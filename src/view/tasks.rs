//! The list of tasks, to sort and filter, and the page of one task with all its rollouts.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::execution::context::SQLOptions;
use maud::{Markup, PreEscaped, html};

use super::html::{Links, bar, maybe, pages, query, text};
use super::look::Look;
use super::rollout::{beginning, conversation, fields};
use super::server::Out;
use super::site::Asked;
use crate::error::Error;
use crate::query::{SqlSession, quoted_name};
use crate::schema;
use crate::session::{QueryError, Rows, row};
use crate::show::{count, number, visible_lines};
use crate::transcript::{Key, Said, TASKS};

/// The name of the table of tasks.
pub(super) const NAME: &str = "tasks";

const OF_TASK: &str = include_str!("../../queries/view/rollouts_of_task.sql");

/// Tasks of a page.
const PAGE: usize = 50;

/// Rollouts of a task on a page.
const ROLLOUTS: usize = 24;

/// Metrics that are columns of the table of tasks: a run may have hundreds.
const MAX_METRICS: usize = 24;

/// Bytes of a final answer beside those of other rollouts.
const ANSWER: usize = 600;

/// Returns the query for the table of tasks.
pub(super) async fn table(session: &SqlSession) -> Result<String, Error> {
    let rollouts = session.context().table(schema::ROLLOUTS).await?;
    let own = schema::rollouts();
    let names = rollouts
        .schema()
        .fields()
        .iter()
        .filter(|field| own.field_with_name(field.name()).is_err());
    let metrics = names.take(MAX_METRICS).map(|field| {
        let name = quoted_name(field.name());
        format!(", avg(CAST({name} AS DOUBLE)) AS {name}")
    });
    Ok(TASKS.replace("$metrics", &metrics.collect::<String>()))
}

row! {
    struct TaskKey {
        task_index: i64,
    }
}

row! {
    struct Total {
        total: u64,
    }
}

/// The list of tasks.
pub(super) async fn list(
    look: &Look,
    links: &Links,
    asked: &Asked,
    out: &Out,
) -> Result<(), Error> {
    let (condition, page) = (asked.get("where"), asked.page());
    let form = html! {
        h1 { "Tasks" }
        form class="filter" {
            label { "Only where " input name="where" value=(condition) size="50" spellcheck="false" placeholder="mean < 0.5 AND attempts > 8"; }
            input type="hidden" name="sort" value=(asked.get("sort"));
            input type="hidden" name="order" value=(asked.get("order"));
            " " button { "Filter" }
        }
    };
    out.put(form.into_string()).await;
    let session = look.tasks().await?;
    let schema = Arc::clone(session.table(NAME).await?.schema().inner());
    let columns: Vec<&str> = schema
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .collect();
    let sort = columns
        .iter()
        .find(|column| **column == asked.get("sort"))
        .unwrap_or(&"mean");
    let is_falling = asked.get("order") == "down";
    let order = if is_falling { "DESC" } else { "ASC" };
    // A line break ends a comment at the end of the condition.
    let chosen = if condition.is_empty() {
        String::new()
    } else {
        format!("WHERE ({condition}\n)")
    };
    let only_queries = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false);
    let planned = async |sql: String| {
        let frame = session.sql_with_options(&sql, only_queries).await;
        frame.map_err(|error| {
            QueryError::with_hint(error, format!("; the columns are {}", columns.join(", ")))
        })
    };
    let rows = planned(format!(
        "SELECT * FROM {NAME} {chosen} ORDER BY {} {order} NULLS LAST, task_index LIMIT {} OFFSET {}",
        quoted_name(sort),
        PAGE + 1,
        (page - 1) * PAGE
    ));
    let rows = rows.await?.collect().await?;
    let rows = concat_batches(&schema, &rows).map_err(Error::defect)?;
    let total = planned(format!("SELECT count(*) AS total FROM {NAME} {chosen}")).await?;
    let total = Rows::start(total, Total::rows)
        .await?
        .next()
        .await?
        .map_or(0, |row| row.total);
    let keys = TaskKey::rows(&rows.slice(0, rows.num_rows().min(PAGE)))?;
    let shown: Vec<String> = keys.iter().map(|row| row.task_index.to_string()).collect();
    let questions = look.reader().await?.questions(&shown.join(", ")).await?;
    let address = |sort: &str, order: &str, page: usize| {
        let page = if page > 1 {
            page.to_string()
        } else {
            String::new()
        };
        let query = query(&[
            ("where", condition),
            ("sort", sort),
            ("order", order),
            ("page", &page),
        ]);
        links.of_run(look.number, &format!("tasks{query}"))
    };
    let mut lines = String::new();
    {
        // A formatter can't wait for the page to be sent.
        let format = FormatOptions::new().with_null("–");
        let values = rows.columns().iter();
        let values = values.map(|column| ArrayFormatter::try_new(column, &format));
        let values: Vec<ArrayFormatter> =
            values.collect::<Result<_, _>>().map_err(Error::defect)?;
        for (line, TaskKey { task_index: task }) in keys.into_iter().enumerate() {
            let row = html! {
                tr {
                    @for (column, value) in columns.iter().zip(&values) {
                        @let shown = value.value(line).to_string();
                        @match *column {
                            "task_index" => {
                                td class="n" { a href=[links.task(look.number, task)] { (task) } }
                                @let question = questions.get(&task).map_or("", String::as_str);
                                td class="prompt" title=(visible_lines(question)) { (text(question)) }
                            }
                            "agent_name" => td { (text(&shown)) },
                            _ => td class="n" { (shown.parse().map_or(shown.clone(), number)) },
                        }
                    }
                }
            };
            lines.push_str(&row.into_string());
        }
    }
    let table = html! {
        p { (count(total)) " tasks" }
        div class="scroll" { table {
            thead { tr {
                @for column in &columns {
                    @let is_sort = column == sort;
                    th aria-sort=[is_sort.then_some(if is_falling { "descending" } else { "ascending" })] {
                        a href=[address(column, if is_sort && !is_falling { "down" } else { "" }, 1)] { (text(&column.replace('_', " "))) }
                        @if is_sort { (if is_falling { " ↓" } else { " ↑" }) }
                    }
                    @if *column == "task_index" { th { "prompt" } }
                }
            } }
            tbody { (PreEscaped(lines)) }
        } }
        (pages(page, rows.num_rows() > PAGE, |page| address(sort, asked.get("order"), page)))
    };
    out.put(table.into_string()).await;
    Ok(())
}

row! {
    /// A rollout of a task.
    pub(super) struct RolloutRow {
        pub(super) rollout_index: i64,
        pub(super) state: String,
        pub(super) reward: Option<f64>,
        pub(super) output_tokens: Option<f64>,
        pub(super) latency_ms: Option<f64>,
        pub(super) attempts: u64,
        pub(super) error: Option<String>,
    }
}

/// Returns the rollouts of a task.
pub(super) async fn rollouts(look: &Look, task: i64) -> Result<Vec<RolloutRow>, Error> {
    let sql = OF_TASK.replace("$task", &task.to_string());
    look.rows(&sql, RolloutRow::rows).await
}

/// The page of a task; `None` if there is no such task.
pub(super) async fn task(
    look: &Look,
    links: &Links,
    task: i64,
    page: usize,
) -> Result<Option<Markup>, Error> {
    let rows = rollouts(look, task).await?;
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let reader = look.reader().await?;
    let walk = reader.task(task).await?;
    let first = Key {
        task_index: task,
        rollout_index: first.rollout_index,
    };
    let Some(asked) = reader.prompt(first).await? else {
        return Ok(None);
    };
    let rewards: Vec<f64> = rows.iter().filter_map(|row| row.reward).collect();
    let mean = (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64);
    let done = rows.iter().filter(|row| row.state == "done").count();
    let begin = (page - 1) * ROLLOUTS;
    let end = rows.len().min(begin + ROLLOUTS);
    let shown = rows.get(begin..end).unwrap_or_default();
    let cards = cards(look, links, task, shown).await?;
    let link = |page: usize| links.of_run(look.number, &format!("tasks/{task}?page={page}"));
    Ok(Some(html! {
        h1 { "Task " (task) }
        p {
            (done) " of " (rows.len()) " rollouts done · mean reward " (maybe(mean))
            " · " (text(&asked.source_file)) ", line " (asked.source_line)
        }
        nav class="pages" aria-label="Tasks" {
            @if let Some(task) = walk.previous { a rel="prev" href=[links.task(look.number, task)] { "← task " (task) } }
            " "
            @if let Some(task) = walk.next { a rel="next" href=[links.task(look.number, task)] { "task " (task) " →" } }
        }
        section id="prompt" { h2 { "Prompt" } (conversation(&asked.items, |_| None)) }
        (fields("Expected", &asked.expected))
        h2 { "Rollouts" }
        section id="rollouts" class="cards" { (cards) }
        @if rows.len() > ROLLOUTS { (pages(page, rows.len() > begin + ROLLOUTS, link)) }
    }))
}

/// Rollouts of a task beside each other.
pub(super) async fn cards(
    look: &Look,
    links: &Links,
    task: i64,
    rows: &[RolloutRow],
) -> Result<Markup, Error> {
    let ends = rows.first().zip(rows.last());
    let Some((first, last)) = ends else {
        return Ok(html! {});
    };
    let range = first.rollout_index..=last.rollout_index;
    let said = look.reader().await?.said(task, range).await?;
    Ok(html! {
        @for row in rows { (card(look, links, task, row, said.get(&row.rollout_index))) }
    })
}

fn card(look: &Look, links: &Links, task: i64, row: &RolloutRow, said: Option<&Said>) -> Markup {
    let scores = said.into_iter().flat_map(|said| &said.scores);
    let scores = scores.filter(|(_, value)| value.is_number() || value.is_boolean());
    let attempts = if row.attempts == 1 {
        "attempt"
    } else {
        "attempts"
    };
    html! {
        article class={ "card " (row.state) } {
            h3 {
                a href=[links.rollout(look.number, task, row.rollout_index)] { "Rollout " (row.rollout_index) }
                " " span class="reward" { (row.reward.map_or_else(|| row.state.clone(), number)) }
            }
            @if let Some(reward) = row.reward.filter(|reward| (0.0..=1.0).contains(reward)) { (bar(reward)) }
            @match (said, &row.error) {
                (Some(said), _) => p class="answer" { (text(beginning(&said.text, ANSWER))) },
                (None, Some(error)) => p class="error" { (text(beginning(error, ANSWER))) },
                (None, None) => {}
            }
            p class="note" {
                @for (name, value) in scores.take(8) { (text(name)) " " (text(&value.to_string())) " · " }
                @if let Some(tokens) = row.output_tokens { (number(tokens)) " tokens · " }
                @if let Some(latency) = row.latency_ms { (number(latency.round())) " ms · " }
                (row.attempts) " " (attempts)
            }
        }
    }
}
