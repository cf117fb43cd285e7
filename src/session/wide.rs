use arrow::array::AsArray;
use datafusion::common::Result;
use datafusion::dataframe::DataFrame;
use datafusion::functions::core::expr_ext::FieldAccessor;
use datafusion::functions_nested::expr_fn::map_keys;
use datafusion::logical_expr::{Expr, ident, lit};
use datafusion::prelude::SessionContext;

use super::RunTables;
use crate::schema;
use crate::store::RunStore;

/// Column that tells the rows of several runs apart.
const RUN: &str = "run";

/// Metrics that are columns of every run already.
const SAME_AS_COLUMN: [&str; 4] = [
    schema::REWARD,
    schema::INPUT_TOKENS,
    schema::OUTPUT_TOKENS,
    schema::TOTAL_TOKENS,
];

/// Registers the tables of one or several runs the way people ask for them: `rollouts` has a
/// column for every metric, under its own name, or as `metric_NAME` where a column is called so
/// already. Of several runs, each table has a column `run` as well.
///
/// # Errors
/// A store can't be read.
pub async fn register_wide(session: &SessionContext, runs: &[(String, RunStore)]) -> Result<()> {
    let mut opened = Vec::new();
    for (name, run) in runs {
        opened.push((name, RunTables::look(run).await?));
    }
    for table in [schema::TASKS, schema::ROLLOUTS, schema::ATTEMPTS] {
        let mut all: Option<DataFrame> = None;
        for (name, tables) in &opened {
            let mut frame = tables.table(session, table).await?;
            if opened.len() > 1 {
                let columns = frame
                    .schema()
                    .fields()
                    .iter()
                    .map(|field| ident(field.name()));
                let columns: Vec<Expr> = std::iter::once(lit(name.as_str()).alias(RUN))
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
        if table == schema::ROLLOUTS {
            all = with_metrics(all).await?;
        }
        session.register_table(table, all.into_view())?;
    }
    Ok(())
}

async fn with_metrics(rollouts: DataFrame) -> Result<DataFrame> {
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
    for name in metric_names(&rollouts).await? {
        let metric = ident(schema::METRICS).field(name.as_str());
        if SAME_AS_COLUMN.contains(&name.as_str()) {
            continue;
        }
        let taken = name == RUN || rollouts.schema().field_with_unqualified_name(&name).is_ok();
        columns.push(metric.alias(if taken {
            format!("metric_{name}")
        } else {
            name
        }));
    }
    columns.extend(last);
    rollouts.select(columns)
}

async fn metric_names(rollouts: &DataFrame) -> Result<Vec<String>> {
    let keys = rollouts
        .clone()
        .select(vec![map_keys(ident(schema::METRICS)).alias("name")])?;
    let names = keys
        .unnest_columns(&["name"])?
        .distinct()?
        .sort(vec![ident("name").sort(true, false)])?;
    let mut all = Vec::new();
    for batch in names.collect().await? {
        let column = arrow::compute::cast(batch.column(0), &arrow::datatypes::DataType::Utf8)?;
        all.extend(
            column
                .as_string::<i32>()
                .iter()
                .flatten()
                .map(str::to_owned),
        );
    }
    Ok(all)
}
