//! Summaries of the turns, tokens and times that NeMo Gym observed of an agent's rollouts: [`perf_summaries`].

use std::collections::BTreeMap;

use datafusion::prelude::SessionContext;
use serde::Deserialize;
use serde_json::Value;

use super::json_object::JsonObject;
use crate::measure::error::MeasureError;
use crate::measure::functions::{DoubleDouble, median, quantile};
use crate::measure::rows::{Rows, row};

/// What was observed of one rollout.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Perf {
    token_observability_coverage: Value,
    prompt_tokens: Value,
    cached_prompt_tokens: Value,
    completion_tokens: Value,
    reasoning_tokens: Value,
    num_turns: Value,
    total_latency_ms: Value,
}

/// The numbers of one field; integers stay integers where nothing is divided.
#[derive(Debug, Default)]
struct Numbers {
    values: Vec<f64>,
    has_floats: bool,
}

#[derive(Debug, Default)]
struct Summary {
    records: usize,
    with_tokens: usize,
    tokens: [Numbers; 4],
    turns: Numbers,
    tokens_per_turn: Numbers,
    latency: Numbers,
}

const TOKENS: [&str; 4] = [
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
];

row! {
    struct Observed {
        agent_name: String,
        perf: String,
    }
}

/// The summary of every agent of which something was observed, as a JSON object. `num_rollouts` says how many rollouts an
/// agent has.
///
/// # Errors
/// The tables cannot be read.
pub(super) async fn perf_summaries(
    ctx: &SessionContext,
    num_rollouts: impl Fn(&str) -> i64,
) -> Result<BTreeMap<String, String>, MeasureError> {
    let mut summaries: BTreeMap<String, Summary> = BTreeMap::new();
    let sql = include_str!("../../../queries/nemo_gym/perf.sql");
    let mut observed = Rows::of(ctx, sql, Observed::rows).await?;
    while let Some(row) = observed.next().await? {
        let perf = serde_json::from_str(&row.perf).unwrap_or_default();
        summaries.entry(row.agent_name).or_default().add(&perf);
    }
    let summaries = summaries.into_iter();
    Ok(summaries
        .map(|(agent, summary)| {
            let of = num_rollouts(&agent) as f64;
            (agent, summary.into_json(of))
        })
        .collect())
}

/// Reads a number; as in Python, a truth value is one.
fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        Value::Number(number) => number.as_f64(),
        _ => None,
    }
}

impl Numbers {
    fn add(&mut self, value: &Value) {
        if let Some(number) = float(value) {
            self.values.push(number);
            self.has_floats |= value.is_f64();
        }
    }

    fn write(&self, object: &mut JsonObject, name: &str, value: f64) {
        if self.has_floats {
            object.float(name, value);
        } else {
            object.integer(name, value as i64);
        }
    }

    /// As exact as Python's `fsum` and `sum` have it.
    fn total(&self) -> DoubleDouble {
        let values = self.values.iter();
        values.fold(DoubleDouble::default(), |sum, value| {
            sum.plus(DoubleDouble::from(*value))
        })
    }

    /// Of the population, rounded once, as Python's `pstdev` is.
    fn std(&self) -> f64 {
        let count = self.values.len() as f64;
        let mean = self.total().divided_by(count);
        let squares = self.values.iter().map(|value| {
            let deviation = DoubleDouble::from(*value).minus(mean);
            deviation.times(deviation)
        });
        let squares = squares.fold(DoubleDouble::default(), DoubleDouble::plus);
        squares.divided_by(count).sqrt()
    }

    /// Writes each statistic under its name, if there are numbers.
    fn summarise(mut self, object: &mut JsonObject, statistics: &[(&str, String)]) {
        if self.values.is_empty() {
            return;
        }
        self.values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| quantile(&self.values, share).unwrap_or_default();
        for (statistic, name) in statistics {
            match *statistic {
                "mean" => object.float(name, self.total().high / self.values.len() as f64),
                "total" => self.write(object, name, self.total().high),
                "min" => self.write(object, name, at(0.0)),
                "max" => self.write(object, name, at(1.0)),
                "median" => {
                    let median = median(&self.values).unwrap_or_default();
                    match self.values.len() % 2 {
                        1 => self.write(object, name, median),
                        _ => object.float(name, median),
                    }
                }
                "std" => object.float(name, self.std()),
                "p50" => object.float(name, at(0.5)),
                "p90" => object.float(name, at(0.9)),
                _ => object.float(name, at(0.99)),
            }
        }
    }
}

impl Summary {
    fn add(&mut self, perf: &Perf) {
        self.records += 1;
        let coverage = float(&perf.token_observability_coverage);
        self.with_tokens += usize::from(coverage.is_some_and(|share| share > 0.0));
        let tokens = [
            &perf.prompt_tokens,
            &perf.cached_prompt_tokens,
            &perf.completion_tokens,
            &perf.reasoning_tokens,
        ];
        for (numbers, value) in self.tokens.iter_mut().zip(tokens) {
            numbers.add(value);
        }
        self.turns.add(&perf.num_turns);
        self.latency.add(&perf.total_latency_ms);
        let turns = float(&perf.num_turns).filter(|turns| *turns > 0.0);
        if let (Some(tokens), Some(turns)) = (float(&perf.completion_tokens), turns) {
            self.tokens_per_turn.has_floats = true;
            self.tokens_per_turn.values.push(tokens / turns);
        }
    }

    fn into_json(self, num_rollouts: f64) -> String {
        let mut object = JsonObject::default();
        let named = |statistics: &[&'static str], name: &dyn Fn(&str) -> String| {
            let statistics = statistics.iter();
            statistics
                .map(|statistic| (*statistic, name(statistic)))
                .collect::<Vec<_>>()
        };
        object.float(
            "overall_observability_coverage",
            self.records as f64 / num_rollouts,
        );
        object.float(
            "token_observability_coverage",
            self.with_tokens as f64 / num_rollouts,
        );
        for (name, numbers) in TOKENS.iter().zip(self.tokens) {
            let statistics = named(&["mean", "median", "total"], &|statistic| {
                format!("{statistic}_{name}")
            });
            numbers.summarise(&mut object, &statistics);
        }
        let turns = ["mean", "median", "std", "min", "p90", "max"];
        let turns = named(&turns, &|statistic| format!("{statistic}_num_turns"));
        self.turns.summarise(&mut object, &turns);
        let per_turn = named(&["mean", "median"], &|statistic| {
            format!("{statistic}_tokens_per_turn")
        });
        self.tokens_per_turn.summarise(&mut object, &per_turn);
        let latency = named(&["p50", "p90", "p99", "mean"], &|statistic| {
            format!("total_latency_{statistic}_ms")
        });
        self.latency.summarise(&mut object, &latency);
        object.finish()
    }
}
