use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::prelude::{DataFrame, SessionContext, col, lit};
use serde::Deserialize;

use super::decode;
use super::queries;
use super::report::{ComparisonOptions, MetricComparison, OverlapCounts};
use super::task_means::{TaskMeans, table};
use crate::measure::error::MeasureError;
use crate::measure::families::{MetricTable, plan};
use crate::measure::functions;
use crate::measure::queries::{MetricQueries, ParameterValue};
use crate::measure::spool::Spool;

/// Two agents that are compared.
#[derive(Debug, Clone)]
pub struct ComparedPair {
    /// Name of the candidate.
    pub candidate: String,
    /// Agent of the base.
    pub base_agent: String,
    /// Agent of the candidate.
    pub candidate_agent: String,
    /// The run of the base.
    pub base: TaskMeans,
    /// The run of the candidate.
    pub means: TaskMeans,
}

/// A metric that a side of a pair has on common tasks, and on how many.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MetricOverlap {
    /// Number of the pair, from 0.
    pub pair: usize,
    /// The metric.
    pub metric: String,
    /// Tasks with a score on both sides.
    pub num_tasks: u64,
    /// Tasks with a score in the base.
    pub base_tasks: u64,
    /// Tasks with a score in the candidate.
    pub candidate_tasks: u64,
}

/// Pairs that have been joined task by task. What is asked of it is computed then.
pub struct Compared {
    ctx: SessionContext,
    queries: MetricQueries,
    parameters: HashMap<String, ParameterValue>,
    overlaps: Vec<OverlapCounts>,
    metrics: Vec<MetricOverlap>,
}

impl Compared {
    /// Joins the tasks of every pair. `ctx` is a session without tables, and `spool` must outlive what is returned.
    ///
    /// # Errors
    /// A query fails.
    pub async fn new(
        spool: &Spool,
        ctx: SessionContext,
        pairs: &[ComparedPair],
        options: &ComparisonOptions,
    ) -> Result<Self, MeasureError> {
        functions::register(&ctx);
        let mut compared = Self {
            ctx,
            queries: queries()?,
            parameters: parameters(options),
            overlaps: Vec::new(),
            metrics: Vec::new(),
        };
        let mut overlaps = Vec::new();
        let mut differences = Vec::new();
        for (number, pair) in pairs.iter().enumerate() {
            let (overlap, tasks) = compared.join(spool, number, pair).await?;
            compared.overlaps.extend(decode::<OverlapCounts>(&overlap)?);
            overlaps.extend(overlap);
            differences.push(tasks);
        }
        compared.register("pairs", vec![names(pairs)?])?;
        compared.register("overlaps", overlaps)?;
        let all = union(&compared.ctx, differences)?;
        compared.register_view("differences", all.clone())?;
        compared.metrics = decode(&compared.table("metrics").await?.collect().await?)?;
        let chosen = match options.metrics.as_slice() {
            [] => all,
            metrics => {
                let metrics = metrics.iter().map(|metric| lit(metric.as_str())).collect();
                let chosen = all.filter(col("metric").in_list(metrics, false));
                chosen?
            }
        };
        compared.register_view("chosen", chosen)?;
        let tests = compared.table("tests").await?;
        spool.keep(&compared.ctx, tests, &[]).await?;
        let flips = compared.table("flips").await?.into_view();
        compared.ctx.register_table("flips", flips)?;
        Ok(compared)
    }

    /// Of each pair: which tasks are in common.
    pub fn overlaps(&self) -> &[OverlapCounts] {
        &self.overlaps
    }

    /// The metrics of all pairs, whether they are compared or not.
    pub fn metrics(&self) -> &[MetricOverlap] {
        &self.metrics
    }

    /// Compares.
    ///
    /// # Errors
    /// The query fails.
    pub async fn comparisons(&self) -> Result<Vec<MetricComparison>, MeasureError> {
        decode(&self.table("comparisons").await?.collect().await?)
    }

    /// The tasks that flipped.
    ///
    /// # Errors
    /// The query cannot be planned.
    pub async fn flips(&self) -> Result<MetricTable, MeasureError> {
        self.table("flipped_tasks").await
    }

    async fn table(&self, name: &str) -> Result<MetricTable, MeasureError> {
        plan(&self.ctx, self.queries.get(name)?, &self.parameters).await
    }

    /// The overlap of a pair, and the differences of its tasks.
    async fn join(
        &self,
        spool: &Spool,
        number: usize,
        pair: &ComparedPair,
    ) -> Result<(Vec<RecordBatch>, Arc<dyn TableProvider>), MeasureError> {
        let ctx = &self.ctx;
        for (name, table) in [
            ("base_keys", &pair.base.keys),
            ("base_means", &pair.base.means),
            ("candidate_keys", &pair.means.keys),
            ("candidate_means", &pair.means.means),
        ] {
            ctx.deregister_table(name)?;
            ctx.register_table(name, Arc::clone(table))?;
        }
        let text = |text: &str| ParameterValue::Text(text.to_owned());
        let number = ParameterValue::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let parameters = HashMap::from([
            ("pair".to_owned(), number),
            ("base_agent".to_owned(), text(&pair.base_agent)),
            ("candidate_agent".to_owned(), text(&pair.candidate_agent)),
        ]);
        let overlaps = plan(ctx, self.queries.get("overlaps")?, &parameters).await?;
        let overlaps = overlaps.collect().await?;
        let differences = plan(ctx, self.queries.get("differences")?, &parameters).await?;
        spool
            .keep(ctx, differences, &["metric", "task_key"])
            .await?;
        let differences = table(ctx, "differences").await?;
        ctx.deregister_table("differences")?;
        Ok((overlaps, differences))
    }

    fn register(&self, name: &str, rows: Vec<RecordBatch>) -> Result<(), MeasureError> {
        let Some(first) = rows.first() else {
            return Ok(());
        };
        let table = MemTable::try_new(first.schema(), vec![rows])?;
        self.ctx.register_table(name, Arc::new(table))?;
        Ok(())
    }

    fn register_view(&self, name: &str, view: DataFrame) -> Result<(), MeasureError> {
        self.ctx.register_table(name, view.into_view())?;
        Ok(())
    }
}

fn union(
    ctx: &SessionContext,
    tables: Vec<Arc<dyn TableProvider>>,
) -> Result<DataFrame, MeasureError> {
    let mut all: Option<DataFrame> = None;
    for table in tables {
        let table = ctx.read_table(table)?;
        all = Some(match all {
            Some(before) => before.union(table)?,
            None => table,
        });
    }
    Ok(all.map_or_else(|| ctx.read_empty(), Ok)?)
}

/// Who is compared, by the number of the pair.
fn names(pairs: &[ComparedPair]) -> Result<RecordBatch, MeasureError> {
    let texts = |of: fn(&ComparedPair) -> &str| -> ArrayRef {
        Arc::new(
            pairs
                .iter()
                .map(|pair| Some(of(pair)))
                .collect::<StringArray>(),
        )
    };
    let numbers: Int64Array = (0..).take(pairs.len()).map(Some).collect();
    let columns: [(&str, ArrayRef); 4] = [
        ("pair", Arc::new(numbers)),
        ("candidate", texts(|pair| &pair.candidate)),
        ("base_agent", texts(|pair| &pair.base_agent)),
        ("candidate_agent", texts(|pair| &pair.candidate_agent)),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

fn parameters(options: &ComparisonOptions) -> HashMap<String, ParameterValue> {
    let integer = |value: u32| ParameterValue::Integer(value.into());
    let seed = ParameterValue::Integer(options.seed.cast_signed());
    [
        ("confidence", ParameterValue::Float(options.confidence)),
        ("power", ParameterValue::Float(options.power)),
        ("resamples", integer(options.resamples)),
        ("permutations", integer(options.permutations)),
        ("seed", seed),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
