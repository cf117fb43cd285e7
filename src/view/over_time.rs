//! How a sweep went over time: throughput, calls in flight, latency, tokens, failures and cost.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;
use maud::{Markup, html};

use super::chart::{Bar, Chart, Line, short};
use super::look::Look;
use crate::config::Settings;
use crate::error::Error;
use crate::measure::Price;
use crate::outcome::OK;
use crate::session::{Rows, row};

/// Stretches into which the time of a sweep is divided.
const BINS: i64 = 60;

const EVENTS: &str = include_str!("../../queries/view/attempts_over_time.sql");
const ROLLOUTS: &str = include_str!("../../queries/view/rollouts_over_time.sql");

row! {
    struct Span {
        begin: Option<i64>,
        end: Option<i64>,
    }
}

row! {
    struct Attempted {
        bin: i64,
        outcome: String,
        dispatched: f64,
        finished: f64,
        limit: Option<f64>,
    }
}

row! {
    struct Answered {
        bin: i64,
        num_rollouts: f64,
        p50_ms: Option<f64>,
        p95_ms: Option<f64>,
        output_tokens: Option<f64>,
        input_tokens: Option<f64>,
    }
}

/// Throughput, calls in flight, latency, tokens and failures over the time of the sweep.
pub(super) async fn over_time(look: &Look) -> Result<Markup, Error> {
    let span = "SELECT CAST(min(dispatched_at) AS BIGINT) AS begin,
        CAST(greatest(max(finished_at), max(dispatched_at)) AS BIGINT) AS end FROM attempts";
    let [
        Span {
            begin: Some(begin),
            end: Some(end),
        },
    ] = look.rows(span, Span::rows).await?[..]
    else {
        return Ok(html! {});
    };
    let width = (end - begin) / BINS + 1;
    let seconds = width as f64 / 1e6;
    let parameters = || {
        vec![
            ("begin", ScalarValue::from(begin)),
            ("width", ScalarValue::from(width)),
        ]
    };
    let planned = async |sql: &str| -> Result<_, Error> {
        Ok(look
            .session
            .plan(sql)
            .await?
            .with_param_values(parameters())?)
    };
    let attempted = Rows::start(planned(EVENTS).await?, Attempted::rows)
        .await?
        .collect()
        .await?;
    let answered = Rows::start(planned(ROLLOUTS).await?, Answered::rows)
        .await?
        .collect()
        .await?;
    let at = |bin: i64| bin as f64 * seconds;
    let chart = |title: &str| Chart {
        title: title.to_owned(),
        x_title: "time since the first request",
        x_label: clock,
        y_label: short,
    };
    let line = |name: &str, points: Vec<(f64, f64)>| Line {
        name: name.to_owned(),
        points,
        band: Vec::new(),
    };
    let points = |value: fn(&Answered) -> Option<f64>| -> Vec<(f64, f64)> {
        let values = answered
            .iter()
            .filter_map(|row| Some((at(row.bin), value(row)?)));
        values.collect()
    };
    // A stretch in which nothing was answered has a rate of zero.
    let rates = |value: fn(&Answered) -> f64| -> Vec<(f64, f64)> {
        let values: BTreeMap<i64, f64> = answered.iter().map(|row| (row.bin, value(row))).collect();
        let rate = |bin: i64| values.get(&bin).copied().unwrap_or_default() / seconds;
        (0..=(end - begin) / width)
            .map(|bin| (at(bin), rate(bin)))
            .collect()
    };
    let mut outcomes: Vec<&str> = attempted
        .iter()
        .map(|row| row.outcome.as_str())
        .filter(|outcome| *outcome != OK && !outcome.is_empty())
        .collect();
    outcomes.sort_unstable();
    outcomes.dedup();
    let mut failures: BTreeMap<i64, Bar> = BTreeMap::new();
    let (mut flow, mut limits): (BTreeMap<i64, f64>, BTreeMap<i64, f64>) = Default::default();
    for row in &attempted {
        *flow.entry(row.bin).or_default() += row.dispatched - row.finished;
        if let Some(limit) = row.limit {
            let highest = limits.entry(row.bin).or_default();
            *highest = highest.max(limit);
        }
        if let Some(place) = outcomes.iter().position(|outcome| *outcome == row.outcome) {
            let bar = failures.entry(row.bin).or_insert_with(|| Bar {
                from: at(row.bin),
                to: at(row.bin + 1),
                counts: vec![0.0; outcomes.len()],
            });
            bar.counts[place] += row.finished;
        }
    }
    let in_flight = flow.iter().scan(0.0, |sum, (bin, change)| {
        *sum += change;
        Some((at(*bin + 1), *sum))
    });
    let in_flight = [
        line("in flight", in_flight.collect()),
        line(
            "limit",
            limits
                .iter()
                .map(|(bin, limit)| (at(*bin), *limit))
                .collect(),
        ),
    ];
    let failures: Vec<Bar> = failures.into_values().collect();
    Ok(html! {
        h2 { "Over time" }
        div class="charts" {
            (chart("Rollouts per second").lines(&[line("rollouts/s", rates(|row| row.num_rollouts))], Some((0.0, 0.0))))
            (chart("Calls in flight, and their limit").lines(&in_flight, Some((0.0, 1.0))))
            (chart("Latency of rollouts, milliseconds").lines(&[line("p50", points(|row| row.p50_ms)), line("p95", points(|row| row.p95_ms))], Some((0.0, 0.0))))
            (chart("Output tokens per second").lines(&[line("tokens/s", rates(|row| row.output_tokens.unwrap_or_default()))], Some((0.0, 0.0))))
            (chart("Failed attempts by class").bars(&failures, &outcomes))
            @if let Some((input, output)) = prices(look) {
                @let spent = answered.iter().scan(0.0, |sum, row| {
                    *sum += (row.input_tokens.unwrap_or_default() * input + row.output_tokens.unwrap_or_default() * output) / 1e6;
                    Some((at(row.bin + 1), *sum))
                });
                (chart("Cost so far").lines(&[line("cost", spent.collect())], Some((0.0, 0.0))))
            }
        }
    })
}

/// Writes a time in seconds.
fn clock(seconds: f64) -> String {
    match seconds {
        0.0..120.0 => format!("{}s", short(seconds)),
        120.0..7200.0 => format!("{}m", short((seconds / 6.0).round() / 10.0)),
        _ => format!("{}h", short((seconds / 360.0).round() / 10.0)),
    }
}

/// The prices of a million input and output tokens of the run's only agent; `None` where there is no such price.
fn prices(look: &Look) -> Option<(f64, f64)> {
    let settings: Settings =
        serde_json::from_value(look.record.settings.clone()).unwrap_or_default();
    let prices = Price::of_agents(&settings);
    let mut prices = prices
        .into_values()
        .filter(|price| price.input + price.output > 0.0);
    let price = prices.next();
    // Tokens are not told apart by agent here.
    price
        .filter(|_| prices.next().is_none())
        .map(|price| (price.input, price.output))
}
