use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, DFSchemaRef, Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions, SchedulingType,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};

use super::context::LandContext;
use super::lander::Lander;
use crate::operator::Step;
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
    const NAME: &'static str = "Land";

    fn schema(&self, _: &LogicalPlan) -> Result<DFSchemaRef> {
        Ok(Arc::new(DFSchema::try_from(schema::landed())?))
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let Self { output, part_size } = self.clone();
        Ok(Arc::new(LandExec::new(input, output, part_size)))
    }
}

/// Lands the outcomes of its input, partition by partition, and gives one row per part that it
/// published, at the end.
#[derive(Debug)]
pub struct LandExec {
    input: Arc<dyn ExecutionPlan>,
    output: String,
    part_size: u64,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl LandExec {
    /// Lands at `output`, in parts of about `part_size` bytes.
    pub fn new(input: Arc<dyn ExecutionPlan>, output: String, part_size: u64) -> Self {
        let properties = Arc::new(Self::compute_properties(&input));
        Self {
            input,
            output,
            part_size,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn compute_properties(input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(schema::landed()),
            input.output_partitioning().clone(),
            EmissionType::Final,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative)
    }
}

impl DisplayAs for LandExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            output, part_size, ..
        } = self;
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let partitions = self.properties().output_partitioning().partition_count();
                write!(
                    f,
                    "LandExec: output={output}, part_size={part_size}, partitions={partitions}"
                )
            }
            DisplayFormatType::TreeRender => write!(f, "output: {output}"),
        }
    }
}

impl ExecutionPlan for LandExec {
    fn name(&self) -> &'static str {
        "LandExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

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
            (Some(input), None) => Ok(Arc::new(Self::new(
                input,
                self.output.clone(),
                self.part_size,
            ))),
            _ => internal_err!("LandExec has one input"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let land = context
            .session_config()
            .get_extension::<LandContext>()
            .ok_or_else(|| {
                exec_datafusion_err!("the session has no place to land: it lacks a LandContext")
            })?;
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let lander = Lander::new(land, partition, self.part_size);
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let mut builder = RecordBatchReceiverStream::builder(self.schema(), 1);
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

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
