//! Writes NeMo Gym's metric files from the tables of the catalog: [`AggregateMetrics`] for
//! `aggregate_metrics.json`, and [`Profile`] for the reward profile.
//!
//! The queries are in `queries/nemo_gym`. [`servers`] asks the servers of agents for their own metrics; [`custom`] has
//! the metrics of benchmarks.

mod aggregate_metrics;
mod completion;
mod custom;
mod groups;
mod json_object;
mod perf;
mod repeats;
mod reward_profile;
mod servers;
mod statistics;

pub use aggregate_metrics::AggregateMetrics;
pub use completion::CompletionSummary;
pub use custom::{CustomMetrics, KeyMetrics, PassMajority, PassMajorityOptions};
pub use repeats::OwnRepeats;
pub use reward_profile::{Profile, ProfileTarget};
pub use servers::write_verify_responses;
pub(super) use servers::{Asked, Asking, ask};

use std::collections::HashMap;

use datafusion::prelude::SessionContext;

use crate::error::Error;
use crate::gym::AGGREGATE_METRICS;
use crate::measure::measurement::Measurement;
use crate::store::{Document, RunStore};

/// Writes `aggregate_metrics.json`, with every rollout and with what servers said when they were `asked`. The file appears when the returned document is finished.
/// Warnings are appended to `notes`.
pub(in crate::measure) async fn aggregate_metrics(
    run: &RunStore,
    session: &SessionContext,
    measurement: &Measurement,
    asked: HashMap<String, Asked>,
    notes: &mut Vec<String>,
) -> Result<Document, Error> {
    let mut document = Document::create(run, AGGREGATE_METRICS)?;
    let metrics = AggregateMetrics::new(session, &measurement.labels, measurement.rules);
    let custom = custom_metrics(session, &metrics, measurement, asked, notes).await?;
    let metrics = metrics.with_custom(custom);
    let metrics = metrics.with_servers(measurement.servers.clone());
    notes.extend(metrics.write(&mut document).await?);
    Ok(document)
}

/// Returns the metrics that benchmarks report, by agent. Appends warnings about agents without own metrics to `notes`.
async fn custom_metrics(
    session: &SessionContext,
    metrics: &AggregateMetrics<'_>,
    measurement: &Measurement,
    mut asked: HashMap<String, Asked>,
    notes: &mut Vec<String>,
) -> Result<HashMap<String, CustomMetrics>, Error> {
    let mut custom: HashMap<String, CustomMetrics> = HashMap::new();
    if let Some(options) = &measurement.benchmark {
        for (agent, computed) in PassMajority::compute(session, options).await? {
            custom.entry(agent).or_default().agent = computed.metrics;
        }
    }
    if let Some(servers) = &measurement.agent_servers {
        for agent in metrics.agents().await? {
            let Some(Asked { left_out, answer }) = asked.remove(&agent) else {
                continue;
            };
            if left_out > 0 {
                notes.push(format!(
                    "the server of agent '{agent}' does not get {left_out} of its answers: NeMo Gym could not read them"
                ));
            }
            let statistics = metrics.agent_metrics(&agent).await?;
            let (labels, rules) = (&measurement.labels, measurement.rules);
            let parse = |answer: String| servers::parse(&answer, &statistics, labels, rules);
            match answer.and_then(|answer| answer.map(parse).transpose()) {
                Ok(None) if servers.must_have() => notes.push(format!(
                    "agent '{agent}' has no metrics of its own: its server has no /aggregate_metrics"
                )),
                Ok(None) => {}
                Ok(Some(own)) => {
                    let own_repeats = metrics.own_repeats(&agent, &own.repeats).await?;
                    let of_agent = custom.entry(agent).or_default();
                    for (name, value) in own.agent {
                        of_agent.agent.entry(name).or_insert(value);
                    }
                    (of_agent.tasks, of_agent.key) = (own.tasks, own.key);
                    of_agent.repeats = own_repeats;
                }
                Err(why) => notes.push(format!(
                    "agent '{agent}' returned no metrics of its own; all other metrics are written: {why}"
                )),
            }
        }
    }
    if !measurement.key_metrics.is_empty() {
        for agent in metrics.agents().await? {
            let mut all = metrics.agent_metrics(&agent).await?;
            let of_agent = custom.entry(agent).or_default();
            all.extend(of_agent.agent.clone());
            let chosen = measurement.key_metrics.iter();
            of_agent.key = Some(chosen.flat_map(|key| key.select(&all)).collect());
        }
    }
    Ok(custom)
}
