//! What is dropped leaves nothing behind, and what is aborted ends.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use rollstream::Sweep;
use rollstream::agent::{Agent, Reply, RolloutRequest};
use rollstream::config::{Concurrency, Settings};

use super::operator::{Operator, answered};
use super::workspace::{Workspace, counts, hanging, tasks, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_that_is_dropped_drops_its_calls() {
    let place = Workspace::new();
    let sim = hanging().await;
    let settings = Settings {
        concurrency: Concurrency::Fixed(8),
        ..place.settings(&tasks(40, &["sim"]), 1, &sim)
    };
    let sweep = Sweep::prepare(settings).await.unwrap();
    {
        let collecting = sweep.collect();
        tokio::select! {
            report = collecting => panic!("nothing answers, and yet it ended: {report:?}"),
            () = until("8 calls are in flight", || counts(&sim, "sim").in_flight == 8) => {}
        }
    }
    until("no call is in flight", || {
        counts(&sim, "sim").in_flight == 0
    })
    .await;
    assert_eq!(counts(&sim, "sim").requests, 8);
}

/// Answers the first few tasks, each later than the one before, and leaves the others waiting; each
/// call holds the probe.
#[derive(Debug, Default)]
struct Probed {
    probe: Arc<()>,
    answers: i64,
    pace: Duration,
    answered: AtomicUsize,
}

#[async_trait]
impl Agent for Probed {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let _held = Arc::clone(&self.probe);
        if request.key().task_index >= self.answers {
            pending::<()>().await;
        }
        tokio::time::sleep(self.pace * request.key().task_index as u32).await;
        self.answered.fetch_add(1, Ordering::SeqCst);
        answered(r#"{"reward": 1}"#)
    }

    fn address(&self) -> &str {
        "probed"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_is_dropped_drops_its_calls() {
    let agent = Arc::new(Probed {
        answers: 10,
        ..Probed::default()
    });
    let operator = Operator::new(Arc::clone(&agent) as _, None, 1, 100);
    let mut stream = operator.stream(8);
    assert!(stream.next().await.unwrap().is_ok());
    until("8 calls wait", || Arc::strong_count(&agent.probe) == 1 + 8).await;
    drop(stream);
    until("no call holds the probe", || {
        Arc::strong_count(&agent.probe) == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_ends_what_is_in_flight_and_says_what_it_was() {
    let agent = Arc::new(Probed::default());
    let operator = Operator::new(Arc::clone(&agent) as _, None, 1, 100);
    let stream = operator.stream(8);
    until("8 calls wait", || Arc::strong_count(&agent.probe) == 1 + 8).await;
    operator.shutdown.abort();
    let batches: Vec<_> = tokio::time::timeout(Duration::from_secs(120), stream.collect())
        .await
        .unwrap();
    let rows: usize = batches
        .iter()
        .map(|batch| batch.as_ref().unwrap().num_rows())
        .sum();
    assert_eq!(rows, 8);
    assert_eq!(operator.progress.in_flight(), 0);
    until("no call holds the probe", || {
        Arc::strong_count(&agent.probe) == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_ends_the_calls_even_if_nobody_takes_the_answers() {
    // Answers that come one by one are passed on one by one: the few places for them are soon taken.
    let agent = Arc::new(Probed {
        answers: 8,
        pace: Duration::from_millis(25),
        ..Probed::default()
    });
    let operator = Operator::new(Arc::clone(&agent) as _, None, 1, 100);
    let _stream = operator.stream(16);
    until("8 calls are answered", || {
        agent.answered.load(Ordering::SeqCst) == 8
    })
    .await;
    operator.shutdown.abort();
    until("no call holds the probe", || {
        Arc::strong_count(&agent.probe) == 1
    })
    .await;
}
