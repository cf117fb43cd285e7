//! [`ShardStep`]: the operator that runs the shards whose numbers it reads, and [`ShardCodec`], which encodes it.
//!
//! ```text
//! ClusterShardExec: run=s3://sweeps/7, spec=9f3c…, of=64
//!   DataSourceExec: the numbers 1 to 64, one in a partition
//! ```
//!
//! The scheduler cuts the source into tasks of one partition. A shard's number is data: the numbers that Ballista gives to
//! tasks and attempts mean nothing here.

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type};
use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use super::worker::ShardWorker;
use crate::operator::{Operator, OperatorExec, Step, bounded, only_input};

/// Begins the encoding of our operator; all else is Ballista's.
const MARK: &[u8] = b"rollstream\0";

/// Runs the shards whose numbers it reads. Its output has no rows: what was collected is in the run.
///
/// All fields are encoded. What can't be decoded becomes the default, since a plan that can't be decoded fails the job: an
/// executor that meets it withdraws.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ShardStep {
    /// The place of the run.
    pub(super) run: String,
    /// Digest of the spec.
    pub(super) spec: String,
    /// The number of shards.
    pub(super) count: u32,
}

impl ShardStep {
    /// Returns the plan that runs all shards, each in a partition of its own.
    pub(super) fn plan(self) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = schema();
        let numbers = (1..=self.count).map(|number| {
            let column = Arc::new(UInt32Array::from(vec![number]));
            Ok(vec![RecordBatch::try_new(
                Arc::clone(&schema),
                vec![column],
            )?])
        });
        let numbers: Vec<Vec<RecordBatch>> = numbers.collect::<Result<_>>()?;
        let numbers = MemorySourceConfig::try_new_exec(&numbers, schema, None)?;
        self.exec(numbers)
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(
        "shard",
        DataType::UInt32,
        false,
    )]))
}

impl fmt::Display for ShardStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, spec, count } = self;
        write!(f, "run={run}, spec={spec}, of={count}")
    }
}

impl Step for ShardStep {
    fn name(&self) -> &'static str {
        "ClusterShard"
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(OperatorExec::new(self.clone(), input)))
    }
}

impl Operator for ShardStep {
    fn properties(&self, input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        let partitioning = input.properties().output_partitioning().clone();
        bounded(input.schema(), partitioning, EmissionType::Final)
    }

    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
        _: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let Some(worker) = context.session_config().get_extension::<ShardWorker>() else {
            return internal_err!("a shard runs in an executor of rollstream only");
        };
        let (step, schema) = (self.clone(), input.schema());
        let empty = RecordBatch::new_empty(Arc::clone(&schema));
        let numbers = input.execute(partition, context)?;
        let rows = numbers.and_then(move |batch| {
            let (step, worker, empty) = (step.clone(), Arc::clone(&worker), empty.clone());
            async move {
                for number in batch.column(0).as_primitive::<UInt32Type>().values() {
                    let shard = Arc::clone(&worker).run(step.clone(), *number);
                    shard.await.map_err(|error| {
                        exec_datafusion_err!("a shard failed, a defect of rollstream: {error}")
                    })?;
                }
                Ok(empty)
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// Encodes [`ShardStep`], and leaves other operators to Ballista.
#[derive(Debug, Default)]
pub(super) struct ShardCodec {
    others: BallistaPhysicalExtensionCodec,
}

impl PhysicalExtensionCodec for ShardCodec {
    fn try_decode(
        &self,
        encoded: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(fields) = encoded.strip_prefix(MARK) else {
            return self.others.try_decode(encoded, inputs, context, converter);
        };
        let step: ShardStep = serde_json::from_slice(fields).unwrap_or_default();
        step.exec(only_input(step.name(), inputs.to_vec())?)
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        encoded: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(exec) = node.downcast_ref::<OperatorExec<ShardStep>>() else {
            return self.others.try_encode(node, encoded, converter);
        };
        encoded.extend_from_slice(MARK);
        serde_json::to_writer(encoded, exec.operator())
            .map_err(|error| DataFusionError::External(Box::new(error)))
    }
}

#[cfg(test)]
mod tests {
    use datafusion_proto::physical_plan::AsExecutionPlan;
    use datafusion_proto::protobuf::PhysicalPlanNode;

    use super::*;

    fn round_trip(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let codec = ShardCodec::default();
        let node = PhysicalPlanNode::try_from_physical_plan(plan, &codec).unwrap();
        let mut encoded = Vec::new();
        node.try_encode(&mut encoded).unwrap();
        let node = PhysicalPlanNode::try_decode(&encoded).unwrap();
        node.try_into_physical_plan(&TaskContext::default(), &codec)
            .unwrap()
    }

    #[test]
    fn a_plan_arrives_as_it_was_sent() {
        let step = ShardStep {
            run: "/runs/a".to_owned(),
            spec: "0f".to_owned(),
            count: 3,
        };
        let decoded = round_trip(step.clone().plan().unwrap());
        assert_eq!(
            decoded.properties().output_partitioning().partition_count(),
            3
        );
        let decoded = decoded.downcast_ref::<OperatorExec<ShardStep>>().unwrap();
        assert_eq!(*decoded.operator(), step);
    }

    #[test]
    fn what_another_version_encodes_is_decoded_all_the_same() {
        let codec = ShardCodec::default();
        let plan = ShardStep::default().plan().unwrap();
        let input = Arc::clone(plan.children()[0]);
        for fields in [
            &b"{\"run\": 7}"[..],
            b"{\"run\": \"a\", \"new\": 1}",
            b"\xff",
        ] {
            let encoded = [MARK, fields].concat();
            let node = PhysicalPlanNode::try_from_physical_plan(Arc::clone(&plan), &codec);
            assert!(node.is_ok());
            let converter = datafusion_proto::physical_plan::DefaultPhysicalProtoConverter {};
            let inputs = std::slice::from_ref(&input);
            let context = TaskContext::default();
            assert!(
                codec
                    .try_decode(&encoded, inputs, &context, &converter)
                    .is_ok()
            );
        }
    }
}
