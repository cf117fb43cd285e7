//! Batches, records and options for a trainer, and rows that are sent without groups.

use std::time::Duration;

use futures::StreamExt;
use rollstream::config::{AgentKind, AgentSettings, Driver, ModelApi, Settings};
use rollstream::group::{ExampleError, Sampling};
use rollstream::sim::{AgentConfig, FaultKind, Latency, Sim, SimConfig};
use rollstream::{RolloutManager, RolloutOptions};
use serde_json::json;

use super::rollout_manager::{
    faults, gym_prompt, multi_turn, native, options, prompt, settings, start, through_gym,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_metrics_of_all_its_rollouts() {
    let sim = start(SimConfig::default()).await;
    let manager = native(&sim, options()).await;
    let batch = manager.run_rollouts((0..5).map(prompt)).await.unwrap();
    let indices = batch.groups.iter().map(|group| group.prompt.prompt_idx);
    assert_eq!(indices.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let metrics = &batch.rollout_metrics;
    for name in [
        "total_turns",
        "avg_turns_per_sample",
        "max_turns_per_sample",
        "natural_termination_rate",
        "truncation_rate",
        "max_turns_reached_rate",
        "mean_total_tokens_per_sample",
        "mean_gen_tokens_per_sample",
        "mean_env_tokens_per_sample",
        "mean_total_reward",
        "max_total_reward",
        "min_total_reward",
        "max_gen_tokens_per_sample",
        "turns_per_sample/p95",
        "max_gen_tokens_per_turn/p95",
        "histogram/gen_tokens_length",
    ] {
        assert!(metrics.contains_key(name), "{name}: {metrics:?}");
    }
    let completions = || batch.groups.iter().flat_map(|group| &group.completions);
    let rewards: f64 = completions().map(|one| one.reward).sum();
    assert_eq!(metrics["mean_total_reward"], rewards / 20.0);
    let turns = completions().filter_map(|one| Some(one.sample.as_ref()?.turn_count));
    assert_eq!(metrics["total_turns"], turns.sum::<u64>());
    let of_group = &batch.groups[0].rollout_metrics;
    for name in ["total", "run_rollouts", "aggregate_metrics"] {
        assert!(
            of_group[&format!("timing/rollout/{name}")].is_f64(),
            "{name}"
        );
    }

    let manager = through_gym(&sim, options()).await;
    let batch = manager.run_rollouts((0..5).map(gym_prompt)).await.unwrap();
    let metrics = &batch.rollout_metrics;
    assert_eq!(metrics["a/reward/histogram"].as_array().unwrap().len(), 20);
    assert_eq!(metrics["a/reward/mean"], metrics["total_reward/mean"]);
    assert_eq!(
        metrics["a/full_result"]["data"].as_array().unwrap().len(),
        20
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_and_log_probabilities_of_a_manager_hold_for_a_multi_turn_agent() {
    let sim = start(SimConfig::default()).await;
    let agent = AgentSettings {
        model_api: Some(ModelApi::Completions),
        tokenizer: Some("bytes".into()),
        max_turns: Some(6),
        ..multi_turn(&sim)
    };
    for include_logprobs in [true, false] {
        let options = RolloutOptions {
            max_rollout_turns: Some(1),
            sampling: Sampling {
                include_logprobs,
                ..Sampling::default()
            },
            ..options()
        };
        let settings = settings(agent.clone());
        let manager = RolloutManager::connect(&settings, "a", options).await;
        let group = manager.unwrap().run_rollout(prompt(1)).await.unwrap();
        for completion in &group.completions {
            assert_eq!(completion.sample.as_ref().unwrap().turn_count, 1);
            let generated = &completion.message_log[1];
            assert!(generated.token_ids.is_some());
            assert_eq!(generated.logprobs.is_some(), include_logprobs);
        }
        let record = group.record();
        let message = &record["completions"][0]["message_log"][1];
        assert_eq!(
            message.get("generation_logprobs").is_some(),
            include_logprobs
        );
        assert_eq!(record["metadata"]["task_name"], "sum");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_make_no_sense_are_refused_before_anything_is_sent() {
    let sim = start(SimConfig::default()).await;
    let refused = async |agent: AgentSettings, options: RolloutOptions| {
        let mut settings = settings(agent);
        settings.head_server = Some(sim.head_url().parse().unwrap());
        let manager = RolloutManager::connect(&settings, "a", options).await;
        manager.err().map(|error| error.report())
    };
    for options in [
        RolloutOptions {
            num_generations: 0,
            ..options()
        },
        RolloutOptions {
            max_row_attempts: 0,
            ..options()
        },
    ] {
        let said = refused(multi_turn(&sim), options).await.unwrap();
        assert!(said.contains("must be >= 1"), "{said}");
    }
    let greedy = Sampling {
        greedy: true,
        ..Sampling::default()
    };
    let stopping = Sampling {
        stop_strings: vec!["end".into()],
        ..Sampling::default()
    };
    for (name, sampling) in [("greedy", greedy), ("stop_strings", stopping)] {
        let options = RolloutOptions {
            sampling,
            ..options()
        };
        assert_eq!(refused(multi_turn(&sim), options.clone()).await, None);
        let said = refused(AgentSettings::default(), options).await.unwrap();
        assert!(said.contains(&format!("{name} is not supported")), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_come_back_with_the_results_of_their_own_agents() {
    let agents = ["a", "b"].map(|name| (name.to_owned(), AgentConfig::default()));
    let sim = Sim::start(SimConfig {
        agents: agents.into(),
        latency: Latency::Fixed(Duration::ZERO),
        ..SimConfig::default()
    });
    let sim = sim.await.unwrap();
    let settings = Settings {
        head_server: Some(sim.head_url().parse().unwrap()),
        data_budget: 1,
        ..Settings::default()
    };
    sim.change("b", faults(FaultKind::BadRequest400, 1.0))
        .await
        .unwrap();
    let example = |number: i64| {
        let mut row = gym_prompt(number).extra_env_info;
        row["agent_ref"] = json!({"name": if number % 2 == 0 { "a" } else { "b" }});
        row
    };
    let examples: Vec<_> = (0..10).map(example).collect();
    let results = rollstream::run_examples(&settings, examples).await.unwrap();
    let results: Vec<_> = results.collect().await;
    assert_eq!(results.len(), 10);
    let mut answered = Vec::new();
    for result in results {
        match result {
            Ok((row, result)) => {
                assert_eq!(row["agent_ref"]["name"], "a");
                assert_eq!(result["expected_answer"], row["expected_answer"]);
                assert!(result.get("_ng_rollout_index").is_none());
                answered.push(row["expected_answer"].as_i64().unwrap());
            }
            Err(ExampleError::Failed { row, failure }) => {
                assert_eq!((row % 2, failure.http_status), (1, Some(400)));
            }
            Err(error) => panic!("{error}"),
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [3, 5, 7, 9, 11]);
    let nameless = vec![json!({"responses_create_params": {}})];
    let error = rollstream::run_examples(&settings, nameless)
        .await
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("example 0 names no agent"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_of_answers_are_left_to_the_caller() {
    let sim = start(SimConfig::default()).await;
    let settings = Settings {
        head_server: Some(sim.head_url().parse().unwrap()),
        ..Settings::default()
    };
    for (fault, flag) in [
        (FaultKind::NoPersist, "_ng_no_persist"),
        (FaultKind::FailureTerminal, "_ng_failure_class"),
    ] {
        sim.change("a", faults(fault, 1.0)).await.unwrap();
        let mut row = gym_prompt(1).extra_env_info;
        row["agent_ref"] = json!({"name": "a"});
        let results = rollstream::run_examples(&settings, vec![row]).await;
        let results: Vec<_> = results.unwrap().collect().await;
        let [Ok((_, result))] = results.as_slice() else {
            panic!("{results:?}");
        };
        assert!(!result[flag].is_null(), "{result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_counted_by_its_http_status_wherever_it_happens() {
    let sim = start(SimConfig::default()).await;
    let responses = AgentSettings {
        kind: Some(AgentKind::Responses),
        resources_url: Some(sim.tools_url().parse().unwrap()),
        environments: Default::default(),
        ..multi_turn(&sim)
    };
    let retrying = AgentSettings {
        model_retries: Some(1),
        ..multi_turn(&sim)
    };
    let lockstep = AgentSettings {
        driver: Some(Driver::Lockstep),
        ..multi_turn(&sim)
    };
    let gym = AgentSettings::default();
    for (agent, server) in [
        (multi_turn(&sim), "sim_model"),
        (retrying, "sim_model"),
        (multi_turn(&sim), "sim_environment"),
        (lockstep.clone(), "sim_model"),
        (lockstep, "sim_environment"),
        (responses.clone(), "sim_model"),
        (responses, "sim_tools"),
        (gym, "a"),
    ] {
        let mut settings = settings(agent);
        settings.head_server = Some(sim.head_url().parse().unwrap());
        let manager = RolloutManager::connect(&settings, "a", options()).await;
        let manager = manager.unwrap();
        sim.change(server, faults(FaultKind::Error500, 1.0))
            .await
            .unwrap();
        let prompt = match settings.agents["a"].kind {
            Some(AgentKind::MultiTurn) => prompt(1),
            _ => gym_prompt(1),
        };
        manager.run_rollout(prompt).await.unwrap_err();
        sim.change(server, faults(FaultKind::Error500, 0.0))
            .await
            .unwrap();
        let metrics = manager.counts().metrics();
        assert_eq!(
            metrics["rollout/redispatch_total/http_500"], 4.0,
            "{server}: {metrics:?}"
        );
        assert_eq!(metrics["rollout/redispatch_total"], 4.0, "{server}");
    }

    let manager = through_gym(&sim, options()).await;
    sim.change("a", faults(FaultKind::MissingReward, 1.0))
        .await
        .unwrap();
    manager.run_rollout(gym_prompt(1)).await.unwrap_err();
    let metrics = manager.counts().metrics();
    assert_eq!(
        metrics["rollout/data_failures_total/data"], 1.0,
        "{metrics:?}"
    );
}
