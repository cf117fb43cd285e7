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

use super::LandExec;
use crate::schema;

/// The place of [`LandExec`] in a logical plan.
#[derive(Debug, Clone)]
pub struct LandNode {
    input: LogicalPlan,
    output: String,
    part_size: u64,
    schema: DFSchemaRef,
}

impl LandNode {
    /// Lands the rows of `input`, which has the columns of [`schema::outcomes`], at `output`, in
    /// parts of about `part_size` bytes.
    ///
    /// # Errors
    /// The schema of what was landed can't be qualified, which would be a defect.
    pub fn plan(input: LogicalPlan, output: String, part_size: u64) -> Result<LogicalPlan> {
        let schema = Arc::new(DFSchema::try_from(schema::landed())?);
        Ok(LogicalPlan::Extension(Extension {
            node: Arc::new(Self {
                input,
                output,
                part_size,
                schema,
            }),
        }))
    }

    fn key(&self) -> (&LogicalPlan, &str, u64) {
        (&self.input, &self.output, self.part_size)
    }
}

impl PartialEq for LandNode {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for LandNode {}

impl PartialOrd for LandNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.key().partial_cmp(&other.key())
    }
}

impl Hash for LandNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl UserDefinedLogicalNodeCore for LandNode {
    fn name(&self) -> &'static str {
        "Land"
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
        write!(
            f,
            "Land: output={}, part_size={}",
            self.output, self.part_size
        )
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.pop()) {
            (Some(input), None) => Ok(Self {
                input,
                ..self.clone()
            }),
            _ => internal_err!("Land has one input"),
        }
    }
}

/// Plans [`LandNode`] as [`LandExec`].
#[derive(Debug)]
pub struct LandPlanner;

#[async_trait]
impl ExtensionPlanner for LandPlanner {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        match (node.as_any().downcast_ref::<LandNode>(), inputs) {
            (Some(land), [input]) => Ok(Some(Arc::new(LandExec::new(
                Arc::clone(input),
                land.output.clone(),
                land.part_size,
            )))),
            _ => Ok(None),
        }
    }
}
