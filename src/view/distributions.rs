//! How the rewards, the scores, the latencies and the tokens of a run are distributed.

use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};

use super::chart::{Bar, Cell, Chart, heat_map, range, short};
use super::html::Links;
use super::look::Look;
use super::overview::{MAX_CHARTS, scores};
use super::tasks::NAME;
use crate::error::Error;
use crate::query::quoted_name;
use crate::schema::REWARD;
use crate::session::row;
use crate::show::{count, number};

/// Bars of a histogram.
const BINS: i64 = 40;

/// Tasks, and rollouts of each, in the heat map.
const HEAT_ROWS: usize = 50;
const HEAT_COLUMNS: usize = 40;

/// What the distributions of latencies and tokens show: most are small, and a few are very large.
/// `greatest` would make a number of one that is missing.
const LATENCY: &str = "ln(CASE WHEN latency_ms < 0.1 THEN 0.1 ELSE latency_ms END)";
const TOKENS: &str =
    "ln(CASE WHEN output_tokens < 1 THEN 1.0 ELSE CAST(output_tokens AS DOUBLE) END)";

const HEAT: &str = include_str!("../../queries/view/heat_map.sql");

row! {
    struct HeatRow {
        task_index: i64,
        agent_name: String,
        rollout_index: Option<i64>,
        reward: Option<f64>,
        state: String,
    }
}

/// The rewards of tasks by rollout.
pub(super) async fn heat(look: &Look, links: &Links) -> Result<Markup, Error> {
    let chosen = format!(
        "SELECT task_index, agent_name, place, total FROM (SELECT *,
            row_number() OVER (ORDER BY mean ASC NULLS LAST, task_index) - 1 AS place, count(*) OVER () AS total FROM {})
         WHERE place % greatest(1, (total + {HEAT_ROWS} - 1) / {HEAT_ROWS}) = 0 ORDER BY place",
        NAME
    );
    let chosen = look.tasks().await?.sql(&chosen).await?.collect().await?;
    if chosen.iter().all(|batch| batch.num_rows() == 0) {
        return Ok(html! {});
    }
    let tasks: Vec<ChosenTask> = chosen
        .iter()
        .map(ChosenTask::rows)
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flatten()
        .collect();
    let keys = tasks.iter().map(|task| task.task_index.to_string());
    let keys = keys.collect::<Vec<_>>().join(", ");
    let cells = HEAT
        .replace("$tasks", &keys)
        .replace("$columns", &HEAT_COLUMNS.to_string());
    let rows = look.rows(&cells, HeatRow::rows).await?;
    let rewards = rows.iter().filter_map(|row| row.reward);
    let (low, high) = range(rewards).unwrap_or_default();
    let cells = rows.iter().filter_map(|row| {
        let line = tasks.iter().position(|task| {
            task.task_index == row.task_index && task.agent_name == row.agent_name
        })?;
        let (task, rollout) = (row.task_index, row.rollout_index?);
        let class = match row.reward {
            Some(reward) if high > low => {
                format!("h{}", ((reward - low) / (high - low) * 9.0).round())
            }
            Some(reward) => format!("h{}", if reward > 0.0 { 9 } else { 0 }),
            None => row.state.clone(),
        };
        let said = row.reward.map_or_else(
            || row.state.clone(),
            |reward| format!("reward {}", number(reward)),
        );
        Some(Cell {
            at: (line, rollout.try_into().ok()?),
            class,
            title: format!("task {task}, rollout {rollout}: {said}"),
            link: links.rollout(look.number, task, rollout),
        })
    });
    let cells: Vec<Cell> = cells.collect();
    let names = tasks.iter().map(|task| {
        (
            task.task_index.to_string(),
            links.task(look.number, task.task_index),
        )
    });
    let names: Vec<_> = names.collect();
    let total = tasks.first().map_or(0, |task| task.total);
    let title = format!(
        "Reward of {} of {} tasks (lowest mean first) by rollout",
        count(names.len() as u64),
        count(total)
    );
    Ok(html! {
        h2 { "Tasks" }
        @if let Some(place) = links.of_run(look.number, "tasks") { p { a href=(place) { "All tasks, to sort and filter" } } }
        (heat_map(&title, &names, &cells))
    })
}

row! {
    struct ChosenTask {
        task_index: i64,
        agent_name: String,
        total: u64,
    }
}

row! {
    struct BinRow {
        agent_name: String,
        bin: i64,
        num_rollouts: u64,
    }
}

/// The lowest and the highest value.
type Extent = (f64, f64);

row! {
    struct Extents {
        min_latency: Option<f64>,
        max_latency: Option<f64>,
        min_tokens: Option<f64>,
        max_tokens: Option<f64>,
    }
}

/// Distributions of the scores, of latencies and of tokens.
pub(super) async fn histograms(look: &Look) -> Result<Markup, Error> {
    let report = look.metrics().await?;
    let mut extents: Vec<(&str, Extent)> = Vec::new();
    for metric in scores(report) {
        let own = [metric.min, metric.max].into_iter().flatten();
        match extents.iter_mut().find(|(name, _)| *name == metric.metric) {
            Some((_, extent)) => {
                *extent = range(own.chain([extent.0, extent.1])).unwrap_or(*extent)
            }
            None => extents.extend(range(own).map(|extent| (metric.metric.as_str(), extent))),
        }
    }
    let schema = look
        .session
        .context()
        .table("rollouts")
        .await?
        .schema()
        .clone();
    let mut charts = String::new();
    for (name, extent) in extents.iter().take(MAX_CHARTS) {
        let own = format!("metric_{name}");
        let is_taken = *name != REWARD && schema.has_column_with_unqualified_name(&own);
        let column = quoted_name(if is_taken { &own } else { name });
        let chart = Chart {
            title: format!("Histogram of {name}"),
            x_title: "value",
            x_label: short,
            y_label: short,
        };
        charts.push_str(
            &histogram(look, &chart, &column, *extent)
                .await?
                .into_string(),
        );
    }
    let sql = format!(
        "SELECT min({LATENCY}) AS min_latency, max({LATENCY}) AS max_latency, min({TOKENS}) AS min_tokens,
            max({TOKENS}) AS max_tokens FROM rollouts"
    );
    let extent = look.rows(&sql, Extents::rows).await?;
    if let [extent] = extent.as_slice() {
        for (title, value, x_title, low, high) in [
            (
                "Latency of rollouts",
                LATENCY,
                "milliseconds (log)",
                extent.min_latency,
                extent.max_latency,
            ),
            (
                "Output tokens of rollouts",
                TOKENS,
                "tokens (log)",
                extent.min_tokens,
                extent.max_tokens,
            ),
        ] {
            let chart = Chart {
                title: title.to_owned(),
                x_title,
                x_label: |value| short(value.exp().round()),
                y_label: short,
            };
            if let Some(extent) = low.zip(high) {
                charts.push_str(&histogram(look, &chart, value, extent).await?.into_string());
            }
        }
    }
    Ok(html! {
        h2 { "Distributions" }
        @if extents.len() > MAX_CHARTS { p class="note" { "The first " (MAX_CHARTS) " of " (extents.len()) " metrics." } }
        div class="charts" { (PreEscaped(charts)) }
    })
}

async fn histogram(
    look: &Look,
    chart: &Chart,
    value: &str,
    (low, high): Extent,
) -> Result<Markup, Error> {
    let width = if high > low {
        (high - low) / BINS as f64
    } else {
        1.0
    };
    let last = BINS - 1;
    let bins = format!(
        "SELECT agent_name, CAST(least(floor((v - {low:?}) / {width:?}), {last}) AS BIGINT) AS bin, count(*) AS num_rollouts
         FROM (SELECT agent_name, CAST({value} AS DOUBLE) AS v FROM rollouts) WHERE v IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2"
    );
    let rows = look.rows(&bins, BinRow::rows).await?;
    let mut agents: Vec<&str> = rows.iter().map(|row| row.agent_name.as_str()).collect();
    agents.dedup();
    let mut bars: BTreeMap<i64, Bar> = BTreeMap::new();
    for row in &rows {
        let from = low + width * row.bin as f64;
        let bar = bars.entry(row.bin).or_insert_with(|| Bar {
            from,
            to: from + width,
            counts: vec![0.0; agents.len()],
        });
        if let Some(place) = agents.iter().position(|agent| *agent == row.agent_name) {
            bar.counts[place] += row.num_rollouts as f64;
        }
    }
    let bars: Vec<Bar> = bars.into_values().collect();
    Ok(chart.bars(&bars, agents.get(1..).map_or(&[], |_| &agents)))
}
