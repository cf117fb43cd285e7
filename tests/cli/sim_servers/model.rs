//! The model.

use rollstream::sim::{Sim, SimConfig};
use serde_json::{Value, json};

use super::client::{Client, QUESTION, config, sim};

#[tokio::test]
async fn a_chat_says_the_same_as_responses() {
    let sim = sim(1).await;
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let function = json!({"name": "weather", "parameters": parameters});
    let mut tool = function.clone();
    tool["type"] = json!("function");
    let parts = json!([{"type": "text", "text": QUESTION}]);
    let request = |seed: u64| {
        let chat = json!({"messages": [{"role": "user", "content": parts}], "seed": seed,
            "tools": [{"type": "function", "function": function}]});
        let body = json!({"seed": seed}).to_string();
        let responses =
            json!({"input": QUESTION, "tools": [tool], "metadata": {"extra_body": body}});
        (chat, responses)
    };
    let mut client = Client::new();
    let mut several = 0;
    for seed in 0..10 {
        let (chat, responses) = request(seed);
        let chat = client
            .post(sim.model_url(), "/v1/chat/completions", &chat)
            .await;
        let responses = client
            .post(sim.model_url(), "/v1/responses", &responses)
            .await;
        let choice = &chat["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], Value::Null);
        let made = choice["message"]["tool_calls"].as_array().unwrap();
        let items = responses["output"].as_array().unwrap();
        let items: Vec<_> = items
            .iter()
            .filter(|item| item["type"] == "function_call")
            .collect();
        assert_eq!(made.len(), items.len());
        several += usize::from(made.len() > 1);
        for (made, item) in made.iter().zip(items) {
            assert_eq!(made["id"], item["call_id"]);
            assert_eq!(made["function"]["arguments"], item["arguments"]);
            let arguments: Value =
                serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["city"].is_string());
        }
        assert_eq!(
            chat["usage"]["prompt_tokens"],
            responses["usage"]["input_tokens"]
        );
    }
    assert!((1..10).contains(&several), "{several}");
    let plain = json!({"messages": [{"role": "user", "content": QUESTION}], "tool_choice": "none",
        "tools": [{"type": "function", "function": function}]});
    let chat = client
        .post(sim.model_url(), "/v1/chat/completions", &plain)
        .await;
    let said = chat["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(said.ends_with("The answer is 42."), "{said}");
}

#[tokio::test]
async fn output_ends_at_its_limit_or_a_stop_string() {
    let sim = sim(1).await;
    let mut client = Client::new();
    let cut = json!({"input": QUESTION, "max_output_tokens": 3});
    let response = client.post(sim.model_url(), "/v1/responses", &cut).await;
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    assert_eq!(response["usage"]["output_tokens"], 3);
    let chat = |extra: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": QUESTION}]});
        request
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        request
    };
    let path = "/v1/chat/completions";
    let cut = client
        .post(sim.model_url(), path, &chat(json!({"max_tokens": 2})))
        .await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 2);
    let stopped = client
        .post(sim.model_url(), path, &chat(json!({"stop": [" answer"]})))
        .await;
    let choice = &stopped["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["stop_reason"]),
        (&json!("stop"), &json!(" answer"))
    );
    assert!(
        choice["message"]["content"]
            .as_str()
            .unwrap()
            .ends_with("The")
    );
    let (status, error) = client
        .send(sim.model_url(), path, &chat(json!({"stream": true})))
        .await;
    assert_eq!(status, 400);
    assert_eq!(error["error"]["type"], "invalid_request_error");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused() {
    let context_window = Some(20);
    let sim = Sim::start(SimConfig {
        context_window,
        turns: Some(1),
        ..config()
    })
    .await
    .unwrap();
    let mut client = Client::new();
    let long = "word ".repeat(20);
    let text = format!("{QUESTION} {long}");
    for (path, fits, too_long) in [
        (
            "/v1/responses",
            json!({"input": QUESTION}),
            json!({"input": text}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": QUESTION}]}),
            json!({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}),
        ),
        (
            "/v1/completions",
            json!({"prompt": [65, 66]}),
            json!({"prompt": text}),
        ),
    ] {
        client.post(sim.model_url(), path, &fits).await;
        let (status, error) = client.send(sim.model_url(), path, &too_long).await;
        assert_eq!(
            (status.as_u16(), &error["error"]["code"]),
            (400, &json!("context_length_exceeded"))
        );
    }
}

#[tokio::test]
async fn tokens_go_in_and_out_as_they_are() {
    let sim = sim(3).await;
    let mut client = Client::new();
    let mut log: Vec<u64> = format!("<|user|>{QUESTION}\n<|assistant|>")
        .bytes()
        .map(u64::from)
        .collect();
    let mut merged = 0;
    let mut said = String::new();
    for turn in 0..3 {
        let request =
            json!({"prompt": log, "max_tokens": 2000, "return_token_ids": true, "logprobs": 0});
        let answer = client
            .post(sim.model_url(), "/v1/completions", &request)
            .await;
        let again = client
            .post(sim.model_url(), "/v1/completions", &request)
            .await;
        assert_eq!(answer, again);
        let choice = &answer["choices"][0];
        assert_eq!(choice["prompt_token_ids"], json!(log));
        let ids = choice["token_ids"].as_array().unwrap();
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert!(logprobs.iter().all(|logprob| logprob.as_f64() <= Some(0.0)));
        assert_eq!(
            (logprobs.len(), json!(ids.len())),
            (ids.len(), answer["usage"]["completion_tokens"].clone())
        );
        said = choice["text"].as_str().unwrap().to_owned();
        merged += ids.iter().filter(|id| id.as_u64() >= Some(256)).count();
        assert_eq!(said.contains("The answer is"), turn == 2, "{said}");

        // The same text in other tokens is another prompt.
        let bytes: Vec<u64> = said.bytes().map(u64::from).collect();
        let next = format!("\n<|user|>Turn {}: go on.\n<|assistant|>", turn + 1);
        let after = |ids: Vec<u64>| {
            let next = next.bytes().map(u64::from);
            log.iter()
                .copied()
                .chain(ids)
                .chain(next)
                .collect::<Vec<u64>>()
        };
        let exact = after(ids.iter().map(|id| id.as_u64().unwrap()).collect());
        let ask = |prompt: &[u64]| json!({"prompt": prompt});
        let one = client
            .post(sim.model_url(), "/v1/completions", &ask(&exact))
            .await;
        let other = client
            .post(sim.model_url(), "/v1/completions", &ask(&after(bytes)))
            .await;
        assert_ne!(one["id"], other["id"]);
        log = exact;
    }
    assert!(merged > 20, "{merged}");
    assert!(said.ends_with("The answer is 42."), "{said}");
    let unknown = json!({"prompt": [1_000_000]});
    assert_eq!(
        client
            .send(sim.model_url(), "/v1/completions", &unknown)
            .await
            .0,
        400
    );
    let text = json!({"prompt": format!("{QUESTION}\nTurn 3: go on."), "max_tokens": 4});
    let answer = client.post(sim.model_url(), "/v1/completions", &text).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}
