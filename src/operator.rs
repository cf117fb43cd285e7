//! Operators of ours in a logical plan: a [`Step`] says what one is, [`StepNode`] is its place, and
//! [`StepPlanner`] plans it.

use std::cmp::Ordering;
use std::fmt::{self, Debug, Display};
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

/// An operator with one input. Its `Display` is what `EXPLAIN` shows behind its name.
pub trait Step: Debug + Display + Clone + Eq + PartialOrd + Hash + Send + Sync + 'static {
    /// Its name in a logical plan.
    const NAME: &'static str;

    /// The columns of its output.
    ///
    /// # Errors
    /// The columns can't be qualified, which would be a defect.
    fn schema(&self, input: &LogicalPlan) -> Result<DFSchemaRef>;

    /// The columns of its input that it needs, if only these of its output are asked for; none if it
    /// needs all.
    fn needed_columns(&self, _input: &LogicalPlan, _output: &[usize]) -> Option<Vec<usize>> {
        None
    }

    /// The operator itself.
    ///
    /// # Errors
    /// The input lacks what it needs.
    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>;

    /// The step on top of `input`.
    ///
    /// # Errors
    /// As [`Self::schema`].
    fn on(self, input: LogicalPlan) -> Result<LogicalPlan> {
        let node = StepNode::new(self, input)?;
        Ok(LogicalPlan::Extension(Extension {
            node: Arc::new(node),
        }))
    }
}

/// The place of a [`Step`] in a logical plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepNode<S> {
    step: S,
    input: LogicalPlan,
    schema: DFSchemaRef,
}

impl<S: Step> StepNode<S> {
    fn new(step: S, input: LogicalPlan) -> Result<Self> {
        let schema = step.schema(&input)?;
        Ok(Self {
            step,
            input,
            schema,
        })
    }
}

impl<S: Step> PartialOrd for StepNode<S> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.input, &self.step).partial_cmp(&(&other.input, &other.step))
    }
}

impl<S: Step> UserDefinedLogicalNodeCore for StepNode<S> {
    fn name(&self) -> &str {
        S::NAME
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

    fn necessary_children_exprs(&self, output: &[usize]) -> Option<Vec<Vec<usize>>> {
        let needed = self.step.needed_columns(&self.input, output)?;
        Some(vec![needed])
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", S::NAME, self.step)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.pop()) {
            (Some(input), None) => Self::new(self.step.clone(), input),
            _ => internal_err!("{} has one input", S::NAME),
        }
    }
}

/// Plans the nodes of one kind of [`Step`].
#[derive(Debug, Default)]
pub struct StepPlanner<S>(PhantomData<S>);

impl<S> StepPlanner<S> {
    /// A planner of these steps.
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

#[async_trait]
impl<S: Step> ExtensionPlanner for StepPlanner<S> {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        match (node.as_any().downcast_ref::<StepNode<S>>(), inputs) {
            (Some(node), [input]) => node.step.exec(Arc::clone(input)).map(Some),
            _ => Ok(None),
        }
    }
}
