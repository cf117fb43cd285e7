use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, Result, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use super::context::LandContext;
use super::lander::Lander;
use crate::operator::{Operator, OperatorExec, Step};
use crate::schema;

/// The place of [`LandExec`] in a logical plan: lands its input, which has the columns of
/// [`schema::outcomes`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct LandStep {
    /// Where, as a person names it.
    pub output: String,
    /// Size at which a part is cut, in bytes.
    pub part_size: u64,
}

impl fmt::Display for LandStep {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { output, part_size } = self;
        write!(f, "output={output}, part_size={part_size}")
    }
}

impl Step for LandStep {
    fn name(&self) -> &'static str {
        "Land"
    }

    fn schema(&self, _: &LogicalPlan) -> Result<DFSchemaRef> {
        Ok(Arc::new(DFSchema::try_from(schema::landed())?))
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(LandExec::new(self.clone(), input)))
    }
}

/// Lands the outcomes of its input, partition by partition, and gives one row per part that it
/// published, at the end.
pub type LandExec = OperatorExec<LandStep>;

impl Operator for LandStep {
    fn properties(&self, input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(schema::landed()),
            input.output_partitioning().clone(),
            EmissionType::Final,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let land = context
            .session_config()
            .get_extension::<LandContext>()
            .ok_or_else(|| {
                exec_datafusion_err!("the session has no place to land: it lacks a LandContext")
            })?;
        let input = input.execute(partition, context)?;
        let lander = Lander::new(land, partition, self.part_size);
        let baseline = BaselineMetrics::new(metrics, partition);
        let mut builder = RecordBatchReceiverStream::builder(schema::landed(), 1);
        let output = builder.tx();
        builder.spawn(async move {
            let landed = lander.land(input).await?;
            baseline.record_output(landed.num_rows());
            // A receiver that is gone means that the sweep was dropped: nobody is left to tell.
            let _ = output.send(Ok(landed)).await;
            Ok(())
        });
        Ok(builder.build())
    }
}
