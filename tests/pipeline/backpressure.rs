//! What nobody takes is not made: a consumer that stands still stops the calls and the reading.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::TryStreamExt;
use rollstream::agent::{Agent, Reply, RolloutRequest};
use tokio::task::yield_now;

use super::operator::{LOOKAHEAD, Operator, answered};

const BATCHES: usize = 50;
const ROWS: usize = 1000;
const CONCURRENCY: usize = 64;

/// Two batches in the channel, one in the making and one that waits, of 1024 rows each.
const BUFFERED: usize = 4 * 1024;

/// Answers at once.
#[derive(Debug, Default)]
struct Prompt {
    asked: AtomicUsize,
}

#[async_trait]
impl Agent for Prompt {
    async fn run(&self, _: RolloutRequest) -> Reply {
        self.asked.fetch_add(1, Ordering::SeqCst);
        answered(r#"{"reward": 1}"#)
    }

    fn address(&self) -> &str {
        "prompt"
    }
}

// One thread, so that every turn that the test gives up is one that the operator gets.
#[tokio::test]
async fn a_blocked_consumer_bounds_the_calls_and_the_reading() {
    let agent = Arc::new(Prompt::default());
    let operator = Operator::new(Arc::clone(&agent) as _, None, BATCHES, ROWS);
    let stream = operator.stream(CONCURRENCY);
    for _ in 0..20_000 {
        yield_now().await;
    }
    let (asked, read) = (agent.asked.load(Ordering::SeqCst), operator.num_read());
    assert!(
        asked > 0,
        "the operator does not work ahead of its consumer"
    );
    assert!(
        asked <= BUFFERED + CONCURRENCY,
        "{asked} calls for a consumer that takes nothing"
    );
    let in_memory = BUFFERED + CONCURRENCY + LOOKAHEAD + 2 * ROWS;
    assert!(
        read * ROWS <= in_memory,
        "{read} of {BATCHES} batches were read ahead"
    );

    let rows: Vec<_> = stream.try_collect().await.unwrap();
    assert_eq!(
        rows.iter().map(|batch| batch.num_rows()).sum::<usize>(),
        BATCHES * ROWS
    );
    assert_eq!(
        (agent.asked.load(Ordering::SeqCst), operator.num_read()),
        (BATCHES * ROWS, BATCHES)
    );
}
