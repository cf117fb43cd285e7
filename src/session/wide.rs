use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::catalog::{MemorySchemaProvider, SchemaProvider};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::dataframe::DataFrame;
use datafusion::functions::core::expr_ext::FieldAccessor;
use datafusion::logical_expr::{Expr, ident, lit};
use datafusion::prelude::SessionContext;

use super::{MetricNames, NamedRun, RunTables};
use crate::schema;

/// Column that tells the rows of several runs apart.
const RUN: &str = "run";

/// Metrics that are columns of every run already.
const SAME_AS_COLUMN: [&str; 4] = [
    schema::REWARD,
    schema::INPUT_TOKENS,
    schema::OUTPUT_TOKENS,
    schema::TOTAL_TOKENS,
];

/// Looks at one or several runs and registers their tables the way people ask for them: `rollouts`
/// has a column for every metric, under its own name, or as `metric_NAME` where a column is called
/// so already. Of several runs, or of one that has a schema, each table has a column `run` as well.
/// A run's own tables, without that column, are in its schema.
///
/// The default schema holds these tables afterwards and nothing else, so that a session can look
/// again. `names` is what was learnt by looking before. Gives each run's tables as they are kept, without
/// the added columns.
///
/// # Errors
/// A store can't be read.
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
    let all_metrics: BTreeSet<String> = opened
        .iter()
        .flat_map(|(_, _, metrics)| metrics.iter().cloned())
        .collect();
    let unions = MemorySchemaProvider::new();
    let own: Vec<MemorySchemaProvider> = runs.iter().map(|_| MemorySchemaProvider::new()).collect();
    for table in schema::TABLES {
        let has_metrics = table == schema::ROLLOUTS;
        let mut all: Option<DataFrame> = None;
        for ((run, tables, metrics), own) in opened.iter().zip(&own) {
            let mut frame = tables.table(session, table).await?;
            if run.schema.is_some() {
                let frame = match has_metrics {
                    true => with_metrics(frame.clone(), metrics)?,
                    false => frame.clone(),
                };
                own.register_table(table.to_owned(), frame.into_view())?;
            }
            if with_run {
                let columns = frame
                    .schema()
                    .fields()
                    .iter()
                    .map(|field| ident(field.name()));
                let columns: Vec<Expr> = std::iter::once(lit(run.label.as_str()).alias(RUN))
                    .chain(columns)
                    .collect();
                frame = frame.select(columns)?;
            }
            all = Some(match all {
                Some(before) => before.union(frame)?,
                None => frame,
            });
        }
        let Some(mut all) = all else { continue };
        if has_metrics {
            all = with_metrics(all, &all_metrics)?;
        }
        unions.register_table(table.to_owned(), all.into_view())?;
    }
    // All at once and last: whoever gives up before finds the tables of the look before.
    let options = session.state().config().options().catalog.clone();
    let catalog = session
        .catalog(&options.default_catalog)
        .ok_or_else(|| internal_datafusion_err!("there is no catalog"))?;
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
        let heavy = [
            schema::METRICS,
            schema::INTEGER_METRICS,
            schema::INFO,
            schema::RESULT,
        ]
        .contains(&field.name().as_str());
        if heavy { &mut last } else { &mut columns }.push(ident(field.name()));
    }
    for name in names {
        if SAME_AS_COLUMN.contains(&name.as_str()) {
            continue;
        }
        let metric = ident(schema::METRICS).field(name.as_str());
        let taken = name == RUN || rollouts.schema().field_with_unqualified_name(name).is_ok();
        columns.push(metric.alias(if taken {
            format!("metric_{name}")
        } else {
            name.clone()
        }));
    }
    columns.extend(last);
    rollouts.select(columns)
}
