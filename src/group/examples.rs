use std::collections::BTreeSet;

use datafusion::error::DataFusionError;
use futures::{Stream, StreamExt, stream};
use serde_json::Value;

use super::dispatch::{DispatchRow, Dispatcher, Ended, data, remove_attempt};
use crate::agent::Agents;
use crate::config::{MemoryPlan, Settings};
use crate::error::{Error, Fatal, USAGE};
use crate::json;
use crate::request::AGENT_REF;
use crate::retry::Failure;

/// The reason why a row has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExampleError {
    /// The row does not say which agent it is for.
    #[error("example {row} names no agent: set its agent_ref, such as {{\"name\": \"my_agent\"}}")]
    NoAgent {
        /// Number of the row, from 0.
        row: usize,
    },
    /// The attempts at the row failed.
    #[error("example {row} failed: {}", failure.message)]
    Failed {
        /// Number of the row, from 0.
        row: usize,
        /// The last failure.
        failure: Failure,
    },
    /// The rows can't be sent.
    #[error("the examples can't be sent")]
    Run(#[source] DataFusionError),
}

impl Fatal for ExampleError {
    fn exit_code(&self) -> u8 {
        USAGE
    }
}

/// Sends rows to the agents that they name in `agent_ref`, and returns each row with its result in the order in which they
/// end, as `run_examples` of NeMo Gym does. A row is sent as it is; only a retry adds `_ng_attempt_index`. A result is
/// what the agent answered, whatever its flags say. The settings say where the agents are, how many calls are in flight,
/// and how often a row is tried. Dropping the stream cancels the calls in flight.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use futures::StreamExt;
/// use rollstream::config::Settings;
/// use rollstream::sim::{Sim, SimConfig};
/// use serde_json::json;
///
/// let sim = Sim::start(SimConfig::default()).await?;
/// let settings: Settings = serde_json::from_value(json!({"head_server": sim.head_url()}))?;
/// let example = |number| json!({
///     "agent_ref": {"name": "sim"},
///     "responses_create_params": {"input": format!("What is {number} + 3?")},
///     "expected_answer": number + 3,
/// });
/// let examples = vec![example(1), example(2)];
/// let mut results = rollstream::run_examples(&settings, examples).await?;
/// let mut count = 0;
/// while let Some(result) = results.next().await {
///     let (row, result) = result?;
///     assert_eq!(result["expected_answer"], row["expected_answer"]);
///     assert!(result["reward"].is_number());
///     count += 1;
/// }
/// assert_eq!(count, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// A row names no agent, or an agent can't be set up. An item of the stream is an error if the attempts at a row failed.
pub async fn run_examples(
    settings: &Settings,
    examples: Vec<Value>,
) -> Result<impl Stream<Item = Result<(Value, Value), ExampleError>> + use<>, Error> {
    let agent = |(row, example): (usize, &Value)| {
        let name = example
            .get(AGENT_REF)
            .and_then(|agent| agent.get("name")?.as_str());
        let name = name.ok_or(ExampleError::NoAgent { row })?;
        Ok(name.to_owned())
    };
    let agents = examples.iter().enumerate().map(agent);
    let agents: Vec<String> = agents.collect::<Result<_, ExampleError>>()?;
    let names: BTreeSet<String> = agents.iter().cloned().collect();
    let names: Vec<String> = names.into_iter().collect();
    let dispatcher = Dispatcher {
        agents: Agents::connect(&names, settings).await?,
        memory: MemoryPlan::of(settings),
        most_calls: settings.concurrency.most(),
        backoff: settings.backoff(),
        as_given: true,
        registry: Default::default(),
        progress: Default::default(),
    };
    let rows = examples.iter().zip(&agents).enumerate();
    let rows = rows.map(|(row, (example, agent_name))| DispatchRow {
        task_index: row as i64,
        rollout_index: 0,
        agent_name,
        request: example.to_string(),
    });
    let rows: Vec<DispatchRow<'_>> = rows.collect();
    let outcomes = dispatcher.run(&rows, 0).map_err(ExampleError::Run)?;
    let results = outcomes.flat_map(move |batch| {
        let items = match batch.and_then(|batch| Ended::rows(&batch)) {
            Ok(ended) => ended
                .into_iter()
                .filter_map(|ended| result(&examples, ended))
                .collect(),
            Err(source) => vec![Err(ExampleError::Run(source))],
        };
        stream::iter(items)
    });
    Ok(results)
}

/// Returns the row and the result of an attempt; none if the row is tried again.
fn result(examples: &[Value], ended: Ended) -> Option<Result<(Value, Value), ExampleError>> {
    let row = usize::try_from(ended.task_index).ok()?;
    let example = examples.get(row)?;
    let failed = |failure| Err(ExampleError::Failed { row, failure });
    let Some(text) = &ended.result else {
        let failure = ended.failure();
        let is_last = ended.terminal || failure.class.leaves_pending();
        return is_last.then(|| failed(failure));
    };
    let Some(mut value) = json::value(text) else {
        return Some(failed(data("the answer is not JSON")));
    };
    remove_attempt(example, &mut value, ended.attempt);
    Some(Ok((example.clone(), value)))
}
