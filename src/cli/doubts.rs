//! What makes the verdict of a gate doubtful: rollouts that are missing, a metric that no row has, and a query whose
//! every answer is a violation.

use std::collections::BTreeSet;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

use crate::config::suggestion;
use crate::error::Error;
use crate::query::SqlSession;
use crate::session::{Rows, row};

/// The column that names a metric in the metric families.
const METRIC: &str = "metric";

row! {
    struct Counts {
        planned: i64,
        done: i64,
    }
}

row! {
    struct Named {
        metric: Option<String>,
    }
}

/// Returns a warning for each run of which not all rollouts are done.
pub(super) async fn of_runs(session: &SqlSession) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    for (label, of_run) in session.labels() {
        let query = format!(
            "SELECT
                (SELECT coalesce(sum(num_repeats), 0) FROM tasks {of_run}) AS planned,
                (SELECT count(*) FROM rollouts {of_run}) AS done"
        );
        let mut rows = Rows::start(session.plan(&query).await?, Counts::rows).await?;
        let counts = rows.next().await?;
        if let Some(Counts { planned, done }) = counts.filter(|counts| counts.done < counts.planned)
        {
            warnings.push(format!(
                "{label}: {done} of {planned} rollouts are done; the gates see only these"
            ));
        }
    }
    Ok(warnings)
}

/// Returns warnings about a gate that cannot mean what it says.
pub(super) async fn of_gate(session: &SqlSession, gate: &DataFrame) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    if let [field] = gate.schema().fields().as_ref()
        && *field.data_type() == DataType::Boolean
    {
        let example = "SELECT avg(reward) FROM rollouts HAVING avg(reward) < 0.9";
        warnings.push(format!(
            "it returns true or false, and each row is a violation, whatever is in it; return rows only where \
             something is wrong, as in {example}"
        ));
    }
    for Sought {
        metric,
        column,
        rows,
    } in sought(gate.logical_plan())?
    {
        let rows = session.frame(rows).select(vec![Expr::Column(column)])?;
        let names = Rows::start(rows.distinct()?, Named::rows).await?;
        let names = names.collect().await?.into_iter();
        let names: BTreeSet<String> = names.filter_map(|row| row.metric).collect();
        if names.contains(&metric) {
            continue;
        }
        let hint = if names.is_empty() {
            "there are no metrics yet".to_owned()
        } else {
            suggestion(&metric, names.iter().map(String::as_str))
        };
        let warning = format!("no row has {METRIC} = '{metric}'; {hint}");
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    Ok(warnings)
}

/// A metric that a query looks for.
struct Sought {
    metric: String,
    column: Column,
    /// The rows among which it looks.
    rows: LogicalPlan,
}

fn sought(plan: &LogicalPlan) -> Result<Vec<Sought>> {
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                for (column, metric) in equal(part) {
                    if let Some(rows) = source(node, column) {
                        found.push(Sought {
                            metric: metric.to_owned(),
                            column: column.clone(),
                            rows: rows.clone(),
                        });
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// Returns the metrics that a condition asks for: `metric = 'a'` or `metric IN ('a', 'b')`.
fn equal(condition: &Expr) -> Vec<(&Column, &str)> {
    let (column, values) = match condition {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) => match (left.as_ref(), right.as_ref()) {
            (Expr::Column(column), value) | (value, Expr::Column(column)) => {
                (column, std::slice::from_ref(value))
            }
            _ => return Vec::new(),
        },
        Expr::InList(list) if !list.negated => match list.expr.as_ref() {
            Expr::Column(column) => (column, list.list.as_slice()),
            _ => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    let texts = values.iter().filter_map(|value| match value {
        Expr::Literal(value, _) => Some((column, value.try_as_str().flatten()?)),
        _ => None,
    });
    texts.filter(|_| column.name == METRIC).collect()
}

/// Returns the lowest plan below a node that has a column.
fn source<'a>(node: &'a LogicalPlan, column: &Column) -> Option<&'a LogicalPlan> {
    let mut inputs = node.inputs().into_iter();
    let input = inputs.find(|input| input.schema().has_column(column))?;
    source(input, column).or(Some(input))
}
