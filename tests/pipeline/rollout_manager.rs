//! Groups of rollouts for a trainer, through agents of both kinds.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use rollstream::config::{AgentKind, AgentSettings, Concurrency, GroupFailure, Settings};
use rollstream::group::{RolloutError, Sampling};
use rollstream::model::Message;
use rollstream::retry::{Backoff, FailureClass};
use rollstream::sim::{AgentChange, AgentConfig, FaultKind, FaultRates, Latency, Sim, SimConfig};
use rollstream::{RolloutManager, RolloutOptions, TrainingPrompt};
use serde_json::json;

pub async fn start(config: SimConfig) -> Sim {
    let agents = [("a".to_owned(), AgentConfig::default())];
    let config = SimConfig {
        agents: agents.into(),
        latency: Latency::Fixed(Duration::ZERO),
        ..config
    };
    Sim::start(config).await.unwrap()
}

pub fn prompt(idx: i64) -> TrainingPrompt {
    let text = format!("What is {idx} + 3?");
    TrainingPrompt {
        idx,
        message_log: vec![Message::text("user", text)],
        extra_env_info: json!({ "expected_answer": idx + 3 }),
        task_name: Some("sum".into()),
        stop_strings: None,
    }
}

pub fn gym_prompt(idx: i64) -> TrainingPrompt {
    let text = format!("What is {idx} + 3?");
    TrainingPrompt {
        idx,
        extra_env_info: json!({
            "responses_create_params": {"input": text, "max_output_tokens": 50},
            "expected_answer": idx + 3,
        }),
        ..TrainingPrompt::default()
    }
}

pub fn options() -> RolloutOptions {
    RolloutOptions {
        num_generations: 4,
        backoff: Backoff {
            base: Duration::from_millis(1),
            cap: Duration::from_secs(30),
        },
        ..RolloutOptions::default()
    }
}

pub fn multi_turn(sim: &Sim) -> AgentSettings {
    let environment = json!({"kind": "step", "url": sim.environment_url()});
    AgentSettings {
        kind: Some(AgentKind::MultiTurn),
        model_url: vec![sim.model_url().parse().unwrap()],
        model: Some("sim".into()),
        model_retries: Some(0),
        environments: [("sum".to_owned(), environment)].into_iter().collect(),
        ..AgentSettings::default()
    }
}

pub fn settings(agent: AgentSettings) -> Settings {
    Settings {
        agents: BTreeMap::from([("a".to_owned(), agent)]),
        ..Settings::default()
    }
}

pub async fn native(sim: &Sim, options: RolloutOptions) -> RolloutManager {
    let settings = settings(multi_turn(sim));
    RolloutManager::connect(&settings, "a", options)
        .await
        .unwrap()
}

pub async fn through_gym(sim: &Sim, options: RolloutOptions) -> RolloutManager {
    let settings = Settings {
        head_server: Some(sim.head_url().parse().unwrap()),
        ..Settings::default()
    };
    RolloutManager::connect(&settings, "a", options)
        .await
        .unwrap()
}

pub fn faults(kind: FaultKind, share: f64) -> AgentChange {
    AgentChange {
        faults: Some(FaultRates([(kind, share)].into())),
        ..AgentChange::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_of_a_manager_end_after_two_hours_unless_settings_say_otherwise() {
    let sim = start(SimConfig::default()).await;
    for manager in [
        native(&sim, options()).await,
        through_gym(&sim, options()).await,
    ] {
        let shown = format!("{manager:?}");
        assert!(shown.contains("rollout_timeout: Some(7200s)"), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_prompts_becomes_a_stream_of_whole_groups() {
    let sim = start(SimConfig::default()).await;
    let manager = native(&sim, options()).await;
    let groups: Vec<_> = manager.run_batch((0..10).map(prompt)).collect().await;
    let mut indices = Vec::new();
    for group in groups {
        let group = group.unwrap();
        assert!(group.is_complete());
        assert_eq!(group.completions.len(), 4);
        let rollouts = group.completions.iter().map(|one| one.key.rollout_index);
        assert_eq!(rollouts.collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(
            group.completions[0].message_log[0].content,
            prompt(group.prompt.prompt_idx).message_log[0].content
        );
        assert!(group.rollout_metrics.contains_key("total_reward/mean"));
        indices.push(group.prompt.prompt_idx);
    }
    indices.sort_unstable();
    assert_eq!(indices, (0..10).collect::<Vec<_>>());
    assert_eq!(manager.counts().committed_total, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_servers_fail_is_sent_again_as_a_whole_until_its_budget_is_spent() {
    let sim = start(SimConfig::default()).await;
    let manager = native(&sim, options()).await;
    sim.change("sim_model", faults(FaultKind::Error500, 1.0))
        .await
        .unwrap();
    let error = manager.run_rollout(prompt(1)).await.unwrap_err();
    let RolloutError::Exhausted {
        budget, failure, ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(budget, "max_consecutive_dropped_prompts");
    assert_eq!(failure.class, FailureClass::Infra);
    let counts = manager.counts();
    assert_eq!(
        counts.redispatch_total,
        BTreeMap::from([("http_500".to_owned(), 4)])
    );
    assert_eq!(
        (counts.skipped_total, counts.max_consecutive_infra_drops),
        (0, 0)
    );

    let lenient = RolloutOptions {
        max_consecutive_dropped_prompts: 1,
        ..options()
    };
    let manager = native(&sim, lenient).await;
    let first = manager.run_rollout(prompt(1)).await.unwrap_err();
    assert!(
        matches!(first, RolloutError::Skipped { prompt_idx: 1, .. }),
        "{first}"
    );
    sim.change("sim_model", faults(FaultKind::Error500, 0.0))
        .await
        .unwrap();
    manager.run_rollout(prompt(2)).await.unwrap();
    sim.change("sim_model", faults(FaultKind::Error500, 1.0))
        .await
        .unwrap();
    // The group between has set the count of drops in a row back.
    let third = manager.run_rollout(prompt(3)).await.unwrap_err();
    assert!(
        matches!(third, RolloutError::Skipped { prompt_idx: 3, .. }),
        "{third}"
    );
    let fourth = manager.run_rollout(prompt(4)).await.unwrap_err();
    assert!(matches!(fourth, RolloutError::Exhausted { .. }), "{fourth}");
    let counts = manager.counts();
    assert_eq!((counts.committed_total, counts.skipped_total), (1, 2));
    assert_eq!(counts.max_consecutive_infra_drops, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_causes_failures_itself_is_skipped_within_its_budget() {
    let sim = start(SimConfig::default()).await;
    let lenient = RolloutOptions {
        max_skipped_prompts: 1,
        ..options()
    };
    let manager = native(&sim, lenient).await;
    let unknown = |idx| TrainingPrompt {
        task_name: Some("chess".into()),
        ..prompt(idx)
    };
    let first = manager.run_rollout(unknown(1)).await.unwrap_err();
    assert!(matches!(first, RolloutError::Skipped { .. }), "{first}");
    assert!(first.to_string().contains("'chess'"), "{first}");
    let second = manager.run_rollout(unknown(2)).await.unwrap_err();
    assert!(
        matches!(
            second,
            RolloutError::Exhausted {
                budget: "max_skipped_prompts",
                ..
            }
        ),
        "{second}"
    );
    let counts = manager.counts();
    assert_eq!(
        counts.data_retry_total,
        BTreeMap::from([("data".to_owned(), 2)])
    );
    assert_eq!(
        counts.data_failures_total,
        BTreeMap::from([("data".to_owned(), 2)])
    );
    assert_eq!(counts.skipped_total, 1);
    assert!(sim.requests("sim_model").unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn through_nemo_gym_only_the_rows_that_are_missing_are_sent_again() {
    let sim = start(SimConfig {
        seed: 5,
        ..SimConfig::default()
    })
    .await;
    sim.change("a", faults(FaultKind::Error500, 0.4))
        .await
        .unwrap();
    let sampling = Sampling {
        temperature: Some(0.5),
        max_new_tokens: Some(20),
        ..Sampling::default()
    };
    let manager = through_gym(
        &sim,
        RolloutOptions {
            num_generations: 16,
            max_row_attempts: 30,
            sampling,
            ..options()
        },
    )
    .await;
    let group = manager.run_rollout(gym_prompt(7)).await.unwrap();
    assert_eq!(group.completions.len(), 16);
    for (rollout, completion) in (0..).zip(&group.completions) {
        assert_eq!(completion.key.rollout_index, rollout);
        let answer = &completion.env_extras;
        assert_eq!(answer["_rowidx"], rollout);
        let params = &answer["responses_create_params"];
        assert_eq!(params["temperature"], 0.5);
        assert_eq!(params["max_output_tokens"], 20);
    }
    let requests = sim.requests("a").unwrap();
    let again = requests.len() as u64 - 16;
    assert!(again > 0);
    let counts = manager.counts();
    assert_eq!(
        (counts.committed_total, counts.row_redispatch_total),
        (1, again)
    );
    // Each was answered once, and sent again no more.
    let mut answered: Vec<_> = requests
        .iter()
        .filter(|request| request.fault.is_none())
        .map(|request| request.rollout_index)
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..16).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_each_counts_the_others_of_a_group_are_kept() {
    let sim = start(SimConfig {
        seed: 2,
        ..SimConfig::default()
    })
    .await;
    sim.change("sim_environment", faults(FaultKind::Error500, 0.5))
        .await
        .unwrap();
    let manager = native(
        &sim,
        RolloutOptions {
            num_generations: 16,
            max_row_attempts: 1,
            group: GroupFailure::Each,
            ..options()
        },
    )
    .await;
    let group = manager.run_rollout(prompt(1)).await.unwrap();
    assert!(!group.is_complete());
    assert!((1..16).contains(&group.completions.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_for_another_agent_is_not_sent_to_the_managers_own() {
    let sim = start(SimConfig::default()).await;
    let manager = through_gym(&sim, options()).await;
    let mut elsewhere = gym_prompt(1);
    elsewhere.extra_env_info["agent_ref"] = json!({"name": "b"});
    let refused = manager.run_rollout(elsewhere).await.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("names agent 'b', not 'a'"), "{said}");
    let mut own = gym_prompt(2);
    own.extra_env_info["agent_ref"] = json!({"name": "a"});
    assert!(manager.run_rollout(own).await.unwrap().is_complete());
    assert_eq!(sim.requests("a").unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_an_agent_holds_over_all_groups() {
    let sim = Sim::start(SimConfig {
        agents: [("a".to_owned(), AgentConfig::default())].into(),
        latency: Latency::Fixed(Duration::from_millis(5)),
        ..SimConfig::default()
    })
    .await
    .unwrap();
    let agent = AgentSettings {
        concurrency: Some(Concurrency::Fixed(3)),
        ..AgentSettings::default()
    };
    let settings = Settings {
        head_server: Some(sim.head_url().parse().unwrap()),
        agents: BTreeMap::from([("a".to_owned(), agent)]),
        ..Settings::default()
    };
    let manager = RolloutManager::connect(&settings, "a", options())
        .await
        .unwrap();
    let groups: Vec<_> = manager.run_batch((0..20).map(gym_prompt)).collect().await;
    assert!(groups.iter().all(Result::is_ok));
    let counts = &sim.counters()["a"];
    assert_eq!((counts.ok, counts.max_in_flight), (80, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_no_connection_reaches_costs_a_prompt_its_budget() {
    let agent = AgentSettings {
        url: Some("http://127.0.0.1:1".parse().unwrap()),
        ..AgentSettings::default()
    };
    let settings = Settings {
        agents: BTreeMap::from([("a".to_owned(), agent)]),
        ..Settings::default()
    };
    let manager = RolloutManager::connect(&settings, "a", options())
        .await
        .unwrap();
    let error = manager.run_rollout(gym_prompt(1)).await.unwrap_err();
    assert!(matches!(error, RolloutError::Exhausted { .. }), "{error}");
    let counts = manager.counts();
    assert_eq!(
        counts.redispatch_total,
        BTreeMap::from([("infra".to_owned(), 4)])
    );
    assert!(counts.row_redispatch_total > 0);
}
