use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::sync::Arc;

use arrow::array::{Array, StringViewArray};
use arrow::datatypes::DataType;
use datafusion::common::cast::{as_int64_array, as_string_view_array};
use datafusion::common::{Result as QueryResult, ScalarValue, exec_datafusion_err};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use indexmap::IndexMap;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::custom::CustomMetrics;
use super::json_object::fields;
use super::repeats::is_same;
use crate::agent::MetricServers;
use crate::error::Error;
use crate::export::StampIndex;
use crate::gym::GymRules;
use crate::import::{TaskLabels, verify_response};
use crate::json::Object;
use crate::measure::measurement::Measurement;
use crate::store::StoreError;

/// Servers that are asked at the same time: what each is asked is on disk until it has answered.
const MOST_ASKED: usize = 4;

/// Rows per batch: few, because answers can be large.
const BATCH_ROWS: usize = 64;

/// Fields of every group that are not metrics.
const GROUP_FIELDS: [&str; 7] = [
    TASK,
    "sample",
    "num_rollouts",
    "expected_num_rollouts",
    "missing_num_rollouts",
    "reward_profile_completion_pct",
    "rollout_infos",
];
const TASK: &str = "_ng_task_index";

/// Fields of every repeat that are not metrics.
const REPEAT_FIELDS: [&str; 3] = [ROLLOUT, "sample_count", "missing_count"];
const ROLLOUT: &str = "_ng_rollout_index";

const KINDS: [&str; 5] = ["mean/", "max/", "min/", "median/", "std/"];

/// What the server of an agent said of its rollouts.
pub(in crate::measure) struct Asked {
    /// The answers that it did not get, since NeMo Gym could not read them.
    pub(super) left_out: u64,
    /// Its answer, none from a server without metrics; or why there is none.
    pub(super) answer: Result<Option<String>, String>,
}

/// The servers that are being asked, by agent.
pub(in crate::measure) type Asking = JoinSet<(String, Asked)>;

/// Asks the servers of agents for their metrics over the rollouts of a session, each when what it is asked is written. They
/// answer on tasks of their own.
///
/// # Errors
/// The rollouts can't be read, or there is no place for a temporary file.
pub(in crate::measure) async fn ask(
    servers: &Arc<MetricServers>,
    session: &SessionContext,
    measurement: &Measurement,
) -> Result<Asking, Error> {
    let (labels, rules) = (&measurement.labels, measurement.rules);
    let stamps = Arc::new(if measurement.is_stamped {
        StampIndex::default()
    } else {
        StampIndex::read(session, measurement.environment_servers()).await?
    });
    let temporary = std::env::temp_dir();
    let failed = StoreError::file("write a temporary file in", &temporary);
    let places = Arc::new(Semaphore::new(MOST_ASKED));
    let mut asking = JoinSet::new();
    let agents = session.sql("SELECT DISTINCT agent_name FROM rollouts");
    for batch in &agents.await?.collect().await? {
        for agent in as_string_view_array(batch.column(0))?.iter().flatten() {
            let agent = agent.to_owned();
            match servers.is_there(&agent).await {
                Ok(true) => {}
                not_there => {
                    let answer = not_there.map(|_| None);
                    let asked = Asked {
                        left_out: 0,
                        answer,
                    };
                    asking.spawn(async move { (agent, asked) });
                    continue;
                }
            }
            // Nobody closes it.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            let mut body = BufWriter::new(tempfile::tempfile().map_err(&failed)?);
            let left_out =
                write_verify_responses(session, &agent, labels, rules, &stamps, &mut body).await?;
            let mut body: File = body
                .into_inner()
                .map_err(|error| failed(error.into_error()))?;
            body.seek(SeekFrom::Start(0)).map_err(&failed)?;
            let servers = Arc::clone(servers);
            asking.spawn(async move {
                let answer = servers.ask(&agent, body).await;
                drop(place);
                (agent, Asked { left_out, answer })
            });
        }
    }
    Ok(asking)
}

/// Writes the request to the server of an agent: `{"verify_responses": [...]}`, by task and rollout. Each answer gets
/// its `stamps`. Returns the number of answers left out because NeMo Gym could not read them.
///
/// # Errors
/// The rollouts can't be read, or `out` not be written.
pub async fn write_verify_responses(
    session: &SessionContext,
    agent: &str,
    labels: &TaskLabels,
    rules: &'static GymRules,
    stamps: &Arc<StampIndex>,
    out: &mut impl Write,
) -> Result<u64, Error> {
    let temporary = std::env::temp_dir();
    let failed = StoreError::file("write a temporary file in", &temporary);
    let config = session
        .copied_config()
        .with_batch_size(BATCH_ROWS)
        // Otherwise the session would lose its tables.
        .with_create_default_catalog_and_schema(false);
    let state = SessionStateBuilder::new_from_existing(session.state()).with_config(config);
    let session = SessionContext::new_with_state(state.build());
    session.register_udf(function(agent, labels, rules, Arc::clone(stamps)));
    let sql = include_str!("../../../queries/nemo_gym/verify_responses.sql");
    let agent = vec![("agent", ScalarValue::from(agent))];
    let rows = session.sql(sql).await?.with_param_values(agent)?;
    let mut rows = rows.execute_stream().await?;
    let mut left_out = 0;
    let mut before = "{\"verify_responses\":[";
    while let Some(batch) = rows.try_next().await? {
        let responses = as_string_view_array(batch.column(0))?;
        left_out += responses.null_count() as u64;
        for response in responses.iter().flatten() {
            for text in [before, response] {
                out.write_all(text.as_bytes()).map_err(&failed)?;
            }
            before = ",";
        }
    }
    let end = if before == "," {
        "]}"
    } else {
        "{\"verify_responses\":[]}"
    };
    out.write_all(end.as_bytes()).map_err(&failed)?;
    out.flush().map_err(&failed)?;
    Ok(left_out)
}

fn function(
    agent: &str,
    labels: &TaskLabels,
    rules: &'static GymRules,
    stamps: Arc<StampIndex>,
) -> ScalarUDF {
    let (agent, labels) = (agent.to_owned(), labels.clone());
    let responses = move |columns: &[ColumnarValue]| -> QueryResult<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        let [tasks, rollouts, attempts, results] = columns.as_slice() else {
            return Err(exec_datafusion_err!("verify_response takes four columns"));
        };
        let (tasks, rollouts) = (as_int64_array(tasks)?, as_int64_array(rollouts)?);
        let attempts = as_int64_array(attempts)?;
        let results = as_string_view_array(results)?;
        let responses = (0..results.len()).map(|row| {
            let (task, rollout) = (tasks.value(row), rollouts.value(row));
            // Drops an answer that NeMo Gym could not read either; an export reports it.
            let mut answer = Object::parse(results.value(row)).ok()?;
            stamps.set(&mut answer, (task, rollout, attempts.value(row)));
            Some(verify_response(
                answer,
                labels.json(task),
                rollout,
                &agent,
                rules,
            ))
        });
        let responses: StringViewArray = responses.collect();
        Ok(ColumnarValue::Array(Arc::new(responses)))
    };
    create_udf(
        "verify_response",
        vec![
            DataType::Int64,
            DataType::Int64,
            DataType::Int64,
            DataType::Utf8View,
        ],
        DataType::Utf8View,
        Volatility::Immutable,
        Arc::new(responses),
    )
}

/// Parses a server's answer, and keeps the metrics that the statistics lack or, by the rules, that prevail over them.
pub(super) fn parse(
    answer: &str,
    statistics: &IndexMap<String, String>,
    labels: &TaskLabels,
    rules: &GymRules,
) -> Result<CustomMetrics, String> {
    let answer = object(answer, "its answer")?;
    let field = |name| answer.get(name).filter(|value| *value != "null");
    let metrics = field("agent_metrics").ok_or("its answer has no agent_metrics")?;
    let metrics = object(metrics, "agent_metrics")?;
    let measured: HashSet<&str> = statistics
        .keys()
        .filter_map(|name| name.strip_prefix("mean/"))
        .collect();
    let is_new = |name: &str| {
        let mut kinds = KINDS.iter();
        let metric = kinds.find_map(|kind| name.strip_prefix(kind));
        !metric.is_some_and(|metric| measured.contains(metric)) && !statistics.contains_key(name)
    };
    let is_custom = |name: &str, value: &str| {
        let is_ours = |ours: &String| {
            let numbers = ours.parse().ok().zip(value.parse().ok());
            numbers.is_some_and(|(ours, theirs)| is_same(ours, theirs))
        };
        let is_otherwise = !statistics.get(name).is_some_and(is_ours);
        is_new(name) || rules.servers_prevail && is_otherwise
    };
    let mut custom = CustomMetrics {
        agent: fields(&metrics, is_custom),
        key: None,
        ..CustomMetrics::default()
    };
    if let Some(key) = field("key_metrics") {
        custom.key = Some(fields(&object(key, "key_metrics")?, |_, _| true));
    }
    let list = |name: &'static str| -> Result<Vec<&RawValue>, String> {
        let list = field(name).map(serde_json::from_str).transpose();
        let list = list.map_err(|error| format!("{name} is not a list: {error}"))?;
        Ok(list.unwrap_or_default())
    };
    for repeat in list("repeat_level_metrics")? {
        let repeat = object(repeat.get(), "an entry of repeat_level_metrics")?;
        let index = repeat.get(ROLLOUT).and_then(|index| index.parse().ok());
        let index = index.ok_or_else(|| {
            format!("an entry of repeat_level_metrics has no {ROLLOUT} that is an integer")
        })?;
        let numbers = repeat
            .iter()
            .filter(|(name, ..)| !REPEAT_FIELDS.contains(name));
        let numbers = numbers.map(|(name, _, value)| (name.to_owned(), value.parse().ok()));
        custom.repeats.insert(index, numbers.collect());
    }
    for group in list("group_level_metrics")? {
        let group = object(group.get(), "an entry of group_level_metrics")?;
        let task = group.get(TASK).and_then(|task| labels.index(task));
        let own = fields(&group, |name, _| {
            (is_new(name) || rules.servers_prevail) && !GROUP_FIELDS.contains(&name)
        });
        match task {
            Some(task) if !own.is_empty() => {
                custom.tasks.insert(task, own);
            }
            Some(_) => {}
            None => {
                let why = format!("an entry of group_level_metrics has no {TASK} that was sent");
                return Err(why);
            }
        }
    }
    Ok(custom)
}

fn object<'a>(text: &'a str, what: &str) -> Result<Object<'a>, String> {
    Object::parse(text).map_err(|error| format!("{what} is not a JSON object: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gym::GYM_05;

    fn parsed(answer: &str) -> Result<CustomMetrics, String> {
        let statistics = ["mean/reward", "std/reward"].map(|name| (name.to_owned(), "0.0".into()));
        parse(
            answer,
            &IndexMap::from(statistics),
            &TaskLabels::default(),
            &GYM_05,
        )
    }

    #[test]
    fn what_the_statistics_have_is_left_out_and_the_rest_keeps_its_spelling() {
        let custom = parsed(
            r#"{"agent_metrics": {"mean/reward": 9, "max/reward": 9, "mean/own": 1.50, "own": [1, 2]},
                "key_metrics": {"mean/reward": 1E0},
                "group_level_metrics": [{"_ng_task_index": 3, "std/reward": 1, "sample": {}, "rollout_infos": [],
                                         "own": 0.10}, {"_ng_task_index": 4, "num_rollouts": 1}]}"#,
        )
        .unwrap();
        let map = |fields: &[(&str, &str)]| -> IndexMap<String, String> {
            let fields = fields.iter();
            fields
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        assert_eq!(
            custom.agent,
            map(&[("mean/own", "1.50"), ("own", "[1, 2]")])
        );
        assert_eq!(custom.key, Some(map(&[("mean/reward", "1E0")])));
        assert_eq!(custom.tasks.len(), 1);
        assert_eq!(custom.tasks[&3], map(&[("own", "0.10")]));
    }

    #[test]
    fn an_answer_of_another_shape_is_refused_by_what_is_wrong() {
        for (answer, part) in [
            ("<html>", "its answer is not a JSON object"),
            ("[]", "its answer is not a JSON object"),
            ("{}", "no agent_metrics"),
            (r#"{"agent_metrics": []}"#, "agent_metrics is not"),
            (r#"{"agent_metrics": {"x": NaN}}"#, "its answer is not"),
            (
                r#"{"agent_metrics": {}, "key_metrics": 1}"#,
                "key_metrics is not",
            ),
            (
                r#"{"agent_metrics": {}, "group_level_metrics": {}}"#,
                "group_level_metrics is not a list",
            ),
            (
                r#"{"agent_metrics": {}, "repeat_level_metrics": [{"mean/x": 1}]}"#,
                "no _ng_rollout_index",
            ),
            (
                r#"{"agent_metrics": {}, "group_level_metrics": [{}]}"#,
                "no _ng_task_index",
            ),
        ] {
            let error = parsed(answer).unwrap_err();
            assert!(error.contains(part), "{answer}: {error}");
        }
        assert_eq!(
            parsed(r#"{"agent_metrics": {}}"#),
            Ok(CustomMetrics::default())
        );
    }
}
