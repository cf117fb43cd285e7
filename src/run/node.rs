use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

use super::RunExec;
use crate::schema;

/// The place of [`RunExec`] in a logical plan.
#[derive(Debug, Clone)]
pub struct RunNode {
    input: LogicalPlan,
    concurrency: usize,
    schema: DFSchemaRef,
}

impl RunNode {
    /// Calls an agent for each row of `input`, which has the columns of [`schema::owed`].
    ///
    /// # Errors
    /// The schema of outcomes can't be qualified, which would be a defect.
    pub fn plan(input: LogicalPlan, concurrency: usize) -> Result<LogicalPlan> {
        let schema = Arc::new(DFSchema::try_from(schema::outcomes())?);
        Ok(LogicalPlan::Extension(Extension {
            node: Arc::new(Self {
                input,
                concurrency,
                schema,
            }),
        }))
    }

    fn key(&self) -> (&LogicalPlan, usize) {
        (&self.input, self.concurrency)
    }
}

impl PartialEq for RunNode {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for RunNode {}

impl PartialOrd for RunNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.key().partial_cmp(&other.key())
    }
}

impl Hash for RunNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl UserDefinedLogicalNodeCore for RunNode {
    fn name(&self) -> &'static str {
        "Run"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Run: concurrency={}", self.concurrency)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.pop()) {
            (Some(input), None) => Ok(Self {
                input,
                ..self.clone()
            }),
            _ => internal_err!("Run has one input"),
        }
    }
}

/// Plans [`RunNode`] as [`RunExec`].
#[derive(Debug)]
pub struct RunPlanner;

#[async_trait]
impl ExtensionPlanner for RunPlanner {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        match (node.as_any().downcast_ref::<RunNode>(), inputs) {
            (Some(run), [input]) => Ok(Some(Arc::new(RunExec::new(
                Arc::clone(input),
                run.concurrency,
            )))),
            _ => Ok(None),
        }
    }
}
