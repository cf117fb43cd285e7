//! The overview of a run: how far it got, its metrics, and its charts.

use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};

use super::chart::{Chart, Line, short};
use super::distributions::{heat, histograms};
use super::html::{Links, bar, error, maybe, query, text};
use super::look::Look;
use super::over_time::over_time;
use super::server::Out;
use super::site::Site;
use crate::error::Error;
use crate::measure::{AgentMetric, MetricsReport};
use crate::schema::REWARD;
use crate::session::{Rows, row};
use crate::show::{count, duration, number};
use crate::status::RunStatus;

/// The z-value of an interval that holds the true mean in 95 % of sweeps.
const Z: f64 = 1.96;

/// The query for the attempts that failed.
const FAILED: &str = "SELECT task_index, rollout_index, attempt, outcome, http_status, error\nFROM attempts WHERE outcome <> 'ok'";

/// Metrics with a chart of their own: a run may have hundreds.
pub(super) const MAX_CHARTS: usize = 12;

/// The runs that are viewed.
pub(super) async fn runs(site: &Site, out: &Out) -> Result<(), Error> {
    let mut rows = String::new();
    for number in 1..=site.runs.len() {
        let looked = async {
            let look = site.look(number).await?;
            let status = RunStatus::of(&look.run).await?;
            Ok((look, status))
        };
        let row = match looked.await {
            Ok((look, status)) => {
                let total = &status.total;
                html! {
                    tr {
                        td { a href=[site.links.of_run(number, "")] { (text(&look.label)) } }
                        td { (status.state.to_string()) }
                        td class="n" { (count(total.planned)) }
                        td class="n" { (count(total.done)) }
                        td class="n" { (count(total.failed)) }
                        td class="n" { (count(total.pending)) }
                        td class="n" { (maybe(total.mean_reward)) }
                        td { (status.created_at) }
                    }
                }
            }
            Err(failed) => html! { tr { td colspan="8" { (error(&failed)) } } },
        };
        rows.push_str(&row.into_string());
    }
    let page = html! {
        h1 { "Runs" }
        @if site.runs.len() > 1 { p { a href=[site.links.to("compare")] { "Compare them task by task" } } }
        div class="scroll" { table {
            thead { tr { th { "run" } th { "state" } th { "planned" } th { "done" } th { "failed" } th { "pending" } th { "mean reward" } th { "created" } } }
            tbody { (PreEscaped(rows)) }
        } }
    };
    out.put(page.into_string()).await;
    Ok(())
}

/// The overview of a run.
pub(super) async fn overview(look: &Look, links: &Links, out: &Out) -> Result<(), Error> {
    let title = html! { h1 { (text(&look.label)) } };
    out.put(title.into_string()).await;
    section(look, out, "state", state(look, links)).await;
    section(look, out, "metrics", metrics(look)).await;
    section(look, out, "pass", pass_at_k(look)).await;
    section(look, out, "tasks", heat(look, links)).await;
    section(look, out, "histograms", histograms(look)).await;
    section(look, out, "time", over_time(look)).await;
    Ok(())
}

/// Sends a section, made now or before. One that fails says why, and the others are still made.
async fn section(
    look: &Look,
    out: &Out,
    name: &str,
    made: impl Future<Output = Result<Markup, Error>>,
) {
    let section = match look.kept(name) {
        Some(kept) => kept,
        None => match made.await {
            Ok(made) => {
                let section = html! { section id=(name) { (made) } }.into_string();
                look.keep(name, &section);
                section
            }
            Err(failed) => html! { section id=(name) { (error(&failed)) } }.into_string(),
        },
    };
    out.put(section).await;
}

async fn state(look: &Look, links: &Links) -> Result<Markup, Error> {
    let status = RunStatus::of(&look.run).await?;
    let total = &status.total;
    let rows = status
        .agents
        .iter()
        .map(|agent| (agent.agent_name.as_str(), &agent.figures));
    let rows: Vec<_> = rows
        .chain((status.agents.len() > 1).then_some(("all", total)))
        .collect();
    let errors = status
        .agents
        .iter()
        .flat_map(|agent| agent.errors.iter().map(move |error| (agent, error)));
    let errors: Vec<_> = errors.collect();
    Ok(html! {
        p class="state" {
            strong { (status.state.to_string()) } " · " (text(&status.place))
            " · created " (status.created_at)
            @if let Some(finished) = &status.finished_at { " · finished " (finished) }
            @if let Some(rate) = total.rollouts_per_second { " · " (number(rate)) " rollouts/s" }
            @if let Some(eta) = total.eta_seconds.and_then(|eta| std::time::Duration::try_from_secs_f64(eta).ok()) { " · " (duration(eta)) " left" }
        }
        @for executor in &status.executors { p class="executor" { (text(&executor.to_string())) } }
        @for part in &status.damaged { p class="error" { "damaged, its rows are missing: " (text(part)) } }
        div class="scroll" { table {
            thead { tr { th { "agent" } th { "planned" } th { "done" } th { "failed" } th { "pending" } th { "in flight" } th { "progress" } } }
            tbody { @for (name, figures) in rows {
                tr {
                    td { (text(name)) }
                    td class="n" { (count(figures.planned)) }
                    td class="n" { (count(figures.done)) }
                    td class="n" { (count(figures.failed)) }
                    td class="n" { (count(figures.pending)) }
                    td class="n" { (figures.in_flight.map_or_else(|| "–".to_owned(), count)) }
                    td { (bar((figures.done + figures.failed) as f64 / figures.planned.max(1) as f64)) }
                }
            } }
        } }
        @if !errors.is_empty() {
            details open[total.failed > 0] {
                summary { "What went wrong in attempts" }
                div class="scroll" { table {
                    thead { tr { th { "agent" } th { "failure" } th { "status" } th { "attempts" } th { "error" } } }
                    tbody { @for (agent, error) in errors {
                        tr {
                            td { (text(&agent.agent_name)) } td { (error.outcome) }
                            td class="n" { (error.http_status.map_or_else(|| "–".to_owned(), |status| status.to_string())) }
                            td class="n" { (count(error.attempts)) } td class="long" { (text(&error.error)) }
                        }
                    } }
                } }
                @if let Some(place) = links.of_run(look.number, &format!("sql{}", query(&[("q", FAILED)]))) { p { a href=(place) { "All failed attempts" } } }
            }
        }
    })
}

/// The metrics that are scores of whole agents.
pub(super) fn scores(report: &MetricsReport) -> impl Iterator<Item = &AgentMetric> {
    let metrics = report.metrics.iter();
    metrics.filter(|metric| metric.is_score && metric.subset.is_none() && metric.bound.is_none())
}

async fn metrics(look: &Look) -> Result<Markup, Error> {
    let report = look.metrics().await?;
    let is_share = |metric: &AgentMetric| metric.min >= Some(0.0) && metric.max <= Some(1.0);
    Ok(html! {
        h2 { "Metrics" }
        div class="scroll" { table {
            thead { tr { th { "agent" } th { "metric" } th { "mean" } th { "95 % interval" } th {} th { "pass@k" } th { "pass^k" } th { "std" } th { "rollouts" } } }
            tbody { @for metric in scores(report) {
                tr {
                    td { (text(&metric.agent_name)) }
                    td { (text(&metric.metric)) }
                    td class="n" { (maybe(metric.mean)) }
                    td class="n" {
                        @match metric.mean.zip(metric.stderr) {
                            Some((mean, stderr)) => { (number(mean - Z * stderr)) " … " (number(mean + Z * stderr)) }
                            None => "–",
                        }
                    }
                    td { @if is_share(metric) { (bar(metric.mean.unwrap_or_default())) } }
                    td class="n" { @if let Some(pass) = &metric.pass_at { "@" (pass.k) " " (number(pass.pass_at_k)) } }
                    td class="n" { @if let Some(pass) = &metric.pass_at { "^" (pass.k) " " (maybe(Some(pass.pass_hat_k))) } }
                    td class="n" { (maybe(metric.std)) }
                    td class="n" { (count(metric.count)) }
                }
            } }
        } }
        p class="note" { "Intervals are clustered by task: the rollouts of one task are alike." }
        @for agent in report.coverage.iter().filter(|agent| agent.missing() > 0) {
            p class="caveat" {
                (text(&agent.agent_name)) ": " (count(agent.missing().unsigned_abs())) " of "
                (count(agent.planned.unsigned_abs())) " rollouts are missing (" (agent.failed) " failed, " (agent.pending)
                " pending). The metrics leave them out."
            }
        }
        @for note in &report.notes { p class="caveat" { (text(note)) } }
        (cost(look).await?)
    })
}

row! {
    struct Cost {
        agent_name: String,
        input_tokens: Option<f64>,
        output_tokens: Option<f64>,
        cost: Option<f64>,
        cost_per_rollout: Option<f64>,
    }
}

async fn cost(look: &Look) -> Result<Markup, Error> {
    let rows = Rows::start(look.family("tokens", &[]).await?, Cost::rows)
        .await?
        .collect()
        .await?;
    let rows: Vec<_> = rows
        .iter()
        .filter(|row| row.output_tokens.is_some())
        .collect();
    Ok(html! {
        @if !rows.is_empty() {
            h3 { "Tokens and cost" }
            div class="scroll" { table {
                thead { tr { th { "agent" } th { "input tokens" } th { "output tokens" } th { "cost" } th { "cost per rollout" } } }
                tbody { @for row in rows {
                    tr {
                        td { (text(&row.agent_name)) }
                        td class="n" { (maybe(row.input_tokens)) } td class="n" { (maybe(row.output_tokens)) }
                        td class="n" { (maybe(row.cost)) } td class="n" { (maybe(row.cost_per_rollout)) }
                    }
                } }
            } }
        }
    })
}

row! {
    struct PassRow {
        agent_name: String,
        metric: String,
        k: i64,
        pass_at_k: Option<f64>,
        pass_at_k_stderr: Option<f64>,
        pass_hat_k: Option<f64>,
        pass_hat_k_stderr: Option<f64>,
    }
}

async fn pass_at_k(look: &Look) -> Result<Markup, Error> {
    let report = look.metrics().await?;
    let is_score =
        |name: &str| scores(report).any(|metric| metric.metric == name && metric.pass_at.is_some());
    let rows = Rows::start(
        look.family("pass_at_k", &["pass_hat_k_stderr"]).await?,
        PassRow::rows,
    )
    .await?
    .collect()
    .await?;
    let mut metrics: BTreeMap<(bool, &str), BTreeMap<&str, [Line; 2]>> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_score(&row.metric)) {
        let agents = metrics
            .entry((row.metric != REWARD, &row.metric))
            .or_default();
        let lines = agents.entry(&row.agent_name).or_insert_with(|| {
            ["pass@k", "pass^k"].map(|name| Line {
                name: format!("{} {name}", row.agent_name),
                ..Line::default()
            })
        });
        let k = row.k as f64;
        let means = [
            (row.pass_at_k, row.pass_at_k_stderr),
            (row.pass_hat_k, row.pass_hat_k_stderr),
        ];
        for (line, (mean, stderr)) in lines.iter_mut().zip(means) {
            let Some(mean) = mean else { continue };
            let half = Z * stderr.unwrap_or_default();
            line.points.push((k, mean));
            let band = (k, (mean - half).max(0.0), (mean + half).min(1.0));
            line.band.push(band);
        }
    }
    let charts = metrics
        .into_iter()
        .take(MAX_CHARTS)
        .map(|((_, metric), agents)| {
            let lines: Vec<Line> = agents
                .into_values()
                .flatten()
                .filter(|line| line.points.len() > 1)
                .collect();
            let chart = Chart {
                title: format!("pass@k and pass^k of {metric}, with 95 % bands"),
                x_title: "k",
                // Between whole numbers there is no k.
                x_label: |k| {
                    if (k - k.round()).abs() < 1e-9 {
                        short(k.round())
                    } else {
                        String::new()
                    }
                },
                y_label: short,
            };
            chart.lines(&lines, Some((0.0, 1.0)))
        });
    Ok(html! { div class="charts" { @for chart in charts { (chart) } } })
}
