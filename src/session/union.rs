use std::sync::Arc;

use arrow::array::AsArray;
use datafusion::common::Result;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{Expr, JoinType, ident, lit};
use datafusion::prelude::SessionContext;

use super::RunTables;
use crate::schema;
use crate::store::RunStore;

/// Registers `tasks`, `rollouts` and `attempts` of several runs as if they were one; says whether
/// tasks had to be numbered anew for that (`queries/union/numbering.sql` says how).
///
/// # Errors
/// A store can't be read.
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
        let mut union: Option<DataFrame> = None;
        for (number, tables) in (0_i64..).zip(&opened) {
            let frame = tables.table(session, table).await?;
            let number = lit(number).alias(RUN);
            let columns: Vec<Expr> = columns(&frame).chain([number]).collect();
            let frame = frame.select(columns)?;
            union = Some(match union {
                Some(before) => before.union(frame)?,
                None => frame,
            });
        }
        if let Some(union) = union {
            all.push((table, union));
        }
    }
    let is_renumbered = match all.iter().find(|(table, _)| *table == schema::TASKS) {
        Some((_, tasks)) => register_numbering(session, tasks).await?,
        None => false,
    };
    for (table, frame) in all {
        let frame = match is_renumbered {
            true => renumbered(session, table, frame).await?,
            false => frame.drop_columns(&[RUN])?,
        };
        session.register_table(table, frame.into_view())?;
    }
    Ok(is_renumbered)
}

/// Which of the runs a row is of, while they are put together.
const RUN: &str = "run";
const ALL_TASKS: &str = "all_tasks";
const NUMBERING: &str = "numbering";

fn columns(frame: &DataFrame) -> impl Iterator<Item = Expr> + '_ {
    frame
        .schema()
        .fields()
        .iter()
        .map(|field| ident(field.name()))
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
    let on_left = ["number_of_run", "number_in_run"];
    let joined = numbering.join(
        frame.clone(),
        JoinType::Inner,
        &on_left,
        &[RUN, schema::TASK_INDEX],
        None,
    )?;
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
