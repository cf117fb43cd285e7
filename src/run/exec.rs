use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, Result, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execution_plan::{EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use super::context::RunContext;
use super::driver::Driver;
use crate::operator::{self, Operator, OperatorExec, Step};
use crate::schema;

/// [`RunExec`] in a logical plan: calls an agent for each row of its input, which has the columns of
/// [`schema::pending`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RunStep {
    /// Calls in flight, over all partitions and agents.
    pub concurrency: usize,
}

impl fmt::Display for RunStep {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "concurrency={}", self.concurrency)
    }
}

impl Step for RunStep {
    fn name(&self) -> &'static str {
        "Run"
    }

    fn schema(&self, _: &LogicalPlan) -> Result<DFSchemaRef> {
        Ok(Arc::new(DFSchema::try_from(schema::outcomes())?))
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(RunExec::new(self.clone(), input)))
    }
}

/// Calls an agent for each input row, with up to `concurrency` calls in flight. Rows come out as their calls end.
///
/// Each partition has a driver, which keeps its calls in flight. The partitions share what they know of each agent via
/// the [registry](super::Registry) of the session.
///
/// This is an operator and not an async SQL function, because such a function awaits a batch at a time: one slow rollout
/// would hold up the others of its batch.
pub type RunExec = OperatorExec<RunStep>;

impl Operator for RunStep {
    fn properties(&self, input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        let partitioning = input.output_partitioning().clone();
        operator::bounded(schema::outcomes(), partitioning, EmissionType::Incremental)
            .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let run = context
            .session_config()
            .get_extension::<RunContext>()
            .ok_or_else(|| {
                exec_datafusion_err!("the session has no agents to run: it lacks a RunContext")
            })?;
        let input = input.execute(partition, context)?;
        let metrics = RunMetrics::new(metrics, partition);
        let driver = Driver::new(run, partition, self.concurrency, metrics);
        // The builder owns the driver's task, and the driver its calls. Dropping the stream drops every call in flight.
        let mut builder = RecordBatchReceiverStream::builder(schema::outcomes(), 2);
        let output = builder.tx();
        builder.spawn(driver.drive(input, output));
        Ok(builder.build())
    }
}

/// The metrics of [`RunExec`].
#[derive(Debug)]
pub(super) struct RunMetrics {
    /// The rows and batches that were passed on.
    pub(super) baseline: BaselineMetrics,
    /// Calls that were made.
    pub(super) dispatched: Count,
    /// Calls that ended, for any reason.
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
