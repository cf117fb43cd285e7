//! Columns that `JOIN ... USING` merges: the engine takes them for ambiguous in `WHERE`, so that they get the name of the
//! first table there.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, JoinConstraint, JoinOperator, Query, Select, SetExpr, TableFactor, VisitMut,
    VisitorMut,
};

/// Names the table of such columns in all queries of a statement. Returns whether there were any.
pub(super) fn name_tables(statement: &mut Statement) -> bool {
    let mut visitor = Visitor::default();
    if let Statement::Statement(statement) = statement {
        // It never breaks off.
        let _ = statement.visit(&mut visitor);
    }
    visitor.is_changed
}

/// Visits queries, and within them conditions. It is one type for both, since each is a visit of the whole grammar that
/// takes seconds to compile.
#[derive(Default)]
struct Visitor {
    /// The condition that is visited; `None` for queries.
    condition: Option<Condition>,
    is_changed: bool,
}

impl Visitor {
    fn within(&mut self, body: &mut SetExpr) {
        match body {
            SetExpr::Select(select) => self.is_changed |= name_table(select) == Some(true),
            SetExpr::SetOperation { left, right, .. } => {
                self.within(left);
                self.within(right);
            }
            // Queries in brackets are visited themselves.
            _ => {}
        }
    }
}

fn name_table(select: &mut Select) -> Option<bool> {
    let [from] = select.from.as_slice() else {
        return None;
    };
    let table = match &from.relation {
        TableFactor::Table {
            alias: Some(alias), ..
        }
        | TableFactor::Derived {
            alias: Some(alias), ..
        } => vec![alias.name.clone()],
        TableFactor::Table { name, .. } => {
            let parts = name.0.iter().map(|part| part.as_ident().cloned());
            parts.collect::<Option<_>>()?
        }
        _ => return None,
    };
    // The column of the first table is the merged one, but for RIGHT and FULL.
    let columns = match &from.joins.first()?.join_operator {
        JoinOperator::Join(JoinConstraint::Using(columns))
        | JoinOperator::Inner(JoinConstraint::Using(columns))
        | JoinOperator::Left(JoinConstraint::Using(columns))
        | JoinOperator::LeftOuter(JoinConstraint::Using(columns)) => columns,
        _ => return None,
    };
    let columns = columns
        .iter()
        .map(|name| name.0.last()?.as_ident().cloned());
    let mut visitor = Visitor {
        condition: Some(Condition {
            table,
            columns: columns.collect::<Option<_>>()?,
            depth: 0,
        }),
        is_changed: false,
    };
    let _ = select.selection.visit(&mut visitor);
    Some(visitor.is_changed)
}

/// A condition in which columns get the name of their table, but for its subqueries.
struct Condition {
    table: Vec<Ident>,
    columns: Vec<Ident>,
    depth: usize,
}

impl VisitorMut for Visitor {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        match &mut self.condition {
            Some(condition) => condition.depth += 1,
            None => self.within(&mut query.body),
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        if let Some(condition) = &mut self.condition {
            condition.depth -= 1;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, part: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = part
            && let Some(Condition {
                table,
                columns,
                depth: 0,
            }) = &self.condition
            && columns.iter().any(|column| column.value == name.value)
        {
            let parts = table.iter().chain([&*name]).cloned();
            *part = Expr::CompoundIdentifier(parts.collect());
            self.is_changed = true;
        }
        ControlFlow::Continue(())
    }
}
