//! Tests that the tokens of a log are those that the model read and generated, at every turn.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::{Environments, Limits, MultiTurnAgent, MultiTurnOptions};
use crate::agent::{Agent, RolloutRequest};
use crate::call::scripted::{Answer, ScriptedServer, http};
use crate::call::{CallLog, RolloutKey, Target};
use crate::config::{Driver, GroupFailure, Rules};
use crate::environment::StepServer;
use crate::model::{
    BytesTokenizer, COMPLETIONS, CompletionsPolicy, Endpoints, ModelClient, ModelRetries,
};

/// The messages of a turn: tokens of the model, which no text encodes to, and text of the environment from any bytes.
type Said = (Vec<u32>, Vec<u8>);

/// Runs a rollout. Returns its answer and the prompts that the model saw.
async fn play(prompt: &[u8], turns: &[Said], max_seq_len: u64) -> (Value, Vec<Vec<u32>>) {
    let seen: Arc<Mutex<Vec<Vec<u32>>>> = Arc::default();
    let (sees, said) = (Arc::clone(&seen), turns.to_vec());
    let model = ScriptedServer::start(move |request| {
        let prompt = serde_json::from_value(request.body["prompt"].clone()).unwrap();
        let mut seen = sees.lock().unwrap();
        let ids = &said[seen.len()].0;
        let logprobs: Vec<f64> = ids.iter().map(|id| -f64::from(*id) / 7.0).collect();
        seen.push(prompt);
        let choice =
            json!({"text": "\u{fffd}", "token_ids": ids, "logprobs": {"token_logprobs": logprobs}});
        Answer::ok(json!({ "choices": [choice] }))
    })
    .await;
    let (mut step, said) = (0, turns.to_vec());
    let environment = ScriptedServer::start(move |_| {
        let content = String::from_utf8_lossy(&said[step].1).into_owned();
        step += 1;
        Answer::ok(json!({
            "observations": [{"role": "environment", "content": content}],
            "metadata": [null], "next_stop_strings": [null], "rewards": [0.5], "answers": null,
            "terminateds": [step == said.len()],
        }))
    })
    .await;
    let urls = [model.url().to_owned()];
    let endpoints = Endpoints::new("m", &urls, &HeaderMap::new(), &http()).unwrap();
    let client = ModelClient::new(endpoints, COMPLETIONS, "m", ModelRetries::default());
    let target = Target::new(environment.url(), HeaderMap::new(), http()).unwrap();
    let steps = Arc::new(StepServer::new("bytes", &target, None));
    let agent = MultiTurnAgent::new(MultiTurnOptions {
        policy: Arc::new(CompletionsPolicy(client)),
        environments: Environments::new([("bytes".to_owned(), steps as _)]),
        tokenizer: Arc::new(BytesTokenizer),
        rules: Rules::PerSample,
        limits: Limits {
            max_turns: 100,
            max_seq_len,
        },
        max_new_tokens: None,
        driver: Driver::PerSample,
        batch_size: None,
        group: GroupFailure::Each,
        group_timeout: None,
    });
    let prompt = String::from_utf8_lossy(prompt);
    let row = json!({"idx": 0, "message_log": [{"role": "user", "content": prompt}]});
    let reply = agent.run(RolloutRequest {
        body: row.to_string().into(),
        calls: CallLog::new(RolloutKey::default(), None),
        as_given: false,
    });
    let answer = reply.await.result.unwrap();
    let seen = seen.lock().unwrap().clone();
    (serde_json::from_slice(&answer.body).unwrap(), seen)
}

fn turns() -> impl Strategy<Value = Vec<Said>> {
    let ids = prop::collection::vec(any::<u32>(), 0..12);
    let bytes = prop::collection::vec(any::<u8>(), 0..24);
    prop::collection::vec((ids, bytes), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_tokens_of_a_log_are_those_that_the_model_saw(
        prompt in prop::collection::vec(any::<u8>(), 0..20),
        turns in turns(),
        max_seq_len in 20..200_u64,
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (answer, seen) = runtime.block_on(play(&prompt, &turns, max_seq_len));
        let mut so_far: Vec<u32> = Vec::new();
        let mut turn = 0;
        for message in answer["message_log"].as_array().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(message["token_ids"].clone()).unwrap();
            if message["role"] == "assistant" {
                prop_assert_eq!(&seen[turn], &so_far);
                prop_assert_eq!(&ids, &turns[turn].0);
                turn += 1;
            }
            so_far.extend(ids);
        }
        prop_assert_eq!(turn, seen.len());
    }
}
