//! Our own operators in DataFusion's plans, each with one input.
//!
//! | type | what it is |
//! |---|---|
//! | [`Step`] | an operator with one input: its name, columns and physical plan |
//! | [`StepNode`] | the logical node of a step |
//! | [`StepPlanner`] | makes the node's physical plan |
//! | [`Operator`], [`OperatorExec`] | a step that computes a stream for each partition, and its place in a physical plan |
//!
//! `run`, `land` and the sweep define the steps.

use std::cmp::Ordering;
use std::fmt::{self, Debug, Display};
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
};
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

/// An operator with one input. `EXPLAIN` shows its `Display` after its name.
pub trait Step: Debug + Display + Clone + Eq + PartialOrd + Hash + Send + Sync + 'static {
    /// Its name in a logical plan; in a physical plan, `Exec` follows.
    fn name(&self) -> &'static str;

    /// The columns of its output: those of its input, unless it says otherwise.
    ///
    /// # Errors
    /// The columns can't be qualified, which would be a defect.
    fn schema(&self, input: &LogicalPlan) -> Result<DFSchemaRef> {
        Ok(Arc::clone(input.schema()))
    }

    /// The columns of its input that it needs to give the columns `output`; `None` if it needs all.
    fn needed_columns(&self, _input: &LogicalPlan, _output: &[usize]) -> Option<Vec<usize>> {
        None
    }

    /// Makes the step's physical plan over `input`.
    ///
    /// # Errors
    /// The input lacks what it needs.
    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>;

    /// Puts the step on top of `input`.
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
        self.step.name()
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
        write!(f, "{}: {}", self.step.name(), self.step)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Self::new(self.step.clone(), only_input(self.step.name(), inputs)?)
    }
}

/// A [`Step`] that computes a stream for each partition of its input. [`OperatorExec`] is its place in a physical plan.
pub trait Operator: Step {
    /// Returns the plan properties of its output.
    fn properties(&self, input: &Arc<dyn ExecutionPlan>) -> PlanProperties;

    /// How its input must be partitioned. An operator that needs one input partition has one output partition.
    fn distribution(&self) -> Distribution {
        Distribution::UnspecifiedDistribution
    }

    /// Starts a partition, and returns its stream of rows.
    ///
    /// # Errors
    /// The session or the input lacks what it needs.
    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream>;
}

/// Returns the properties of an operator whose output is bounded and in no order.
pub fn bounded(
    schema: SchemaRef,
    partitioning: Partitioning,
    emission: EmissionType,
) -> PlanProperties {
    let equivalences = EquivalenceProperties::new(schema);
    PlanProperties::new(equivalences, partitioning, emission, Boundedness::Bounded)
}

/// The place of an [`Operator`] in a physical plan.
#[derive(Debug)]
pub struct OperatorExec<S> {
    operator: S,
    name: String,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl<S: Operator> OperatorExec<S> {
    /// Makes the physical plan of `operator` over `input`.
    pub fn new(operator: S, input: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            name: format!("{}Exec", operator.name()),
            properties: Arc::new(operator.properties(&input)),
            operator,
            input,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The operator itself, for those that encode plans.
    #[cfg(feature = "cluster")]
    pub(crate) fn operator(&self) -> &S {
        &self.operator
    }

    fn is_single(&self) -> bool {
        matches!(self.operator.distribution(), Distribution::SinglePartition)
    }
}

impl<S: Operator> DisplayAs for OperatorExec<S> {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { operator, name, .. } = self;
        match format {
            DisplayFormatType::TreeRender => write!(f, "{operator}"),
            _ if self.is_single() => write!(f, "{name}: {operator}"),
            _ => {
                let partitions = self.properties().output_partitioning().partition_count();
                write!(f, "{name}: {operator}, partitions={partitions}")
            }
        }
    }
}

impl<S: Operator> ExecutionPlan for OperatorExec<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![self.operator.distribution()]
    }

    /// Forbids a repartition of the input: the order of its rows is the order of dispatch.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = only_input(&self.name, children)?;
        Ok(Arc::new(Self::new(self.operator.clone(), input)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if self.is_single() && partition != 0 {
            return internal_err!("{} has one partition", self.name);
        }
        let Self {
            operator,
            input,
            metrics,
            ..
        } = self;
        operator.execute(input, partition, context, metrics)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Returns the only input of an operator.
///
/// # Errors
/// There are none or several, which would be a defect of the planner.
pub fn only_input<T>(name: &str, mut inputs: Vec<T>) -> Result<T> {
    match (inputs.pop(), inputs.pop()) {
        (Some(input), None) => Ok(input),
        _ => internal_err!("{name} has one input"),
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
