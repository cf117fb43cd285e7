use std::collections::HashMap;
use std::sync::Arc;

use datafusion::prelude::SessionContext;

use super::agent_metrics;
use super::measurement::Measurement;
use super::report::Measured;
use crate::error::Error;
use crate::export::StampIndex;
use crate::measure::{AGENT_STATISTICS, AGGREGATE, AggregateMetrics, CustomMetrics, PassMajority};
use crate::schema::{ATTEMPTS, ROLLOUTS};
use crate::session;
use crate::store::{Document, RunStore, part_name};

/// Directory of the metric tables within a run.
pub(super) const METRICS: &str = "metrics";

/// What was measured before, where it is still there and measures all that has landed: of a run to
/// which nothing was added it would be the same again.
pub(crate) async fn earlier(run: &RunStore) -> Result<Option<Measured>, Error> {
    let name = part_name(METRICS, AGENT_STATISTICS);
    // Written last; but measuring can have been cut off after more had landed.
    let measured_at = run.written_at(AGGREGATE).await?;
    for table in [ROLLOUTS, ATTEMPTS] {
        let parts = run.list(table).await?;
        if parts
            .iter()
            .any(|part| measured_at <= Some(part.last_modified))
        {
            return Ok(None);
        }
    }
    if measured_at.is_none() || !run.exists(&name).await? {
        return Ok(None);
    }
    let session = SessionContext::new_with_config(session::config());
    let mut measured = Measured::default();
    for family in Measured::FAMILIES {
        let name = part_name(METRICS, family);
        if run.exists(&name).await? {
            let table = session::any_part(&session, run, &name).await?;
            for batch in table.collect().await? {
                measured.look(family, &batch)?;
            }
        }
    }
    measured.join();
    Ok(Some(measured))
}

/// Writes `aggregate_metrics.json`, with every rollout in it; it is not there until it is finished.
/// `notes` gets what is to be known of it.
pub(super) async fn aggregate_metrics(
    run: &RunStore,
    session: &SessionContext,
    measurement: &Measurement,
    notes: &mut Vec<String>,
) -> Result<Document, Error> {
    let mut document = Document::create(run, AGGREGATE)?;
    let metrics = AggregateMetrics::new(session, &measurement.labels, measurement.rules);
    let custom = custom_metrics(session, &metrics, measurement, notes).await?;
    let metrics = metrics.with_custom(custom);
    let metrics = metrics.with_servers(measurement.servers.clone());
    notes.extend(metrics.write(&mut document).await?);
    Ok(document)
}

/// What a benchmark would report, by agent. `notes` gets why an agent's own metrics are not there.
async fn custom_metrics(
    session: &SessionContext,
    metrics: &AggregateMetrics<'_>,
    measurement: &Measurement,
    notes: &mut Vec<String>,
) -> Result<HashMap<String, CustomMetrics>, Error> {
    let mut custom: HashMap<String, CustomMetrics> = HashMap::new();
    if let Some(options) = &measurement.benchmark {
        for (agent, computed) in PassMajority::compute(session, options).await? {
            custom.entry(agent).or_default().agent = computed.metrics;
        }
    }
    if let Some(servers) = &measurement.agent_servers {
        let stamps = Arc::new(match measurement.is_stamped {
            true => StampIndex::default(),
            false => StampIndex::read(session, measurement.environment_servers()).await?,
        });
        for agent in metrics.agents().await? {
            let statistics = metrics.agent_metrics(&agent).await?;
            match agent_metrics::ask(
                servers,
                session,
                &agent,
                &statistics,
                measurement,
                &stamps,
                notes,
            )
            .await?
            {
                Ok(None) if servers.must_have() => notes.push(format!(
                    "agent '{agent}' has no metrics of its own: its server knows no /aggregate_metrics"
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
                    "agent '{agent}' gave no metrics of its own; all others are there: {why}"
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
