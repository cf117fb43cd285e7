use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::episode::Setup;
use super::lockstep::{Seat, run_batch};

/// A batch that is not full begins when nobody came for this long.
const LINGER: Duration = Duration::from_millis(20);

/// Gathers samples into batches, and runs these. All of its work ends when it is dropped.
#[derive(Debug)]
pub struct Gathering {
    setup: Arc<Setup>,
    batch_size: NonZeroUsize,
    desk: Mutex<Option<Desk>>,
}

/// Where samples are handed in, and the task that takes them.
#[derive(Debug)]
struct Desk {
    seats: mpsc::Sender<Seat>,
    _task: SpawnedTask<()>,
}

impl Gathering {
    /// Batches of at most `batch_size` samples. Nothing runs before the first sample comes.
    pub fn new(setup: Arc<Setup>, batch_size: NonZeroUsize) -> Self {
        Self {
            setup,
            batch_size,
            desk: Mutex::default(),
        }
    }

    /// Hands in a sample. If it gets lost, its outcome never comes and its receiver says so.
    pub async fn join(&self, seat: Seat) {
        let seats = self.desk();
        let _ = seats.send(seat).await;
    }

    fn desk(&self) -> mpsc::Sender<Seat> {
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        // The runtime of an earlier call may be gone, and its tasks with it.
        if let Some(desk) = desk.as_ref().filter(|desk| !desk.seats.is_closed()) {
            return desk.seats.clone();
        }
        let (seats, arriving) = mpsc::channel(self.batch_size.get().min(MOST_ARRIVING));
        let task = gather(Arc::clone(&self.setup), self.batch_size, arriving);
        *desk = Some(Desk {
            seats: seats.clone(),
            _task: SpawnedTask::spawn(task),
        });
        seats
    }
}

/// Samples that wait to be taken into a batch, at most.
const MOST_ARRIVING: usize = 1024;

async fn gather(setup: Arc<Setup>, size: NonZeroUsize, mut arriving: mpsc::Receiver<Seat>) {
    let mut batches = JoinSet::new();
    while let Some(first) = arriving.recv().await {
        let mut seats = vec![first];
        while seats.len() < size.get() {
            match timeout(LINGER, arriving.recv()).await {
                Ok(Some(seat)) => seats.push(seat),
                Ok(None) | Err(_) => break,
            }
            seats.retain(|seat| !seat.is_abandoned());
        }
        while batches.try_join_next().is_some() {}
        let setup = Arc::clone(&setup);
        batches.spawn(async move { run_batch(&setup, seats).await });
    }
    while batches.join_next().await.is_some() {}
}
