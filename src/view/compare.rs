//! The page that compares two runs, and the page with the answers of both to the same task.

use std::collections::HashMap;
use std::sync::Arc;

use maud::{Markup, PreEscaped, html};
use tokio::sync::Mutex;

use super::chart::{Chart, Dot, short};
use super::html::{Links, maybe, pages, query, text};
use super::look::{Look, MEMORY};
use super::rollout::{conversation, fields};
use super::server::Out;
use super::site::{Asked, Site};
use super::tasks::{cards, rollouts};
use crate::error::Error;
use crate::measure::compare::{
    CompareRun, Compared, ComparisonOptions, ComparisonReport, compared,
};
use crate::schema::REWARD;
use crate::session::{Rows, row};
use crate::show::{count, number, probability, verdict};
use crate::transcript::Key;

/// Points of the scatter plot: more would hide each other.
const MAX_DOTS: usize = 1_000;

/// Tasks of a page.
const PAGE: usize = 50;

/// Rollouts of each side beside each other.
const BESIDE: usize = 8;

/// Comparisons that are kept: their tables are temporary files.
const MAX_KEPT: usize = 8;

/// A comparison of two runs in one metric.
pub(super) struct Pair {
    /// Its result.
    pub report: ComparisonReport,
    tables: Compared,
    looks: [Arc<Look>; 2],
}

/// What is compared: the runs and the metric.
type Wanted = (usize, usize, String);

/// The comparisons that were made.
#[derive(Default)]
pub(super) struct Comparisons(Mutex<HashMap<Wanted, Arc<Pair>>>);

impl Comparisons {
    /// Compares two runs, unless that was done and nothing has changed since.
    pub(super) async fn of(
        &self,
        base: &Arc<Look>,
        candidate: &Arc<Look>,
        metric: &str,
    ) -> Result<Arc<Pair>, Error> {
        let wanted = (base.number, candidate.number, metric.to_owned());
        let mut made = self.0.lock().await;
        let is_same = |pair: &&Arc<Pair>| {
            let [old_base, old_candidate] = &pair.looks;
            Arc::ptr_eq(old_base, base) && Arc::ptr_eq(old_candidate, candidate)
        };
        if let Some(pair) = made.get(&wanted).filter(is_same) {
            return Ok(Arc::clone(pair));
        }
        let options = ComparisonOptions {
            metrics: vec![metric.to_owned()],
            memory: MEMORY,
            ..ComparisonOptions::default()
        };
        let (report, tables) = compared(&side(base), &[side(candidate)], &options).await?;
        let pair = Arc::new(Pair {
            report,
            tables,
            looks: [Arc::clone(base), Arc::clone(candidate)],
        });
        if made.len() >= MAX_KEPT {
            made.clear();
        }
        made.insert(wanted, Arc::clone(&pair));
        Ok(pair)
    }
}

fn side(look: &Look) -> CompareRun {
    CompareRun {
        name: look.label.clone(),
        agent: None,
        place: look.run.display(""),
        run: look.run.clone(),
    }
}

row! {
    struct TaskPair {
        candidate_agent: String,
        base_task_index: i64,
        candidate_task_index: i64,
        base_mean: f64,
        candidate_mean: f64,
        difference: f64,
    }
}

impl Pair {
    async fn tasks(&self, condition: &str, order: &str) -> Result<Vec<TaskPair>, Error> {
        let sql = format!(
            "SELECT pairs.candidate_agent, base_task_index, candidate_task_index, base_mean, candidate_mean, difference
             FROM chosen JOIN pairs ON pairs.pair = chosen.pair
             WHERE base_mean IS NOT NULL AND candidate_mean IS NOT NULL {condition} ORDER BY {order}"
        );
        Ok(Rows::of(self.tables.session(), &sql, TaskPair::rows)
            .await?
            .collect()
            .await?)
    }

    /// What the comparison says, in words and numbers, with a scatter plot of the tasks.
    pub(super) async fn summary(&self, links: &Links) -> Result<Markup, Error> {
        // The key of a task is a hash: the first ones are a random sample.
        let tasks = self
            .tasks("", &format!("task_key LIMIT {MAX_DOTS}"))
            .await?;
        let numbers = [self.looks[0].number, self.looks[1].number];
        let dots = tasks.iter().map(|task| Dot {
            at: (task.base_mean, task.candidate_mean),
            title: format!(
                "task {}: {} and {}",
                task.base_task_index,
                number(task.base_mean),
                number(task.candidate_mean)
            ),
            link: side_by_side(links, numbers, task),
        });
        let metric = self
            .report
            .options
            .metrics
            .first()
            .map_or(REWARD, String::as_str);
        let chart = Chart {
            title: format!("Mean {metric} of each task: above the line the candidate is better"),
            x_title: "base",
            x_label: short,
            y_label: short,
        };
        Ok(html! {
            @for line in verdict(&self.report).lines() { p class="verdict" { (text(line)) } }
            div class="scroll" { table {
                thead { tr { th { "metric" } th { "agent" } th { "tasks" } th { "base" } th { "candidate" } th { "difference" } th { "95 % interval" } th { "p" } th { "gained" } th { "lost" } } }
                tbody { @for row in &self.report.comparisons {
                    tr {
                        td { (text(&row.metric)) } td { (text(&row.candidate_agent)) }
                        td class="n" { (count(row.num_tasks)) }
                        td class="n" { (maybe(Some(row.base_mean))) } td class="n" { (maybe(Some(row.candidate_mean))) }
                        td class="n" { (maybe(Some(row.difference))) }
                        td class="n" { (maybe(row.ci_low)) " … " (maybe(row.ci_high)) }
                        td class="n" { (row.p_holm.map_or_else(|| "–".to_owned(), probability)) }
                        td class="n" { (count(row.gained)) } td class="n" { (count(row.lost)) }
                    }
                } }
            } }
            (chart.scatter(&dots.collect::<Vec<_>>(), "candidate"))
        })
    }
}

fn side_by_side(links: &Links, [base, candidate]: [usize; 2], task: &TaskPair) -> Option<String> {
    let numbers = [
        base.to_string(),
        candidate.to_string(),
        task.base_task_index.to_string(),
        task.candidate_task_index.to_string(),
    ];
    let [base, candidate, base_task, candidate_task] = numbers.each_ref().map(String::as_str);
    links.to(&format!(
        "compare/task{}",
        query(&[
            ("base", base),
            ("candidate", candidate),
            ("base_task", base_task),
            ("candidate_task", candidate_task)
        ])
    ))
}

/// The page that compares two runs.
pub(super) async fn comparison(site: &Site, asked: &Asked, out: &Out) -> Result<(), Error> {
    let (base, candidate) = (
        asked.number("base").unwrap_or(1),
        asked.number("candidate").unwrap_or(2),
    );
    let metric = if asked.get("metric").is_empty() {
        REWARD
    } else {
        asked.get("metric")
    };
    let choice = |name: &str, chosen: usize| {
        html! {
            select name=(name) { @for (number, run) in (1..).zip(&site.runs) {
                option value=(number) selected[number == chosen] { (text(&run.label)) }
            } }
        }
    };
    let form = html! {
        h1 { "Compare" }
        form class="filter" {
            label { "Base " (choice("base", base)) } " "
            label { "candidate " (choice("candidate", candidate)) } " "
            label { "metric " input name="metric" value=(metric) size="20"; } " "
            button { "Compare" }
        }
    };
    out.put(form.into_string()).await;
    let pair = site
        .comparisons
        .of(
            &site.look(base).await?,
            &site.look(candidate).await?,
            metric,
        )
        .await?;
    out.put(pair.summary(&site.links).await?.into_string())
        .await;
    let page = asked.page();
    let limit = format!(
        "abs(difference) DESC, base_task_index LIMIT {} OFFSET {}",
        PAGE + 1,
        (page - 1) * PAGE
    );
    let tasks = pair.tasks("AND difference <> 0", &limit).await?;
    let link = |page: usize| {
        let numbers = [base, candidate, page].map(|number| number.to_string());
        let pairs = [
            ("base", &*numbers[0]),
            ("candidate", &*numbers[1]),
            ("metric", metric),
            ("page", &*numbers[2]),
        ];
        site.links.to(&format!("compare{}", query(&pairs)))
    };
    let table = html! {
        h2 { "Tasks that differ, the largest difference first" }
        div class="scroll" { table {
            thead { tr { th { "agent" } th { "task in the base" } th { "in the candidate" } th { "base" } th { "candidate" } th { "difference" } th {} } }
            tbody { @for task in tasks.iter().take(PAGE) {
                tr class=(if task.difference < 0.0 { "bad" } else { "" }) {
                    td { (text(&task.candidate_agent)) }
                    td class="n" { a href=[site.links.task(base, task.base_task_index)] { (task.base_task_index) } }
                    td class="n" { a href=[site.links.task(candidate, task.candidate_task_index)] { (task.candidate_task_index) } }
                    td class="n" { (number(task.base_mean)) } td class="n" { (number(task.candidate_mean)) }
                    td class="n" { (number(task.difference)) }
                    td { a href=[side_by_side(&site.links, [base, candidate], task)] { "answers side by side" } }
                }
            } }
        } }
        (pages(page, tasks.len() > PAGE, link))
    };
    out.put(table.into_string()).await;
    Ok(())
}

/// The answers of two runs to the same task, beside each other.
pub(super) async fn task(site: &Site, asked: &Asked, out: &Out) -> Result<(), Error> {
    let number = |name: &str, otherwise: usize| asked.number(name).unwrap_or(otherwise);
    let index = |name: &str| asked.get(name).parse::<i64>().unwrap_or_default();
    let sides = [
        (number("base", 1), index("base_task")),
        (number("candidate", 2), index("candidate_task")),
    ];
    let mut columns = String::new();
    for (number, (run, task)) in sides.into_iter().enumerate() {
        let look = site.look(run).await?;
        let rows = rollouts(&look, task).await?;
        let first = rows.first().map(|row| Key {
            task_index: task,
            rollout_index: row.rollout_index,
        });
        if let (0, Some(first)) = (number, first)
            && let Some(prompt) = look.reader().await?.prompt(first).await?
        {
            let prompt = html! {
                h1 { "Task " (task) }
                section id="prompt" { h2 { "Prompt" } (conversation(&prompt.items, |_| None)) }
                (fields("Expected", &prompt.expected))
            };
            out.put(prompt.into_string()).await;
        }
        let shown = rows.get(..rows.len().min(BESIDE)).unwrap_or_default();
        let cards = cards(&look, &site.links, task, shown).await?;
        let column = html! {
            section {
                h2 { a href=[site.links.task(run, task)] { (text(&look.label)) ", task " (task) } }
                (cards)
                @if rows.len() > BESIDE { p class="note" { "The first " (BESIDE) " of " (rows.len()) " rollouts." } }
            }
        };
        columns.push_str(&column.into_string());
    }
    let beside = html! { div class="beside" { (PreEscaped(columns)) } };
    out.put(beside.into_string()).await;
    Ok(())
}
