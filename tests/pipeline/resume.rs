//! A run that is gone on with asks for what is pending, and for nothing else.

use std::collections::BTreeMap;

use rollstream::config::{ServerUrl, Settings};
use rollstream::sim::{AgentConfig, Sim, SimConfig};
use rollstream::store::{RunCounts, RunState};
use rollstream::{NotResumable, Sweep};

use super::landed;
use super::workspace::{Workspace, counts, quick, sweep, sweep_until, tasks};

async fn faultless() -> (Sim, Option<ServerUrl>) {
    let sim = Sim::start(quick(&[("sim", AgentConfig::default())]))
        .await
        .unwrap();
    let url = sim.head_url().parse().unwrap();
    (sim, Some(url))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_off_is_asked_again_and_what_is_done_is_not() {
    let place = Workspace::new();
    let hangs = (30..40)
        .map(|task| format!("{task}=hang").parse().unwrap())
        .collect();
    let sim = Sim::start(SimConfig {
        fault_at: hangs,
        ..quick(&[("sim", AgentConfig::default())])
    })
    .await
    .unwrap();
    let settings = place.settings(&tasks(40, &["sim"]), 3, &sim);
    let first = sweep_until(settings.clone(), "all that can be done is done", |sweep| {
        let progress = sweep.progress();
        Box::new(move || progress.total().done == 90 && progress.in_flight() == 16)
    })
    .await;
    assert_eq!(
        (first.state, first.rollouts.done, first.rollouts.pending),
        (RunState::Interrupted, 90, 30)
    );

    let (sim, head_server) = faultless().await;
    let report = sweep(Settings {
        resume: true,
        head_server,
        ..settings
    })
    .await;
    assert_eq!(counts(&sim, "sim").requests, 30);
    assert_eq!(report.state, RunState::Finished);
    assert_eq!(
        report.rollouts,
        RunCounts {
            planned: 120,
            done: 120,
            failed: 0,
            pending: 0
        }
    );
    assert_eq!((report.total.done, report.total.done_now), (120, 30));
    assert_eq!(landed::done(&place.run()), landed::all(40, 3));
    assert_eq!(landed::attempts(&place.run()).len(), 120 + 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_asked_again_unless_they_are_for_good() {
    let place = Workspace::new();
    let fault_at = ["0=failure_terminal", "1=failure_class", "2=error_500"]
        .map(|at| at.parse().unwrap())
        .to_vec();
    let sim = Sim::start(SimConfig {
        fault_at,
        ..quick(&[("sim", AgentConfig::default())])
    })
    .await
    .unwrap();
    let settings = place.settings(&tasks(10, &["sim"]), 2, &sim);
    let first = sweep(settings.clone()).await;
    assert_eq!(
        first.rollouts,
        RunCounts {
            planned: 20,
            done: 14,
            failed: 6,
            pending: 0
        }
    );

    let (sim, head_server) = faultless().await;
    let settings = Settings {
        resume: true,
        head_server,
        infra_budget: 2,
        max_attempts: 2,
        ..settings
    };
    let second = sweep(settings.clone()).await;
    assert_eq!(counts(&sim, "sim").requests, 4);
    assert_eq!(landed::done(&place.run()), landed::all(10, 2)[2..]);
    assert_eq!(
        second.rollouts,
        RunCounts {
            planned: 20,
            done: 18,
            failed: 2,
            pending: 0
        }
    );

    let third = Sweep::prepare(settings).await.unwrap();
    assert_eq!(third.plan().await.unwrap().num_pending(), 0);
    assert_eq!(third.collect().await.unwrap().rollouts, second.rollouts);
    assert_eq!(counts(&sim, "sim").requests, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_neither_begun_again_nor_gone_on_with_by_accident() {
    let place = Workspace::new();
    let (sim, head_server) = faultless().await;
    let settings = Settings {
        head_server,
        ..place.settings(&tasks(5, &["sim"]), 1, &sim)
    };
    sweep(settings.clone()).await;
    let refused = Sweep::prepare(settings.clone()).await.unwrap_err();
    assert!(
        refused.to_string().contains("--resume") && refused.to_string().contains("--overwrite"),
        "{refused}"
    );

    let other = Settings {
        resume: true,
        num_repeats: "2".parse().unwrap(),
        ..settings.clone()
    };
    let refused = Sweep::prepare(other).await.unwrap_err();
    assert!(
        matches!(refused.cause(), Some(NotResumable { difference, .. }) if difference.contains("num_repeats")),
        "{refused}"
    );
    assert_eq!(landed::done(&place.run()), landed::all(5, 1));
    assert_eq!(counts(&sim, "sim").requests, 5);

    let fewer = Settings {
        overwrite: true,
        ..place.settings(&tasks(3, &["sim"]), 1, &sim)
    };
    assert_eq!(sweep(fewer).await.rollouts.done, 3);
    assert_eq!(landed::done(&place.run()), landed::all(3, 1));
    assert_eq!(landed::tasks(&place.run()).len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_sends_nothing_and_writes_nothing() {
    let place = Workspace::new();
    let (sim, _) = faultless().await;
    let sweep = Sweep::prepare(place.settings(&tasks(5, &["sim"]), 4, &sim))
        .await
        .unwrap();
    let plan = sweep.plan().await.unwrap();
    assert_eq!(plan.num_pending(), 20);
    assert_eq!(
        plan.addresses,
        BTreeMap::from([("sim".to_owned(), sim.agent_url("sim").unwrap())])
    );
    drop(sweep);
    assert_eq!(counts(&sim, "sim").requests, 0);
    assert!(!place.run().exists());
}
