use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::catalog::TableProvider;
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::prelude::{DataFrame, SessionContext, col, lit};

use super::queries;
use super::report::{ComparisonOptions, MetricComparison, MetricOverlap, OverlapCounts};
use super::task_means::TaskMeans;
use crate::measure::error::MeasureError;
use crate::measure::families::{MetricTable, plan};
use crate::measure::functions;
use crate::measure::queries::MetricQueries;
use crate::measure::rows::Rows;
use crate::session::{self, Spool};

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

/// Pairs whose tasks are joined. Results are computed when they are asked for.
pub struct Compared {
    ctx: SessionContext,
    spool: Spool,
    queries: MetricQueries,
    parameters: HashMap<String, ScalarValue>,
    overlaps: Vec<OverlapCounts>,
    metrics: Vec<MetricOverlap>,
}

impl Compared {
    /// Joins the tasks of every pair.
    ///
    /// # Errors
    /// A query fails.
    pub async fn new(
        pairs: &[ComparedPair],
        options: &ComparisonOptions,
    ) -> Result<Self, MeasureError> {
        let ctx = session::measuring(options.memory)?;
        functions::register(&ctx);
        ctx.register_batch("pairs", names(pairs)?)?;
        let mut compared = Self {
            ctx,
            spool: Spool::new()?,
            queries: queries()?,
            parameters: parameters(options),
            overlaps: Vec::new(),
            metrics: Vec::new(),
        };
        let ctx = &compared.ctx;
        let (mut overlaps, mut differences) = (None, None);
        for (number, pair) in pairs.iter().enumerate() {
            let (overlap, tasks) = compared.join(number, pair).await?;
            overlaps = Some(union(overlaps, ctx.read_batches(overlap)?)?);
            differences = Some(union(differences, ctx.read_table(tasks)?)?);
        }
        let (Some(overlaps), Some(all)) = (overlaps, differences) else {
            return Ok(compared);
        };
        ctx.register_table("overlaps", overlaps.clone().into_view())?;
        ctx.register_table("differences", all.clone().into_view())?;
        let overlaps = overlaps.sort_by(vec![col("pair")])?;
        let overlaps = Rows::start(overlaps, OverlapCounts::rows).await?;
        let metrics = compared.table("metrics").await?;
        let metrics = metrics.rows(MetricOverlap::rows).await?;
        let chosen = if options.all {
            all
        } else {
            let metrics = options.metrics.iter();
            let metrics = metrics.map(|metric| lit(metric.as_str())).collect();
            all.filter(col("metric").in_list(metrics, false))?
        };
        ctx.register_table("chosen", chosen.into_view())?;
        let tests = compared.table("tests").await?;
        tests.keep(&compared.spool, ctx).await?;
        let flips = compared.table("flips").await?.into_view();
        ctx.register_table("flips", flips)?;
        compared.overlaps = overlaps.collect().await?;
        compared.metrics = metrics;
        Ok(compared)
    }

    /// Returns the overlap of each pair's tasks.
    pub fn overlaps(&self) -> &[OverlapCounts] {
        &self.overlaps
    }

    /// Returns the metrics of all pairs, whether they are compared or not.
    pub fn metrics(&self) -> &[MetricOverlap] {
        &self.metrics
    }

    /// Returns a session with the tables `chosen`, the differences of every task that the pairs have in common in the
    /// metrics that are compared, and `flips`.
    pub(crate) fn session(&self) -> &SessionContext {
        &self.ctx
    }

    /// Compares the pairs, metric by metric.
    ///
    /// # Errors
    /// The query fails.
    pub async fn comparisons(&self) -> Result<Vec<MetricComparison>, MeasureError> {
        let comparisons = self.table("comparisons").await?;
        let comparisons = comparisons.rows(MetricComparison::rows).await?;
        Ok(comparisons
            .into_iter()
            .map(MetricComparison::finite)
            .collect())
    }

    /// Returns the table of the tasks that flipped.
    ///
    /// # Errors
    /// The query cannot be planned.
    pub async fn flips(&self) -> Result<MetricTable, MeasureError> {
        self.table("flipped_tasks").await
    }

    async fn table(&self, name: &str) -> Result<MetricTable, MeasureError> {
        plan(&self.ctx, self.queries.get(name)?, &self.parameters).await
    }

    /// Returns the overlap of a pair and the table of its tasks' differences.
    async fn join(
        &self,
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
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        let parameters = HashMap::from([
            ("pair".to_owned(), number.into()),
            ("base_agent".to_owned(), pair.base_agent.as_str().into()),
            (
                "candidate_agent".to_owned(),
                pair.candidate_agent.as_str().into(),
            ),
        ]);
        let overlaps = plan(ctx, self.queries.get("overlaps")?, &parameters).await?;
        let overlaps = overlaps.collect().await?;
        let differences = plan(ctx, self.queries.get("differences")?, &parameters).await?;
        differences.keep(&self.spool, ctx).await?;
        let differences = ctx.table_provider("differences").await?;
        ctx.deregister_table("differences")?;
        Ok((overlaps, differences))
    }
}

fn union(before: Option<DataFrame>, rows: DataFrame) -> Result<DataFrame, DataFusionError> {
    match before {
        Some(before) => before.union(rows),
        None => Ok(rows),
    }
}

/// Returns the table `pairs`: the candidate and agents of each pair, by its number.
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

fn parameters(options: &ComparisonOptions) -> HashMap<String, ScalarValue> {
    let integer = |value: u32| i64::from(value).into();
    [
        ("confidence", options.confidence.into()),
        ("power", options.power.into()),
        ("resamples", integer(options.resamples)),
        ("permutations", integer(options.permutations)),
        ("seed", options.seed.cast_signed().into()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
