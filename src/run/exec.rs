use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, DFSchemaRef, Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    ReplaceChildrenOptions,
};

use super::context::RunContext;
use super::driver::Driver;
use crate::operator::Step;
use crate::schema;

/// The place of [`RunExec`] in a logical plan: calls an agent for each row of its input, which has
/// the columns of [`schema::pending`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RunStep {
    /// Calls in flight in all.
    pub concurrency: usize,
}

impl fmt::Display for RunStep {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "concurrency={}", self.concurrency)
    }
}

impl Step for RunStep {
    const NAME: &'static str = "Run";

    fn schema(&self, _: &LogicalPlan) -> Result<DFSchemaRef> {
        Ok(Arc::new(DFSchema::try_from(schema::outcomes())?))
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(RunExec::new(input, self.concurrency)))
    }
}

/// Calls the agents: one call per input row, up to `concurrency` in flight in all partitions
/// together, rows out as they complete.
///
/// It takes any number of partitions. Each has a driver, which keeps its calls in flight; what belongs
/// to an agent is shared through the [registry](super::Registry) of the session.
///
/// An operator and not an async SQL function, since such a function awaits a batch at a time: one
/// slow rollout would hold up the others of its batch.
#[derive(Debug)]
pub struct RunExec {
    input: Arc<dyn ExecutionPlan>,
    concurrency: usize,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RunExec {
    /// At most `concurrency` calls in flight, in all partitions together.
    pub fn new(input: Arc<dyn ExecutionPlan>, concurrency: usize) -> Self {
        let properties = Arc::new(Self::compute_properties(&input));
        Self {
            input,
            concurrency,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn compute_properties(input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(schema::outcomes()),
            input.output_partitioning().clone(),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative)
    }
}

impl DisplayAs for RunExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let partitions = self.properties().output_partitioning().partition_count();
                let concurrency = self.concurrency;
                write!(
                    f,
                    "RunExec: concurrency={concurrency}, partitions={partitions}"
                )
            }
            DisplayFormatType::TreeRender => write!(f, "concurrency: {}", self.concurrency),
        }
    }
}

impl ExecutionPlan for RunExec {
    fn name(&self) -> &'static str {
        "RunExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    /// The order of the plan is the order of dispatch; a repartition before would mix it.
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
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.pop()) {
            (Some(input), None) => Ok(Arc::new(Self::new(input, self.concurrency))),
            _ => internal_err!("RunExec has one input"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(
            datafusion::physical_plan::ChildrenPropertiesMode::Recompute,
        );
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let run = context
            .session_config()
            .get_extension::<RunContext>()
            .ok_or_else(|| {
                exec_datafusion_err!("the session has no agents to run: it lacks a RunContext")
            })?;
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let driver = Driver::new(
            run,
            partition,
            self.concurrency,
            RunMetrics::new(&self.metrics, partition),
        );
        // The builder owns the driver's task, and the driver its calls: when the stream is
        // dropped, so is every call in flight.
        let mut builder = RecordBatchReceiverStream::builder(self.schema(), 2);
        let output = builder.tx();
        builder.spawn(driver.drive(input, output));
        Ok(builder.build())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// What [`RunExec`] counts.
#[derive(Debug)]
pub(super) struct RunMetrics {
    /// Rows and batches that were passed on.
    pub(super) baseline: BaselineMetrics,
    /// Calls that were made.
    pub(super) dispatched: Count,
    /// Calls that ended, however they did.
    pub(super) outcomes: Count,
}

impl RunMetrics {
    fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            dispatched: MetricBuilder::new(metrics).counter("dispatched", partition),
            outcomes: MetricBuilder::new(metrics).counter("outcomes", partition),
        }
    }
}
