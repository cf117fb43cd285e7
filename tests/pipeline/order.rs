//! The order of dispatch is the order of the plan.

use rollstream::config::{Concurrency, Settings};
use rollstream::sim::{AgentConfig, Sim};

use super::landed;
use super::workspace::{Workspace, quick, sweep, tasks};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_sent_in_the_order_of_lines_and_rollouts() {
    let place = Workspace::new();
    let sim = Sim::start(quick(&[
        ("alpha", AgentConfig::default()),
        ("beta", AgentConfig::default()),
    ]))
    .await
    .unwrap();
    // Large enough that the plan hands them on in several batches.
    let filler = "x".repeat(40_000);
    let tasks = tasks(300, &["alpha", "beta", "alpha"]).replace("What is", &filler);
    let settings = Settings {
        concurrency: Concurrency::Fixed(1),
        ..place.settings(&tasks, 2, &sim)
    };
    sweep(settings).await;

    let mut attempts = landed::attempts(&place.run());
    attempts.sort_by_key(|row| row.dispatched_at);
    let sent: Vec<_> = attempts.iter().map(|row| (row.task, row.rollout)).collect();
    assert_eq!(sent, landed::all(300, 2));
}
