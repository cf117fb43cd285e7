//! Summarizes the turns, tokens and times that NeMo Gym recorded for an agent's rollouts: [`perf_summaries`].

use std::collections::BTreeMap;

use datafusion::prelude::SessionContext;
use serde_json::{Map, Value};

use super::json_object::JsonObject;
use crate::measure::error::MeasureError;
use crate::measure::functions::{DoubleDouble, median, quantile};
use crate::measure::rows::{Rows, row};

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
    /// The numbers of each of [`FIELDS`].
    numbers: [Numbers; FIELDS.len()],
}

/// The summarized fields of a rollout: the field, the names of its statistics with `{}` for the statistic, and
/// the statistics that are written.
const FIELDS: [(&str, &str, &[&str]); 7] = [
    ("prompt_tokens", "{}_prompt_tokens", TOKENS),
    ("cached_prompt_tokens", "{}_cached_prompt_tokens", TOKENS),
    ("completion_tokens", "{}_completion_tokens", TOKENS),
    ("reasoning_tokens", "{}_reasoning_tokens", TOKENS),
    (
        "num_turns",
        "{}_num_turns",
        &["mean", "median", "std", "min", "p90", "max"],
    ),
    (PER_TURN, "{}_tokens_per_turn", &["mean", "median"]),
    (
        "total_latency_ms",
        "total_latency_{}_ms",
        &["p50", "p90", "p99", "mean"],
    ),
];
const TOKENS: &[&str] = &["mean", "median", "total"];
/// Not a field: the completion tokens of a rollout per turn.
const PER_TURN: &str = "tokens_per_turn";

row! {
    struct Observed {
        agent_name: String,
        perf: String,
    }
}

/// Returns the summary of each agent with recorded figures, as a JSON object. `num_rollouts` returns the number of an
/// agent's rollouts.
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

/// Returns a number, or a boolean as 0 or 1 as Python does.
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

    /// Returns the sum, precise enough to round as Python's `fsum` and `sum` do.
    fn total(&self) -> DoubleDouble {
        let values = self.values.iter();
        values.fold(DoubleDouble::default(), |sum, value| {
            sum.plus(DoubleDouble::from(*value))
        })
    }

    /// Returns the population's standard deviation, rounded once as Python's `pstdev` is.
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
    fn summarise(mut self, object: &mut JsonObject, names: &str, statistics: &[&str]) {
        if self.values.is_empty() {
            return;
        }
        self.values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| quantile(&self.values, share).unwrap_or_default();
        for statistic in statistics {
            let name = &names.replace("{}", statistic);
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
    fn add(&mut self, perf: &Map<String, Value>) {
        self.records += 1;
        let of = |field| perf.get(field).and_then(float);
        let coverage = of("token_observability_coverage");
        self.with_tokens += usize::from(coverage.is_some_and(|share| share > 0.0));
        let turns = of("num_turns").filter(|turns| *turns > 0.0);
        let per_turn = of("completion_tokens").zip(turns);
        let per_turn = Value::from(per_turn.map(|(tokens, turns)| tokens / turns));
        for (numbers, (field, ..)) in self.numbers.iter_mut().zip(FIELDS) {
            let value = match field {
                PER_TURN => Some(&per_turn),
                _ => perf.get(field),
            };
            numbers.add(value.unwrap_or(&Value::Null));
        }
    }

    fn into_json(self, num_rollouts: f64) -> String {
        let mut object = JsonObject::default();
        for (name, count) in [
            ("overall_observability_coverage", self.records),
            ("token_observability_coverage", self.with_tokens),
        ] {
            object.float(name, count as f64 / num_rollouts);
        }
        for ((_, names, statistics), numbers) in FIELDS.iter().zip(self.numbers) {
            numbers.summarise(&mut object, names, statistics);
        }
        object.finish()
    }
}
