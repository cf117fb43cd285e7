//! Several runs as one: [`register_wide`] for people, with a column for every metric, and [`register_union`] for metrics,
//! with tasks renumbered if necessary.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::AsArray;
use datafusion::catalog::{MemorySchemaProvider, SchemaProvider};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::functions::core::expr_ext::FieldAccessor;
use datafusion::logical_expr::{Expr, JoinType, ident, lit};
use datafusion::prelude::SessionContext;

use super::tables::union_all;
use super::{MetricNames, RunTables};
use crate::schema;
use crate::store::RunStore;

/// One of the runs of a session.
#[derive(Debug, Clone)]
pub struct NamedRun {
    /// The value of the column `run` in its rows.
    pub label: String,
    /// Name of the schema that holds its own tables, in lower case as SQL reads names; none if it has no tables of its
    /// own.
    pub schema: Option<String>,
    /// The run's store.
    pub run: RunStore,
}

/// The column that tells the rows of several runs apart.
const RUN: &str = "run";

const ALL_TASKS: &str = "all_tasks";
const NUMBERING: &str = "numbering";

/// The metrics that are already columns of every run.
const SAME_AS_COLUMN: [&str; 4] = [
    schema::REWARD,
    schema::INPUT_TOKENS,
    schema::OUTPUT_TOKENS,
    schema::TOTAL_TOKENS,
];

/// The columns that come last, since they are long.
const HEAVY: [&str; 4] = [
    schema::METRICS,
    schema::INTEGER_METRICS,
    schema::INFO,
    schema::RESULT,
];

/// Looks at one or several runs and registers their tables the way people ask for them: `rollouts` has a column for every
/// metric, under its own name, or as `metric_NAME` if a column has that name. For several runs, or one that has
/// a schema, each table has a column `run` as well. A run's own tables, without that column, are in its schema.
///
/// The default schema holds these tables afterwards and nothing else, so that a session can look again. `names` is what was
/// learnt by looking before. Returns each run's tables as they are kept, without the added columns.
pub async fn register_wide(
    session: &SessionContext,
    runs: &[NamedRun],
    names: &mut MetricNames,
) -> Result<Vec<RunTables>> {
    let mut opened = Vec::new();
    for run in runs {
        let tables = RunTables::look(&run.run).await?;
        let metrics = names.of(session, &tables).await?;
        opened.push((run, tables, metrics));
    }
    names.forget_others();
    let with_run = runs.len() > 1 || runs.iter().any(|run| run.schema.is_some());
    let all_metrics = opened.iter().flat_map(|(_, _, metrics)| metrics);
    let all_metrics: BTreeSet<String> = all_metrics.cloned().collect();
    let unions = MemorySchemaProvider::new();
    let own: Vec<MemorySchemaProvider> = runs.iter().map(|_| MemorySchemaProvider::new()).collect();
    for table in schema::TABLES {
        let has_metrics = table == schema::ROLLOUTS;
        let mut all = Vec::new();
        for ((run, tables, metrics), own) in opened.iter().zip(&own) {
            let mut frame = tables.table(session, table).await?;
            if run.schema.is_some() {
                let mut frame = frame.clone();
                if has_metrics {
                    frame = with_metrics(frame, metrics)?;
                }
                own.register_table(table.to_owned(), frame.into_view())?;
            }
            if with_run {
                let label = [lit(run.label.as_str()).alias(RUN)];
                let columns = frame.schema().fields().iter();
                let columns = columns.map(|field| ident(field.name()));
                let columns: Vec<Expr> = label.into_iter().chain(columns).collect();
                frame = frame.select(columns)?;
            }
            all.push(frame);
        }
        let Some(mut all) = union_all(all)? else {
            continue;
        };
        if has_metrics {
            all = with_metrics(all, &all_metrics)?;
        }
        unions.register_table(table.to_owned(), all.into_view())?;
    }
    // All at once and last: after an earlier error, the session keeps its previous tables.
    let options = session.state().config().options().catalog.clone();
    let catalog = session.catalog(&options.default_catalog);
    let catalog = catalog.ok_or_else(|| internal_datafusion_err!("there is no catalog"))?;
    for (run, own) in runs.iter().zip(own) {
        if let Some(name) = &run.schema {
            catalog.register_schema(name, Arc::new(own))?;
        }
    }
    catalog.register_schema(&options.default_schema, Arc::new(unions))?;
    Ok(opened.into_iter().map(|(_, tables, _)| tables).collect())
}

fn with_metrics(rollouts: DataFrame, names: &BTreeSet<String>) -> Result<DataFrame> {
    let mut columns: Vec<Expr> = Vec::new();
    let mut last: Vec<Expr> = Vec::new();
    for field in rollouts.schema().fields() {
        let is_heavy = HEAVY.contains(&field.name().as_str());
        if is_heavy { &mut last } else { &mut columns }.push(ident(field.name()));
    }
    for name in names {
        // What an agent echoes of its row is no metric: the numbers of its collector.
        if SAME_AS_COLUMN.contains(&name.as_str()) || name.starts_with('_') {
            continue;
        }
        let metric = ident(schema::METRICS).field(name.as_str());
        let taken = name == RUN || rollouts.schema().field_with_unqualified_name(name).is_ok();
        let prefix = if taken { "metric_" } else { "" };
        columns.push(metric.alias(format!("{prefix}{name}")));
    }
    columns.extend(last);
    rollouts.select(columns)
}

/// Registers `tasks`, `rollouts` and `attempts` of several runs as if they were one. Returns whether tasks had to be
/// renumbered (`queries/union/numbering.sql` says how).
pub async fn register_union(session: &SessionContext, runs: &[RunStore]) -> Result<bool> {
    let mut opened = Vec::new();
    for run in runs {
        opened.push(RunTables::look(run).await?);
    }
    if let [only] = opened.as_slice() {
        only.register(session).await?;
        return Ok(false);
    }
    let mut all = Vec::new();
    for table in schema::TABLES {
        let mut frames = Vec::new();
        for (number, tables) in (0_i64..).zip(&opened) {
            let frame = tables.table(session, table).await?;
            frames.push(frame.with_column(RUN, lit(number))?);
        }
        all.extend(union_all(frames)?.map(|union| (table, union)));
    }
    let is_renumbered = match all.iter().find(|(table, _)| *table == schema::TASKS) {
        Some((_, tasks)) => register_numbering(session, tasks).await?,
        None => false,
    };
    for (table, frame) in all {
        let frame = if is_renumbered {
            renumbered(session, table, frame).await?
        } else {
            frame.drop_columns(&[RUN])?
        };
        session.register_table(table, frame.into_view())?;
    }
    Ok(is_renumbered)
}

async fn register_numbering(session: &SessionContext, tasks: &DataFrame) -> Result<bool> {
    session.register_table(ALL_TASKS, tasks.clone().into_view())?;
    let sql = include_str!("../../queries/union/numbering.sql");
    let numbering = session.sql(sql).await?;
    let schema = Arc::new(numbering.schema().as_arrow().clone());
    let batches = numbering.collect().await?;
    session.deregister_table(ALL_TASKS)?;
    let is_renumbered = batches.iter().find_map(|batch| {
        let column = batch.column_by_name("is_renumbered")?.as_boolean();
        column.iter().next().flatten()
    });
    let table = MemTable::try_new(schema, vec![batches])?;
    session.register_table(NUMBERING, Arc::new(table))?;
    Ok(is_renumbered.unwrap_or(false))
}

async fn renumbered(session: &SessionContext, table: &str, frame: DataFrame) -> Result<DataFrame> {
    let place = match table {
        schema::TASKS => schema::FIRST_ROLLOUT_INDEX,
        _ => schema::ROLLOUT_INDEX,
    };
    let numbering = session.table(NUMBERING).await?.select(vec![
        ident(RUN).alias("number_of_run"),
        ident(schema::TASK_INDEX).alias("number_in_run"),
        ident("new_task_index"),
        ident("rollout_offset"),
    ])?;
    let (left, right) = (
        ["number_of_run", "number_in_run"],
        [RUN, schema::TASK_INDEX],
    );
    let joined = numbering.join(frame.clone(), JoinType::Inner, &left, &right, None)?;
    let columns = frame.schema().fields().iter().filter_map(|field| {
        Some(match field.name().as_str() {
            RUN => return None,
            schema::TASK_INDEX => ident("new_task_index").alias(schema::TASK_INDEX),
            name if name == place => (ident(name) + ident("rollout_offset")).alias(name),
            name => ident(name),
        })
    });
    joined.select(columns.collect::<Vec<Expr>>())
}
