//! [`PassMajority`]: pass@k and majority@k of an agent's scores as NeMo Gym's benchmarks report them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use indexmap::IndexMap;

use super::error::MeasureError;
use super::parameter::ParameterValue;
use super::rows::{Rows, counts, floats, texts};
use super::views::register_views;
use crate::json::quote;

/// Which scores, and what of them.
#[derive(Debug, Clone, PartialEq)]
pub struct PassMajorityOptions {
    /// Names of scores, each with the metric that it is.
    pub scores: Vec<(String, String)>,
    /// Path of the answer within what the agent gave back: with one, majority@k and `no_answer` are there.
    pub answer_key: Option<String>,
    /// Also the mean over tasks of the standard deviation within a task.
    pub add_avg_sample_std_dev: bool,
    /// Tasks in all, where some may have no rollout.
    pub num_tasks: Option<i64>,
}

impl Default for PassMajorityOptions {
    fn default() -> Self {
        Self {
            scores: vec![("accuracy".into(), "reward".into())],
            answer_key: None,
            add_avg_sample_std_dev: false,
            num_tasks: None,
        }
    }
}

/// The metrics of an agent by their names in NeMo Gym, in percent, as JSON text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PassMajority {
    /// `pass@{k}/{score}` and so on, for every k up to the most rollouts that a task has; the means of
    /// the runs under `per_sample_aggregate`.
    pub metrics: IndexMap<String, String>,
    /// The names of the scores.
    pub score_names: Vec<String>,
    /// The most rollouts that a task has.
    pub max_k: i64,
}

struct AtK {
    agent_name: String,
    name: String,
    k: i64,
    pass_at: Option<f64>,
    avg_of: Option<f64>,
    majority: Option<f64>,
    within: Option<f64>,
}

struct Run {
    agent_name: String,
    name: String,
    run: i64,
    mean: Option<f64>,
    std: Option<f64>,
    stderr: Option<f64>,
}

fn at_k(batch: &RecordBatch) -> Result<Vec<AtK>, MeasureError> {
    let mut agents = texts(batch, "agent_name")?.into_iter();
    let mut names = texts(batch, "name")?.into_iter();
    let mut pass_at = floats(batch, "pass_at_k")?.into_iter();
    let mut avg_of = floats(batch, "avg_of_k")?.into_iter();
    let mut majority = floats(batch, "majority_at_k")?.into_iter();
    let mut within = floats(batch, "mean_task_std")?.into_iter();
    let ks = counts(batch, "k")?.into_iter();
    Ok(ks
        .map(|k| AtK {
            agent_name: agents.next().unwrap_or_default(),
            name: names.next().unwrap_or_default(),
            k,
            pass_at: pass_at.next().flatten(),
            avg_of: avg_of.next().flatten(),
            majority: majority.next().flatten(),
            within: within.next().flatten(),
        })
        .collect())
}

fn runs(batch: &RecordBatch) -> Result<Vec<Run>, MeasureError> {
    let mut agents = texts(batch, "agent_name")?.into_iter();
    let mut names = texts(batch, "name")?.into_iter();
    let mut means = floats(batch, "mean")?.into_iter();
    let mut stds = floats(batch, "std")?.into_iter();
    let mut stderrs = floats(batch, "stderr")?.into_iter();
    let runs = counts(batch, "run")?.into_iter();
    Ok(runs
        .map(|run| Run {
            agent_name: agents.next().unwrap_or_default(),
            name: names.next().unwrap_or_default(),
            run,
            mean: means.next().flatten(),
            std: stds.next().flatten(),
            stderr: stderrs.next().flatten(),
        })
        .collect())
}

/// A number as Python's JSON writes it; nothing for what is no number.
fn number(value: Option<f64>) -> Option<String> {
    let value = value.filter(|value| !value.is_nan())?;
    let number = serde_json::Number::from_f64(value);
    Some(number.map_or_else(|| "null".into(), |number| number.to_string()))
}

impl PassMajority {
    /// Computes the metrics of every agent over the tables `tasks` and `rollouts` of a session, and
    /// `scores` if it is there.
    ///
    /// # Errors
    /// The tables cannot be read, or an answer is a list or an object.
    pub async fn compute(
        ctx: &SessionContext,
        options: &PassMajorityOptions,
    ) -> Result<HashMap<String, Self>, MeasureError> {
        let mut parameters = HashMap::new();
        if let Some(path) = &options.answer_key {
            parameters.insert("answer_key".into(), ParameterValue::Text(path.clone()));
        }
        register_views(ctx, &parameters).await?;
        register_names(ctx, &options.scores)?;
        let sql = include_str!("../../queries/artifacts/pass_majority.sql");
        let num_tasks = ScalarValue::from(options.num_tasks.unwrap_or(0));
        let at_k = Rows::with_parameters(ctx, sql, &[("num_tasks", num_tasks)], at_k).await?;
        let sql = include_str!("../../queries/artifacts/score_runs.sql");
        let runs = Rows::of(ctx, sql, runs).await?.collect().await?;
        let mut agents: HashMap<String, Vec<AtK>> = HashMap::new();
        for row in at_k.collect().await? {
            agents.entry(row.agent_name.clone()).or_default().push(row);
        }
        let agents = agents.into_iter().map(|(agent, at_k)| {
            let runs: Vec<&Run> = runs.iter().filter(|run| run.agent_name == agent).collect();
            let of_agent = Self::of(&at_k, &runs, options);
            (agent, of_agent)
        });
        Ok(agents.collect())
    }

    fn of(at_k: &[AtK], runs: &[&Run], options: &PassMajorityOptions) -> Self {
        let names = options.scores.iter().map(|(name, _)| name.as_str());
        let no_answer = options.answer_key.as_ref().map(|_| "no_answer");
        let names: BTreeSet<&str> = names.chain(no_answer).collect();
        let max_k = at_k.iter().map(|row| row.k).max().unwrap_or_default();
        let mut metrics = IndexMap::new();
        let mut put = |name: String, value: Option<String>| {
            if let Some(value) = value {
                metrics.insert(name, value);
            }
        };
        for AtK {
            name,
            k,
            pass_at,
            avg_of,
            majority,
            ..
        } in at_k
        {
            put(format!("pass@{k}/{name}"), number(*pass_at));
            put(format!("pass@1[avg-of-{k}]/{name}"), number(*avg_of));
            put(format!("majority@{k}/{name}"), number(*majority));
        }
        let of_runs: Vec<String> = names
            .iter()
            .filter_map(|name| {
                let means = runs.iter().filter(|run| run.name == **name);
                let means: Vec<String> = means.filter_map(|run| number(run.mean)).collect();
                (!means.is_empty()).then(|| format!("{}:[{}]", quote(name), means.join(",")))
            })
            .collect();
        put(
            "per_sample_aggregate".into(),
            Some(format!("{{{}}}", of_runs.join(","))),
        );
        for k in 2..=max_k {
            for name in &names {
                // Beyond the last run the first k are all there are.
                let among = runs.iter().filter(|run| run.name == **name && run.run <= k);
                let Some(last) = among.max_by_key(|run| run.run) else {
                    continue;
                };
                let prefix = format!("pass@1[avg-of-{k}]/{name}");
                put(format!("{prefix}/std_dev_across_runs"), number(last.std));
                put(format!("{prefix}/std_err_across_runs"), number(last.stderr));
            }
        }
        if options.add_avg_sample_std_dev {
            for AtK {
                name, k, within, ..
            } in at_k.iter().filter(|row| row.k > 1)
            {
                let name = format!("pass@1[avg-of-{k}]/{name}/avg_sample_std_dev");
                put(name, number(*within));
            }
        }
        Self {
            metrics,
            score_names: names.into_iter().map(str::to_owned).collect(),
            max_k,
        }
    }
}

fn register_names(ctx: &SessionContext, scores: &[(String, String)]) -> Result<(), MeasureError> {
    let field = |name| Field::new(name, DataType::Utf8View, false);
    let schema = Arc::new(Schema::new(vec![field("name"), field("metric")]));
    let column = |of: fn(&(String, String)) -> &String| {
        Arc::new(scores.iter().map(of).map(Some).collect::<StringViewArray>())
    };
    let columns: Vec<arrow::array::ArrayRef> =
        vec![column(|score| &score.0), column(|score| &score.1)];
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns);
    let register = |batch: RecordBatch| {
        ctx.deregister_table("score_names")?;
        let table = MemTable::try_new(schema, vec![vec![batch]])?;
        ctx.register_table("score_names", Arc::new(table))
    };
    let batch = batch.map_err(|error| MeasureError::tables(error.into()))?;
    register(batch).map(drop).map_err(MeasureError::tables)
}
