//! Tasks dealt out to partitions: [`ByTask`] in a logical plan, [`ByTaskExec`] in a physical one.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};

use crate::operator::{Step, only_input};
use crate::schema::TASK_INDEX;

/// The fewest pending rollouts that make a partition worth its journal segment, its parts and its thread.
const LEAST_ROLLOUTS: u64 = 4096;

/// The fewest calls in flight that make a partition worth its cost.
const LEAST_CALLS: usize = 16;

/// The most partitions: no machine has more cores.
pub(super) const MOST: usize = 256;

/// Returns the partitions that suit a sweep by default: one for each core, but none with fewer than 4,096 pending
/// rollouts or 16 calls in flight. So a small sweep has one, sends in the order of its input, and
/// leaves few parts.
pub(super) fn suitable(cores: usize, pending: u64, concurrency: usize) -> usize {
    let by_rollouts = usize::try_from(pending / LEAST_ROLLOUTS).unwrap_or(usize::MAX);
    let by_calls = concurrency / LEAST_CALLS;
    cores.min(by_rollouts).min(by_calls).max(1)
}

/// Deals rows out to partitions, by the hash of their task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub(super) struct ByTask {
    pub(super) partitions: usize,
}

impl fmt::Display for ByTask {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "partitions={}", self.partitions)
    }
}

impl Step for ByTask {
    fn name(&self) -> &'static str {
        "ByTask"
    }

    fn needed_columns(&self, input: &LogicalPlan, output: &[usize]) -> Option<Vec<usize>> {
        let task = input.schema().index_of_column_by_name(None, TASK_INDEX)?;
        let mut needed: Vec<usize> = output.iter().copied().chain([task]).collect();
        needed.sort_unstable();
        needed.dedup();
        Some(needed)
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(ByTaskExec::try_new(input, self.partitions)?))
    }
}

/// A [`RepartitionExec`] by task.
///
/// It wraps one because the optimiser removes any that no operator above requires, and adds others
/// by its own estimates.
///
/// It stands below the expansion to rollouts: a task with a million repeats is one row here. Rows of
/// tasks wait for a partition that is behind the others. What does not fit into the memory pool of
/// the session waits in temporary files. So no partition holds up another, and memory is bounded.
///
/// ```text
///                      ┌──► unnest, anti-join ──► RunExec ──► LandExec
///   tasks ──► ByTask ──┤
///                      └──► unnest, anti-join ──► RunExec ──► LandExec
/// ```
#[derive(Debug)]
pub(super) struct ByTaskExec {
    repartition: RepartitionExec,
}

impl ByTaskExec {
    fn try_new(input: Arc<dyn ExecutionPlan>, partitions: usize) -> Result<Self> {
        let task = col(TASK_INDEX, &input.schema())?;
        let partitioning = Partitioning::Hash(vec![task], partitions);
        Ok(Self {
            repartition: RepartitionExec::try_new(input, partitioning)?,
        })
    }
}

impl DisplayAs for ByTaskExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let partitions = self.properties().output_partitioning().partition_count();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "ByTaskExec: ")?;
                self.repartition.fmt_as(format, f)
            }
            DisplayFormatType::TreeRender => write!(f, "partitions: {partitions}"),
        }
    }
}

impl ExecutionPlan for ByTaskExec {
    fn name(&self) -> &'static str {
        "ByTaskExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.repartition.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.repartition.children()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.repartition.apply_expressions(visit)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions = self.properties().output_partitioning().partition_count();
        let input = only_input(self.name(), children)?;
        Ok(Arc::new(Self::try_new(input, partitions)?))
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
        self.repartition.execute(partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.repartition.metrics()
    }
}

#[cfg(test)]
mod tests {
    use super::suitable;

    #[test]
    fn small_sweeps_have_one_partition_and_large_ones_one_for_each_core() {
        for (cores, pending, concurrency, expected) in [
            (8, 0, 256, 1),
            (8, 8191, 256, 1),
            (8, 8192, 256, 2),
            (8, 1 << 20, 256, 8),
            (8, 1 << 20, 31, 1),
            (8, 1 << 20, 64, 4),
            (1, 1 << 20, 4096, 1),
        ] {
            let found = suitable(cores, pending, concurrency);
            assert_eq!(found, expected, "{cores} {pending} {concurrency}");
        }
    }
}
