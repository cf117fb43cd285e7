//! Makes answers durable: [`LandExec`] writes outcomes to the journal as they come, and turns the journal into Parquet
//! parts. [`LandStep`] is its node in a logical plan, [`LandContext`] what it needs beside the plan. `sweep` uses it.
//!
//! ```text
//!   outcomes ──► journal segment ──(full, old, or at the end)──► rollouts/SEGMENT.parquet
//!                (they count now)                           attempts/SEGMENT.parquet
//! ```

mod lander;

use std::fmt;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use datafusion::common::{DFSchema, DFSchemaRef, Result, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execution_plan::{EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use tokio::sync::Semaphore;

use crate::operator::{self, Operator, OperatorExec, Step};
use crate::progress::Progress;
use crate::schema;
use crate::store::{ParquetSink, RunStore, Writer};
use lander::Lander;

/// The logical node of [`LandExec`]. Its input has the columns of [`schema::outcomes`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct LandStep {
    /// The output, as a person names it.
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

/// Lands the outcomes of its input, partition by partition, and returns one row per part that it published, at the end.
pub type LandExec = OperatorExec<LandStep>;

impl Operator for LandStep {
    fn properties(&self, input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        let partitioning = input.output_partitioning().clone();
        operator::bounded(schema::landed(), partitioning, EmissionType::Final)
            .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let land = context.session_config().get_extension::<LandContext>();
        let land = land.ok_or_else(|| exec_datafusion_err!("the session has no LandContext"))?;
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

/// The most segments that become parts at a time. More would take memory, and no store is slow enough to need them.
const MOST_COMPACTIONS: usize = 8;

/// In an object store, a segment may be as old as the sweep's elapsed time divided by this. A sweep of ten
/// hours then leaves tens of small parts, not hundreds.
const SHARE: u32 = 8;

/// What [`LandExec`] needs beside the plan. It is passed as an extension of the session's configuration.
#[derive(Debug)]
pub struct LandContext {
    run: RunStore,
    writer: Arc<Writer>,
    /// Where rows become parts of tables.
    sink: ParquetSink,
    /// How old the first row of a segment may be before the segment becomes parts. In object stores it may be older in
    /// a long sweep.
    part_interval: Duration,
    /// When the sweep began.
    began: Instant,
    /// The sweep's counts.
    progress: Arc<Progress>,
    /// Permits to turn segments into parts, shared by all partitions.
    compactions: Arc<Semaphore>,
}

impl LandContext {
    /// Makes the context for landing in the tables of `run`, through journal segments of `writer`.
    pub fn new(
        run: RunStore,
        writer: Arc<Writer>,
        part_interval: Duration,
        progress: Arc<Progress>,
    ) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self {
            sink: ParquetSink::new(run.clone(), Arc::clone(&writer)),
            run,
            writer,
            part_interval,
            began: Instant::now(),
            progress,
            compactions: Arc::new(Semaphore::new(cores.min(MOST_COMPACTIONS))),
        }
    }

    /// Returns how old a segment may become if it begins `elapsed` after the sweep. In object stores, small parts are
    /// not merged at the end, so fewer are made as time goes on.
    fn oldest(&self, elapsed: Duration) -> Duration {
        match self.run.local_path() {
            Some(_) => self.part_interval,
            None => self.part_interval.max(elapsed / SHARE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn parts_that_stay_small_are_made_more_rarely_as_time_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let oldest = |place, elapsed: Duration| {
            let run = RunStore::open(place, Some(directory.path())).unwrap();
            let writer = Arc::new(Writer::unlocked(1));
            LandContext::new(run, writer, 5 * MINUTE, Arc::default()).oldest(elapsed)
        };
        let local = directory.path().to_str().unwrap();
        assert_eq!(oldest("memory:///run", 30 * MINUTE), 5 * MINUTE);
        assert_eq!(oldest("memory:///run", 80 * MINUTE), 10 * MINUTE);
        assert_eq!(oldest(local, 80 * MINUTE), 5 * MINUTE);
    }
}
