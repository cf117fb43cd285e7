//! What is landed is what the simulation's oracle says, fault for fault.

use std::collections::BTreeMap;
use std::time::Duration;

use rollstream::config::{AgentSettings, Settings};
use rollstream::sim::{
    AgentConfig, FaultKind, FaultRates, Key, Planned, Profile, RowDifficulty, Sim, SimConfig,
};
use rollstream::store::RunState;

use super::landed;
use super::workspace::{Workspace, counts, hanging, quick, sweep, tasks};

const TASKS: usize = 300;
const REPEATS: u32 = 4;
const AGENTS: [&str; 2] = ["alpha", "beta"];

/// Every fault but the one that needs a deadline to be noticed.
const FAULTS: [FaultKind; 10] = [
    FaultKind::Error500,
    FaultKind::RateLimited429,
    FaultKind::Reset,
    FaultKind::TruncatedBody,
    FaultKind::NotJson,
    FaultKind::SlowFirstByte,
    FaultKind::MissingReward,
    FaultKind::NoPersist,
    FaultKind::FailureClass,
    FaultKind::FailureTerminal,
];

fn simulation() -> SimConfig {
    let of = |rate: f64| FaultRates(FAULTS.into_iter().map(|kind| (kind, rate)).collect());
    let beta = AgentConfig {
        difficulty: Some(0.8),
        faults: Some(of(0.02)),
        ..AgentConfig::default()
    };
    SimConfig {
        seed: 11,
        faults: of(0.05),
        slow_first_byte: Duration::from_millis(5),
        ..quick(&[("alpha", AgentConfig::default()), ("beta", beta)])
    }
}

/// Class, status and whether it is for good; none where the fault is none to the collector.
fn expected(fault: Option<FaultKind>) -> Option<(&'static str, Option<i32>, bool)> {
    match fault? {
        FaultKind::SlowFirstByte => None,
        FaultKind::Error500 => Some(("infra", Some(500), true)),
        FaultKind::RateLimited429 => Some(("infra", Some(429), true)),
        FaultKind::Reset => Some(("infra", None, true)),
        FaultKind::TruncatedBody => Some(("infra", Some(200), true)),
        FaultKind::NotJson | FaultKind::MissingReward => Some(("data", Some(200), true)),
        FaultKind::NoPersist => Some(("not_persisted", Some(200), false)),
        FaultKind::FailureClass => Some(("agent_flagged", Some(200), true)),
        FaultKind::FailureTerminal => Some(("agent_flagged", Some(200), true)),
        FaultKind::Hang => Some(("timeout", None, true)),
        other => unreachable!("{other} is none of those above"),
    }
}

fn plans(config: &SimConfig) -> BTreeMap<(i64, i64), (&'static str, Planned)> {
    let profiles = AGENTS.map(|agent| (agent, Profile::new(config, agent)));
    let plan = |(task, rollout): (i64, i64)| {
        let (agent, profile) = &profiles[task as usize % AGENTS.len()];
        let key = Key {
            task: task as u64,
            rollout: rollout as u64,
            attempt: 0,
        };
        (
            (task, rollout),
            (*agent, profile.plan(key, RowDifficulty::Medium)),
        )
    };
    landed::all(TASKS as i64, REPEATS.into())
        .into_iter()
        .map(plan)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_is_what_the_oracle_says() {
    let place = Workspace::new();
    let config = simulation();
    let plans = plans(&config);
    let sim = Sim::start(config).await.unwrap();
    let report = sweep(place.settings(&tasks(TASKS, &AGENTS), REPEATS, &sim)).await;

    let mut classes: BTreeMap<String, u64> = BTreeMap::new();
    for (_, plan) in plans.values() {
        if let Some((class, ..)) = expected(plan.fault) {
            *classes.entry(class.to_owned()).or_default() += 1;
        }
    }
    let failed: u64 = classes.values().sum();
    assert_eq!(
        classes.len(),
        4,
        "the simulation is to give every class: {classes:?}"
    );
    let forgotten = classes.remove("not_persisted").unwrap();
    assert_eq!(report.total.failed, classes);
    assert_eq!(report.state, RunState::Incomplete);
    let rollouts = report.rollouts;
    assert_eq!((rollouts.planned, rollouts.done), (1200, 1200 - failed));
    assert_eq!(
        (rollouts.failed, rollouts.pending),
        (failed - forgotten, forgotten)
    );

    let attempts = landed::attempts(&place.run());
    assert_eq!(attempts.len(), plans.len());
    let attempts: BTreeMap<_, _> = attempts
        .into_iter()
        .map(|row| ((row.task, row.rollout), row))
        .collect();
    assert_eq!(attempts.len(), plans.len(), "a rollout has two attempts");
    for (key, (agent, plan)) in &plans {
        let row = &attempts[key];
        let (class, status, terminal) = expected(plan.fault).unwrap_or(("ok", Some(200), false));
        let found = (&*row.agent, &*row.outcome, row.http_status, row.terminal);
        assert_eq!(
            found,
            (*agent, class, status, terminal),
            "{key:?}: {:?}",
            row.error
        );
        assert_eq!(row.error.is_some(), class != "ok", "{key:?}");
        assert!(row.finished_at.is_some_and(|at| at >= row.dispatched_at));
    }

    let rollouts = landed::rollouts(&place.run());
    assert_eq!(rollouts.len() as u64, 1200 - failed);
    let rollouts: BTreeMap<_, _> = rollouts
        .into_iter()
        .map(|row| ((row.task, row.rollout), row))
        .collect();
    assert_eq!(
        rollouts.len() as u64,
        1200 - failed,
        "a rollout was landed twice"
    );
    for (key, (agent, plan)) in plans
        .iter()
        .filter(|(_, (_, plan))| expected(plan.fault).is_none())
    {
        let row = &rollouts[key];
        assert_eq!((&*row.agent, row.attempt), (*agent, 0));
        assert_eq!(row.reward, Some(plan.reward), "{key:?}");
        let total = plan.input_tokens + plan.output_tokens;
        assert_eq!(
            row.tokens,
            [plan.input_tokens, plan.output_tokens, total].map(|n| Some(n as i64)),
            "{key:?}"
        );
        let id = format!(r#""id":"resp_{:016x}""#, plan.answer_id);
        assert!(
            row.result.contains(&id),
            "{key:?} has the answer of another: {}",
            row.result
        );
    }

    for agent in AGENTS {
        let counts = counts(&sim, agent);
        let of_agent = plans.values().filter(|(name, _)| *name == agent);
        let mut faults: BTreeMap<FaultKind, u64> = BTreeMap::new();
        of_agent
            .clone()
            .filter_map(|(_, plan)| plan.fault)
            .for_each(|kind| *faults.entry(kind).or_default() += 1);
        // What broke a connection that had been idle, without a byte of an answer, was sent once more.
        let mut seen = counts.faults.clone();
        let mut resent = 0;
        for kind in [FaultKind::Reset, FaultKind::Fin] {
            let planned = faults.remove(&kind).unwrap_or_default();
            let again = seen.remove(&kind).unwrap_or_default() - planned;
            assert!(again <= planned, "{agent}: {kind:?} {again} of {planned}");
            resent += again;
        }
        assert_eq!(counts.requests, of_agent.count() as u64 + resent, "{agent}");
        assert_eq!(
            (seen, counts.abandoned, counts.rejected),
            (faults, 0, 0),
            "{agent}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hangs_is_given_up_at_the_deadline() {
    let place = Workspace::new();
    let sim = hanging().await;
    // The head server is not asked: the deadline would be its own as well.
    let own = AgentSettings {
        url: Some(sim.agent_url("sim").unwrap().parse().unwrap()),
        ..AgentSettings::default()
    };
    let settings = Settings {
        head_server: None,
        agents: BTreeMap::from([("sim".to_owned(), own)]),
        read_timeout: "200ms".parse().unwrap(),
        ..place.settings(&tasks(3, &["sim"]), 2, &sim)
    };
    let report = sweep(settings).await;
    assert_eq!(
        report.total.failed,
        BTreeMap::from([("timeout".to_owned(), 6)])
    );
    let attempts = landed::attempts(&place.run());
    assert_eq!(attempts.len(), 6);
    for row in attempts {
        assert_eq!(
            (&*row.outcome, row.http_status, row.terminal),
            ("timeout", None, true)
        );
    }
}
