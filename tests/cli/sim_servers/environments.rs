//! What a model acts in.

use serde_json::{Value, json};

use super::client::{Client, QUESTION, get, row, sim};

#[tokio::test]
async fn tools_are_called_until_the_answer_is_verified() {
    let sim = sim(20).await;
    let tools = get(&format!("{}/tools", sim.tools_url())).await;
    let mut client = Client::new();
    client.post(sim.tools_url(), "/seed_session", &row()).await;
    let mut input = vec![json!({"role": "user", "content": QUESTION})];
    let (mut turns, mut calls, mut thoughts) = (0, 0, 0);
    let response = loop {
        let request = json!({"input": input, "tools": tools, "seed": 7, "model": "m"});
        let response = client
            .post(sim.model_url(), "/v1/responses", &request)
            .await;
        assert_eq!(
            (&response["model"], &response["status"]),
            (&json!("m"), &json!("completed"))
        );
        assert!(response["usage"]["output_tokens"].as_u64() > Some(0));
        let output = response["output"].as_array().unwrap().clone();
        input.extend(output.iter().cloned());
        thoughts += output
            .iter()
            .filter(|item| item["type"] == "reasoning")
            .count();
        let made: Vec<&Value> = output
            .iter()
            .filter(|item| item["type"] == "function_call")
            .collect();
        if made.is_empty() {
            break response;
        }
        turns += 1;
        for call in made {
            calls += 1;
            let path = format!("/{}", call["name"].as_str().unwrap());
            let arguments = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            let (status, result) = client.send(sim.tools_url(), &path, &arguments).await;
            // A division by 0 is a mistake of the model.
            calls -= u64::from(status == 400);
            assert!(
                status == 400 || result["call"] == calls,
                "{status} {result}"
            );
            let output = result.to_string();
            input.push(json!({"type": "function_call_output", "call_id": call["call_id"], "output": output}));
        }
    };
    assert_eq!(turns, 20);
    assert!(calls > 20 && thoughts > 1, "{calls} {thoughts}");
    let mut body = row();
    body["response"] = response.clone();
    let verified = client.post(sim.tools_url(), "/verify", &body).await;
    assert_eq!(
        (&verified["reward"], &verified["extracted_answer"]),
        (&json!(1.0), &json!(42))
    );
    assert_eq!(
        (&verified["topic"], &verified["tool_calls"]),
        (&json!("sums"), &json!(calls))
    );
    assert_eq!(verified["response"], response);
}

#[tokio::test]
async fn who_loses_cookies_is_found_out() {
    let sim = sim(1).await;
    let url = sim.tools_url();
    let note = json!({"note": "a"});
    let mut client = Client::new();
    assert_eq!(client.refused(url, "/remember", &note).await.0, 400);
    let mut body = row();
    body["response"] = json!({"output": []});
    assert_eq!(client.refused(url, "/verify", &body).await.0, 400);
    client.post(url, "/seed_session", &row()).await;
    client.post(url, "/remember", &note).await;
    let mut other = Client::of("3-2-a0");
    let mut of_other = row();
    of_other["_ng_rollout_index"] = json!(2);
    other.post(url, "/seed_session", &of_other).await;
    assert_eq!(
        other.post(url, "/recall", &json!({})).await,
        json!({"notes": [], "call": 1})
    );
    assert_eq!(
        client.post(url, "/recall", &json!({})).await,
        json!({"notes": ["a"], "call": 2})
    );

    other.cookie = client.cookie.clone();
    let (status, why) = other.refused(url, "/recall", &json!({})).await;
    assert_eq!(status, 409);
    assert!(
        why.contains("belongs to task 3, rollout 1, but the request to task 3, rollout 2"),
        "{why}"
    );
    of_other["response"] = json!({"output": []});
    assert_eq!(client.refused(url, "/verify", &of_other).await.0, 409);

    assert_eq!(client.refused(url, "/fly", &json!({})).await.0, 404);
    assert_eq!(client.refused(url, "/remember", &json!({})).await.0, 422);
    let divided = json!({"operation": "divide", "a": 1, "b": 0});
    assert_eq!(client.refused(url, "/calculate", &divided).await.0, 400);
    let verified = client.post(url, "/verify", &body).await;
    assert_eq!(
        (&verified["reward"], &verified["tool_calls"]),
        (&json!(0.0), &json!(2))
    );
    let counts = &sim.server_counters()["sim_tools"];
    assert_eq!((counts.requests, counts.ok, counts.rejected), (13, 6, 7));
}

#[tokio::test]
async fn an_environment_keeps_the_turn_in_its_metadata() {
    let sim = sim(3).await;
    let mut client = Client::new();
    let question = json!({"role": "user", "content": QUESTION});
    let mut logs = [vec![question.clone()], vec![question]];
    let mut metadata = json!([{"expected_answer": 42, "big": 12345678901234567890123_f64}, {"expected_answer": "7"}]);
    for turn in 1..=3 {
        for (sample, log) in logs.iter_mut().enumerate() {
            let request = json!({"messages": log, "seed": sample});
            let chat = client
                .post(sim.model_url(), "/v1/chat/completions", &request)
                .await;
            log.push(chat["choices"][0]["message"].clone());
        }
        let batch = |metadata: &Value| json!({"message_log_batch": logs, "metadata": metadata, "rollout_ids": ["3-0", "3-1"]});
        if turn > 1 {
            let forgotten = json!([{"expected_answer": 42}, null]);
            let (status, why) = client
                .refused(sim.environment_url(), "/step", &batch(&forgotten))
                .await;
            assert_eq!(status, 422);
            assert!(why.contains("sample 0 is at turn"), "{why}");
        }
        let stepped = client
            .post(sim.environment_url(), "/step", &batch(&metadata))
            .await;
        let last = turn == 3;
        assert_eq!(stepped["terminateds"], json!([last, last]));
        let rewards = if last {
            json!([1.0, 0.0])
        } else {
            json!([0.0, 0.0])
        };
        assert_eq!(stepped["rewards"], rewards);
        let answers = if last {
            json!(["42", "42"])
        } else {
            json!([null, null])
        };
        assert_eq!(stepped["answers"], answers);
        let stops = match turn {
            1 => json!(["finally"]),
            2 => json!(null),
            _ => json!([]),
        };
        assert_eq!(stepped["next_stop_strings"], json!([stops, stops]));
        assert_eq!(
            stepped["metadata"][1],
            json!({"expected_answer": "7", "turn": turn})
        );
        metadata = stepped["metadata"].clone();
        for (log, observation) in logs
            .iter_mut()
            .zip(stepped["observations"].as_array().unwrap())
        {
            assert_eq!(observation["role"], "environment");
            log.push(observation.clone());
        }
    }
    let short = json!({"message_log_batch": [[]], "metadata": []});
    assert_eq!(
        client
            .refused(sim.environment_url(), "/step", &short)
            .await
            .0,
        422
    );
}

#[tokio::test]
async fn an_episode_of_a_gymnasium_ends_with_an_answer() {
    let sim = sim(1).await;
    let url = sim.gymnasium_url();
    let mut client = Client::new();
    let said = |text: &str| {
        let mut body = row();
        let content = json!([{"type": "output_text", "text": text}]);
        body["response"] =
            json!({"output": [{"type": "message", "role": "assistant", "content": content}]});
        body
    };
    assert_eq!(client.refused(url, "/step", &said("Hm.")).await.0, 400);
    let reset = client.post(url, "/reset", &row()).await;
    assert!(reset["observation"].is_string());
    let mut even = row();
    even["_ng_task_index"] = json!(4);
    let other = Client::of("4-1-a0").post(url, "/reset", &even).await;
    assert_eq!(other["observation"], Value::Null);
    let step = client.post(url, "/step", &said("Hm.")).await;
    assert!(step["observation"].as_str().unwrap().starts_with("Turn 1:"));
    assert_eq!(
        (&step["terminated"], &step["reward"]),
        (&json!(false), &json!(0.0))
    );
    let step = client.post(url, "/step", &said("The answer is 42.")).await;
    assert_eq!(
        (&step["terminated"], &step["reward"]),
        (&json!(true), &json!(1.0))
    );
    assert_eq!(
        (&step["observation"], &step["truncated"]),
        (&Value::Null, &json!(false))
    );
    client.post(url, "/reset", &row()).await;
    for turn in 1..=64 {
        let step = client.post(url, "/step", &said("Hm.")).await;
        assert_eq!(step["truncated"], turn == 64);
    }
}

#[tokio::test]
async fn the_example_tasks_have_the_tools_that_there_are() {
    let sim = sim(1).await;
    let tools = get(&format!("{}/tools", sim.tools_url())).await;
    for task in include_str!("../../data/example_tool_tasks.jsonl").lines() {
        let task: Value = serde_json::from_str(task).unwrap();
        assert_eq!(task["responses_create_params"]["tools"], tools);
        let parameters = &task["responses_create_params"];
        let mut client = Client::new();
        let response = client
            .post(sim.model_url(), "/v1/responses", parameters)
            .await;
        let calls = response["output"].as_array().unwrap().iter();
        assert!(calls.filter(|item| item["type"] == "function_call").count() > 0);
    }
}
