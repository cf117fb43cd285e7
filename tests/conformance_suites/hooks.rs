//! What a benchmark's own metrics are asked to be, and the operation `pass_majority`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::{AsArray, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{Float64Type, Int64Type};
use datafusion::prelude::SessionContext;
use rollstream::call::RolloutKey;
use rollstream::gym::GymRules;
use rollstream::measure::{
    AggregateMetrics, CustomMetrics, KeyMetrics, PassMajority, PassMajorityOptions,
};
use rollstream::outcome::{Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of};
use rollstream::schema;
use serde_json::{Value, json};

use super::case::Case;
use super::same_json::same;

/// The agent that a case's rows are of.
pub const AGENT: &str = "agent";

/// What the hooks of a case ask for.
pub fn options(hooks: &Value) -> PassMajorityOptions {
    let mut options = PassMajorityOptions {
        answer_key: hooks["answer_key"].as_str().map(str::to_owned),
        add_avg_sample_std_dev: ["add_avg_sample_std_dev", "avg_sample_std_dev"]
            .iter()
            .any(|key| hooks[*key].as_bool() == Some(true)),
        ..PassMajorityOptions::default()
    };
    if let Some(scores) = hooks["scores"].as_object() {
        let field = |score: &Value| score["field"].as_str().unwrap_or_default().to_owned();
        let scores = scores
            .iter()
            .map(|(name, score)| (name.clone(), field(score)));
        options.scores = scores.collect();
    }
    options
}

/// Which metrics of a case are key metrics.
fn key_metrics(choice: &Value) -> KeyMetrics {
    let names = |names: &Value| -> Option<Vec<String>> {
        let names = names.as_array()?.iter();
        Some(
            names
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
        )
    };
    match names(&choice["keys"]) {
        Some(keys) => KeyMetrics::Names(keys),
        None => KeyMetrics::HighestK {
            pattern: choice["pattern"].as_str().unwrap_or_default().to_owned(),
            score_names: names(&choice["score_names"]),
            exclude_names: names(&choice["exclude_names"]).unwrap_or_default(),
        },
    }
}

/// The metrics that the hooks of a case add to those of `rows`.
pub async fn custom_metrics(
    rows: &SessionContext,
    metrics: &AggregateMetrics<'_>,
    case: &Value,
) -> Result<CustomMetrics, String> {
    let mut custom = CustomMetrics::default();
    let hooks = &case["compute_metrics"];
    if let Some(values) = hooks["values"].as_object() {
        for (name, value) in values_of(rows, values, None).await? {
            custom.agent.insert(name, value.to_string());
        }
    } else if !hooks.is_null() {
        let in_order = in_order_of_arrival(rows).await.map_err(text)?;
        let computed = PassMajority::compute(&in_order, &options(hooks)).await;
        if let Some(computed) = computed.map_err(text)?.remove(AGENT) {
            custom.agent = computed.metrics;
        }
        if let Some(subset_key) = hooks["subset_key"].as_str() {
            for (name, of_subset) in
                subsets(&in_order, &options(hooks), subset_key, metrics.rules()).await?
            {
                custom.agent.insert(name, of_subset.to_string());
            }
        }
        if hooks["per_task_reward_sum"].as_bool() == Some(true) {
            custom.tasks = reward_sums(&in_order).await.map_err(text)?;
        }
    }
    if let Some(values) = case["repeat_metrics"].as_object() {
        for index in indices(rows).await? {
            let metrics = values_of(rows, values, Some(index)).await?;
            let numbers = metrics
                .into_iter()
                .map(|(name, value)| (name, value.as_f64()));
            custom.repeats.insert(index, numbers.collect());
        }
    }
    if let Some(choices) = case["key_metrics"].as_array() {
        let mut all = metrics.agent_metrics(AGENT).await.map_err(text)?;
        all.extend(custom.agent.clone());
        if metrics.rules().repeats {
            let indices = ids(rows, "SELECT count(DISTINCT rollout_index) FROM rollouts").await?;
            all.insert("num_repeats".into(), indices[0].to_string());
        }
        let chosen = choices
            .iter()
            .flat_map(|choice| key_metrics(choice).select(&all));
        custom.key = Some(chosen.collect());
    }
    Ok(custom)
}

/// Rollout indices of the accepted rollouts.
async fn indices(rows: &SessionContext) -> Result<Vec<i64>, String> {
    let sql = "SELECT DISTINCT rollout_index FROM rollouts WHERE masked IS NOT TRUE ORDER BY rollout_index";
    ids(rows, sql).await
}

async fn ids(rows: &SessionContext, sql: &str) -> Result<Vec<i64>, String> {
    let batches = async { rows.sql(sql).await?.collect().await };
    let batches = batches.await.map_err(text)?;
    let numbers = batches.iter().flat_map(|batch| {
        batch
            .column(0)
            .as_primitive::<Int64Type>()
            .values()
            .to_vec()
    });
    Ok(numbers.collect())
}

/// What hooks of the suite compute of a field of the accepted rollouts, or of those of one index.
async fn values_of(
    rows: &SessionContext,
    values: &serde_json::Map<String, Value>,
    index: Option<i64>,
) -> Result<Vec<(String, Value)>, String> {
    let of_index = index.map_or_else(String::new, |index| format!("AND rollout_index = {index}"));
    let sql = format!(
        "SELECT result FROM rollouts WHERE masked IS NOT TRUE {of_index} ORDER BY task_index, rollout_index"
    );
    let batches = async { rows.sql(&sql).await?.collect().await };
    let mut results: Vec<Value> = Vec::new();
    for batch in batches.await.map_err(text)? {
        for result in batch.column(0).as_string_view().iter().flatten() {
            results.push(serde_json::from_str(result).map_err(text)?);
        }
    }
    let mut computed = Vec::new();
    for (name, how) in values {
        let field = how["field"].as_str().unwrap_or_default();
        let found: Vec<&Value> = results.iter().filter_map(|row| row.get(field)).collect();
        if (found.len() as u64) < how["min_rollouts"].as_u64().unwrap_or(0) {
            continue;
        }
        let floats = found.iter().filter_map(|value| value.as_f64());
        let sum: f64 = floats.sum();
        let is_integer = found.iter().all(|value| value.is_i64());
        let value = match how["stat"].as_str().unwrap_or_default() {
            "sum" if is_integer => json!(sum as i64),
            "sum" => json!(sum),
            "mean" => json!(sum / found.len() as f64),
            "count" => json!(found.len()),
            "any" => json!(found.iter().any(|value| value.as_f64() != Some(0.0))),
            "text" => json!("text"),
            _ => Value::Null,
        };
        computed.push((name.clone(), value));
    }
    Ok(computed)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The rollouts of a session in the order in which they stand in their file.
async fn in_order_of_arrival(
    rows: &SessionContext,
) -> Result<SessionContext, datafusion::error::DataFusionError> {
    let ctx = SessionContext::new();
    for table in ["tasks", "rollouts"] {
        ctx.register_table(table, rows.table_provider(table).await?)?;
    }
    let sql = "SELECT * REPLACE (source_row AS rollout_index) FROM rollouts";
    let rollouts = ctx.sql(sql).await?.collect().await?;
    let schema = rollouts.first().map(RecordBatch::schema);
    ctx.deregister_table("rollouts")?;
    let schema = schema.unwrap_or_else(schema::rollouts);
    let table = datafusion::datasource::MemTable::try_new(schema, vec![rollouts])?;
    ctx.register_table("rollouts", Arc::new(table))?;
    Ok(ctx)
}

/// What a hook of the suite reports of every task.
async fn reward_sums(
    ctx: &SessionContext,
) -> Result<BTreeMap<i64, indexmap::IndexMap<String, String>>, datafusion::error::DataFusionError> {
    let sql = "SELECT task_index, exact_sum(reward) AS sum, count(*) AS n \
               FROM rollouts GROUP BY task_index";
    let mut tasks = BTreeMap::new();
    for batch in ctx.sql(sql).await?.collect().await? {
        let integers = |column: usize| batch.column(column).as_primitive::<Int64Type>().clone();
        let (task, n) = (integers(0), integers(2));
        let sums = batch.column(1).as_primitive::<Float64Type>();
        for row in 0..batch.num_rows() {
            let fields = [
                ("reward_sum".to_owned(), json!(sums.value(row)).to_string()),
                ("n".to_owned(), n.value(row).to_string()),
            ];
            tasks.insert(task.value(row), fields.into_iter().collect());
        }
    }
    Ok(tasks)
}

/// Runs a case of the operation `pass_majority`.
pub async fn pass_majority(case: &Case) -> Result<(), String> {
    let (case_dir, options_of_case) = (case.directory.as_path(), &case.json["options"]);
    let read = |name: &str| {
        let path = case_dir.join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let tasks: Vec<Vec<Box<serde_json::value::RawValue>>> =
        serde_json::from_str(&read("tasks.json")?).map_err(text)?;
    let ctx = session(&tasks)?;
    let mut options = options(options_of_case);
    options.num_tasks = i64::try_from(tasks.len()).ok();
    let computed = PassMajority::compute(&ctx, &options).await.map_err(text)?;
    let computed = computed.into_values().next();
    // Of no tasks there is nothing, not even the names.
    let computed = match (computed, tasks.is_empty()) {
        (Some(computed), _) => computed,
        (None, true) => PassMajority::default(),
        (None, false) => return Err("no metrics".into()),
    };
    let object = |metrics: &indexmap::IndexMap<String, String>| -> Result<Value, String> {
        let fields = metrics.iter().map(|(name, value)| {
            let value: Value = serde_json::from_str(value).map_err(text)?;
            Ok((name.clone(), value))
        });
        fields
            .collect::<Result<serde_json::Map<_, _>, String>>()
            .map(Value::Object)
    };
    let mut got = json!({
        "metrics": object(&computed.metrics)?,
        "score_names": computed.score_names,
        "max_k": computed.max_k,
    });
    if let Some(subset_key) = options_of_case["subset_key"].as_str() {
        options.num_tasks = None;
        let subsets = subsets(&ctx, &options, subset_key, case.rules).await?;
        got["subset_metrics"] = Value::Object(subsets.into_iter().collect());
    }
    let choices = options_of_case["highest_k"].as_array();
    if let Some(choices) = choices.filter(|choices| !choices.is_empty()) {
        let chosen = choices
            .iter()
            .map(|choice| object(&key_metrics(choice).select(&computed.metrics)));
        got["highest_k"] = chosen.collect::<Result<Vec<Value>, String>>()?.into();
    }
    let expected = std::fs::read_to_string(case.expected.join("pass_majority.json"));
    same(&expected.map_err(text)?, &got.to_string())
}

/// Rollouts by task as tables.
fn session(tasks: &[Vec<Box<serde_json::value::RawValue>>]) -> Result<SessionContext, String> {
    let mut builder = OutcomeBatchBuilder::new();
    for (task_index, rollouts) in (0..).zip(tasks) {
        for (rollout_index, rollout) in (0..).zip(rollouts) {
            let answer = Answer::parse(rollout.get().to_owned()).map_err(text)?;
            let key = RolloutKey::new(task_index, rollout_index, 0);
            let outcome = Outcome {
                http_status: Some(200),
                times: Times {
                    server: Some(Duration::ZERO),
                    ..Times::default()
                },
                ..Outcome::new(key, AGENT, UNIX_EPOCH, Verdict::Ok(answer))
            };
            builder.append(outcome).map_err(text)?;
        }
    }
    let ctx = SessionContext::new();
    let rollouts = builder.finish().and_then(|outcomes| rollouts_of(&outcomes));
    ctx.register_batch("rollouts", rollouts.map_err(text)?)
        .map_err(text)?;
    let none = RecordBatch::new_empty(schema::tasks());
    ctx.register_batch("tasks", none).map_err(text)?;
    Ok(ctx)
}

/// The metrics of the tasks by a field of their first rollout, or since 0.7 of the first that has it, in the order in
/// which its values appear.
async fn subsets(
    ctx: &SessionContext,
    options: &PassMajorityOptions,
    key: &str,
    rules: &GymRules,
) -> Result<Vec<(String, Value)>, String> {
    let sql = "SELECT task_index, result FROM rollouts WHERE masked IS NOT TRUE ORDER BY task_index, rollout_index";
    let mut seen = HashSet::new();
    let mut values: Vec<(String, Vec<i64>)> = Vec::new();
    let firsts = async { ctx.sql(sql).await?.collect().await };
    for batch in firsts.await.map_err(text)? {
        let (tasks, results): (&Int64Array, &StringViewArray) = (
            batch.column(0).as_primitive(),
            batch.column(1).as_string_view(),
        );
        for row in 0..batch.num_rows() {
            let result: Value = serde_json::from_str(results.value(row)).map_err(text)?;
            let task = tasks.value(row);
            if seen.contains(&task) {
                continue;
            }
            if !rules.repeats {
                seen.insert(task);
            }
            let value = match &result[key] {
                Value::String(value) if !value.is_empty() => value.clone(),
                Value::Number(value) if value.as_f64() != Some(0.0) => value.to_string(),
                Value::Bool(true) => "True".to_owned(),
                _ => continue,
            };
            seen.insert(task);
            match values.iter_mut().find(|(other, _)| *other == value) {
                Some((_, tasks_of)) => tasks_of.push(tasks.value(row)),
                None => values.push((value, vec![tasks.value(row)])),
            }
        }
    }
    let mut metrics = Vec::new();
    let options = PassMajorityOptions {
        add_avg_sample_std_dev: false,
        ..options.clone()
    };
    for (value, tasks) in values {
        let of_subset = SessionContext::new();
        let list = tasks
            .iter()
            .map(i64::to_string)
            .collect::<Vec<_>>()
            .join(",");
        let sql = format!("SELECT * FROM rollouts WHERE task_index IN ({list})");
        let register = async {
            let rollouts = ctx.sql(&sql).await?.into_view();
            of_subset.register_table("rollouts", rollouts)?;
            of_subset.register_table("tasks", ctx.table_provider("tasks").await?)?;
            Ok::<(), datafusion::error::DataFusionError>(())
        };
        register.await.map_err(text)?;
        let computed: HashMap<_, _> = PassMajority::compute(&of_subset, &options)
            .await
            .map_err(text)?;
        for (name, metric) in computed.into_values().flat_map(|agent| agent.metrics) {
            if name != "per_sample_aggregate" {
                let metric = serde_json::from_str(&metric).map_err(text)?;
                metrics.push((format!("{value}/{name}"), metric));
            }
        }
    }
    Ok(metrics)
}
