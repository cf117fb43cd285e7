use std::sync::Arc;

use datafusion::dataframe::DataFrame;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use futures::StreamExt;
use tokio::runtime::{Handle, Runtime};

use crate::error::Error;

/// Threads that queries run on.
///
/// Some queries compute for minutes before they let go of a thread, also when nobody wants their
/// answer any more. In a conversation such threads are left to themselves, and others started.
#[derive(Default)]
pub(super) struct Engine {
    /// None where queries run on the threads of everything else.
    own: Option<Runtime>,
}

impl Engine {
    /// Starts threads for queries alone.
    ///
    /// # Errors
    /// The system refused.
    pub(super) fn start() -> Result<Self, Error> {
        let own = Runtime::new();
        let own = own.map_err(|error| Error::failed("cannot start", error))?;
        Ok(Self { own: Some(own) })
    }

    /// Runs a query. It ends with the stream, as soon as it lets go of its threads.
    pub(super) fn run(&self, query: DataFrame) -> SendableRecordBatchStream {
        let schema = Arc::clone(query.schema().inner());
        let mut builder = RecordBatchReceiverStream::builder(schema, 2);
        let output = builder.tx();
        let task = async move {
            let mut rows = query.execute_stream().await?;
            while let Some(batch) = rows.next().await {
                // A receiver that is gone means that nobody wants the rest.
                if output.send(batch).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        match &self.own {
            Some(own) => builder.spawn_on(task, own.handle()),
            None => builder.spawn_on(task, &Handle::current()),
        }
        builder.build()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}
