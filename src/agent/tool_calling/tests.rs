//! Tests of whole rollouts against a scripted model and a scripted resources server.

use std::sync::Arc;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::{ToolCallingAgent, ToolCallingOptions};
use crate::agent::{Agent, Reply, RolloutRequest};
use crate::call::scripted::{Answer, Received, ScriptedServer, http, log};
use crate::call::{CallKind, Target};
use crate::config::Resources;
use crate::model::{Endpoints, ModelRetries, ResponsesModel};
use crate::retry::FailureClass;

/// The reply of a rollout, and the requests that its servers got.
struct Rollout {
    reply: Reply,
    asked_model: Vec<Received>,
    asked_server: Vec<Received>,
    kinds: Vec<CallKind>,
}

impl Rollout {
    /// Runs a rollout whose model returns `outputs` one after the other, then the last one forever.
    async fn play(
        options: ToolCallingOptions,
        outputs: Vec<Value>,
        server: impl FnMut(&Received) -> Answer + Send + 'static,
    ) -> Self {
        let mut turn = 0;
        let model = ScriptedServer::start(move |_| {
            let output = outputs.get(turn).or(outputs.last()).unwrap();
            turn += 1;
            let usage = json!({"input_tokens": turn, "output_tokens": 1, "total_tokens": turn + 1});
            let response = json!({"id": format!("r{turn}"), "output": output, "usage": usage});
            Answer::ok(response).with("set-cookie", format!("m{turn}=1"))
        })
        .await;
        let server = ScriptedServer::start(server).await;
        let urls = [model.url().to_owned()];
        let endpoints = Endpoints::new("", &urls, &HeaderMap::new(), &http()).unwrap();
        let responder = ResponsesModel::new(endpoints, "", ModelRetries::default());
        let target = Target::new(server.url(), HeaderMap::new(), http()).unwrap();
        let agent = ToolCallingAgent::new(Arc::new(responder), target, options);
        let row = r#"{"responses_create_params": {"input": "go", "temperature": 0.50}, "x": 1.50}"#;
        let calls = log(0);
        let request = RolloutRequest {
            body: Bytes::from_static(row.as_bytes()),
            calls: calls.clone(),
            as_given: false,
        };
        Self {
            reply: agent.run(request).await,
            asked_model: model.received(),
            asked_server: server.received(),
            kinds: calls.take().iter().map(|call| call.start.kind).collect(),
        }
    }

    fn answer(&self) -> Value {
        serde_json::from_slice(&self.reply.result.as_ref().unwrap().body).unwrap()
    }

    fn paths(&self) -> Vec<&str> {
        let asked = self.asked_server.iter();
        asked.map(|request| request.path.as_str()).collect()
    }
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
}

fn message(text: &str) -> Value {
    let content = json!([{"type": "output_text", "text": text}]);
    json!({"type": "message", "role": "assistant", "content": content})
}

fn output(id: &str, text: &str) -> Value {
    json!({"call_id": id, "output": text, "type": "function_call_output"})
}

fn user(text: &str) -> Value {
    json!({"content": text, "role": "user"})
}

#[tokio::test]
async fn tools_get_arguments_and_cookies_and_the_model_gets_what_they_say() {
    let thought = json!({"type": "reasoning", "summary": [], "status": null});
    let heard = json!({"type": "reasoning", "summary": []});
    let calls = json!([
        thought,
        call("a", "look up", r#"{ "q": 1e5 }"#),
        call("b", "fails", "null"),
        call("c", "never", "{'q': 1}"),
    ]);
    let outputs = vec![calls.clone(), json!([message("done")])];
    let rollout = Rollout::play(ToolCallingOptions::default(), outputs, |request| {
        let reply = match request.path.as_str() {
            "/seed_session" => return Answer::ok("{}").with("set-cookie", "s=1; path=/"),
            "/verify" => {
                let response = &request.body["response"];
                Answer::ok(json!({"reward": 0.5, "response": response, "extra": 1}))
            }
            "/fails" => Answer::status(503, "try later"),
            _ => Answer::ok("found"),
        };
        reply.with("set-cookie", "t=2")
    })
    .await;
    assert_eq!(
        rollout.paths(),
        ["/seed_session", "/look%20up", "/fails", "/verify"]
    );
    let [seed, look_up, fails, verify] = rollout.asked_server.as_slice() else {
        panic!()
    };
    let row = r#"{"responses_create_params": {"input": "go", "temperature": 0.50}, "x": 1.50}"#;
    assert_eq!((seed.text.as_str(), seed.header("cookie")), (row, None));
    assert_eq!(look_up.text, r#"{"q":100000.0}"#);
    assert_eq!(look_up.header("cookie"), Some("s=1"));
    assert_eq!(
        (fails.text.as_str(), fails.header("cookie")),
        ("", Some("s=1; t=2"))
    );

    let refused = r#"{"error": "Invalid tool call arguments: JSONDecodeError('Expecting property name enclosed in double quotes: line 1 column 2 (char 1)')"}"#;
    let results = [
        output("a", "found"),
        output("b", "try later"),
        output("c", refused),
    ];
    let mut items = vec![user("go"), heard];
    items.extend(calls.as_array().unwrap()[1..].iter().cloned());
    items.extend(results);
    let [first, second] = rollout.asked_model.as_slice() else {
        panic!()
    };
    assert_eq!(first.body["input"], json!([user("go")]));
    assert_eq!(first.header("cookie"), None);
    assert_eq!(second.body, json!({"temperature": 0.5, "input": items}));
    assert_eq!(second.header("cookie"), Some("m1=1"));

    items.push(message("done"));
    let response = &verify.body["response"];
    assert_eq!(response["output"], json!(items[1..]));
    assert_eq!(
        (&response["id"], &response["usage"]["input_tokens"]),
        (&json!("r2"), &json!(3))
    );
    let answer = rollout.answer();
    assert_eq!(
        (&answer["reward"], &answer["extra"]),
        (&json!(0.5), &json!(1))
    );
    use CallKind::{Model, SeedSession, Tool, Verify};
    assert_eq!(
        rollout.kinds,
        [SeedSession, Model, Tool, Tool, Model, Verify]
    );
}

#[tokio::test]
async fn steps_have_an_end_and_the_last_tools_are_called() {
    let options = ToolCallingOptions {
        max_steps: Some(2),
        ..ToolCallingOptions::default()
    };
    let outputs = vec![json!([message("I call"), call("a", "t", "{}")])];
    let rollout = Rollout::play(options, outputs, |_| Answer::ok(json!({"reward": 1}))).await;
    assert_eq!(rollout.paths(), ["/seed_session", "/t", "/t", "/verify"]);
    let output = rollout.asked_server[3].body["response"]["output"].clone();
    assert_eq!(output.as_array().unwrap().len(), 6);
    assert_eq!(output[5]["type"], "function_call_output");
}

#[tokio::test]
async fn a_tool_that_says_nothing_of_use_fails_the_attempt() {
    let redirect = || Answer::status(307, "").with("location", "http://elsewhere.test/t");
    let calls = vec![json!([call("a", "t", "{}")])];
    let rollout = Rollout::play(
        ToolCallingOptions::default(),
        calls,
        move |request| match request.path.as_str() {
            "/t" => redirect(),
            _ => Answer::ok("{}"),
        },
    )
    .await;
    assert_eq!(rollout.paths(), ["/seed_session", "/t"]);
    let failure = rollout.reply.result.unwrap_err();
    assert_eq!(
        (failure.class, failure.http_status),
        (FailureClass::Data, Some(307))
    );
    assert!(
        failure.message.contains("to http://elsewhere.test/t"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn a_model_that_says_nothing_or_nonsense_fails() {
    for (output, asked, why) in [
        (json!([]), 8, "neither a message nor a call"),
        (json!([{"foo": 1}]), 1, "output[0] has no type"),
    ] {
        let options = ToolCallingOptions::default();
        let rollout = Rollout::play(options, vec![output], |_| Answer::ok("{}")).await;
        let failure = rollout.reply.result.unwrap_err();
        assert_eq!(failure.class, FailureClass::Data);
        assert!(failure.message.contains(why), "{failure:?}");
        assert_eq!(rollout.asked_model.len(), asked);
    }
}

fn gymnasium(max_steps: Option<u32>) -> ToolCallingOptions {
    ToolCallingOptions {
        protocol: Resources::Gymnasium,
        max_steps,
        ..ToolCallingOptions::default()
    }
}

#[tokio::test]
async fn an_environment_says_what_the_model_sees_until_it_ends_the_episode() {
    let outputs = vec![json!([call("a", "t", "{}")]), json!([message("two")])];
    let mut steps = 0;
    let rollout = Rollout::play(gymnasium(None), outputs, move |request| {
        let info = json!({"supports_step_idempotency": true, "supports_explicit_close": true});
        match request.path.as_str() {
            "/reset" => Answer::ok(json!({"observation": "begin", "info": info}))
                .with("set-cookie", "s=1; path=/"),
            "/close" => Answer::status(500, "can't"),
            _ => {
                steps += 1;
                let outputs = json!([{"call_id": "a", "output": "A", "more": 1}]);
                Answer::ok(json!({
                    "observation": "go on", "reward": 0.25, "terminated": steps == 2,
                    "info": {"tool_outputs": outputs, "step": steps},
                }))
            }
        }
    })
    .await;
    assert_eq!(rollout.paths(), ["/reset", "/step", "/step", "/close"]);
    assert_eq!(rollout.asked_server[3].header("cookie"), Some("s=1"));
    let ids: Vec<&str> = rollout.asked_server[1..3]
        .iter()
        .map(|step| step.body["_ng_step_request_id"].as_str().unwrap())
        .collect();
    assert!(ids[0].len() == 32 && ids[0] != ids[1], "{ids:?}");
    let step = &rollout.asked_server[2].body;
    assert_eq!(step["responses_create_params"]["input"], "go");
    assert_eq!(step["response"]["output"], json!([message("two")]));
    assert_eq!(step["response"]["usage"]["input_tokens"], 2);

    let begun = [user("go"), user("begin")];
    let said = [call("a", "t", "{}"), output("a", "A"), user("go on")];
    let heard: Vec<&Value> = begun.iter().chain(&said).collect();
    assert_eq!(rollout.asked_model[1].body["input"], json!(heard));
    let answer = rollout.answer();
    assert_eq!(answer["responses_create_params"]["tool_choice"], "auto");
    let input = answer["responses_create_params"]["input"].as_array();
    let texts: Vec<&Value> = input.unwrap().iter().map(|item| &item["content"]).collect();
    assert_eq!(texts, ["go", "begin"]);
    let output = answer["response"]["output"].as_array().unwrap();
    let types: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(
        types,
        [
            "function_call",
            "function_call_output",
            "message",
            "message"
        ]
    );
    assert_eq!(
        (&output[1]["output"], &output[2]["content"]),
        (&json!("A"), &json!("go on"))
    );
    assert_eq!(answer["response"]["usage"]["input_tokens"], 3);
    assert_eq!(
        (
            &answer["reward"],
            &answer["terminated"],
            &answer["truncated"]
        ),
        (&json!(0.5), &json!(true), &json!(false))
    );
    assert_eq!(answer["info"]["step"], 2);
    assert_eq!(answer["info"]["cleanup_warning"]["operation"], "close");
    use CallKind::{Close, Model, Reset, Step};
    assert_eq!(rollout.kinds, [Reset, Model, Step, Model, Step, Close]);
}

#[tokio::test]
async fn an_episode_that_is_not_ended_is_cut_after_so_many_steps() {
    for (max_steps, expected) in [(Some(3), 3), (None, 10)] {
        let outputs = vec![json!([message("hm")])];
        let options = gymnasium(max_steps);
        let step = json!({"observation": "go on", "reward": 0.1});
        let rollout = Rollout::play(options, outputs, move |_| Answer::ok(&step)).await;
        assert_eq!(rollout.asked_model.len(), expected);
        let answer = rollout.answer();
        assert_eq!(
            (&answer["terminated"], &answer["truncated"]),
            (&json!(false), &json!(true))
        );
        let output = answer["response"]["output"].as_array().unwrap();
        assert_eq!(output.len(), expected * 2);
        assert_eq!(output.last().unwrap()["content"], "go on");
    }
}

#[tokio::test]
async fn an_episode_that_fails_is_closed() {
    let outputs = vec![json!([message("hm")])];
    let info = json!({"tool_outputs": 3, "supports_explicit_close": true});
    let rollout = Rollout::play(gymnasium(None), outputs, move |_| {
        Answer::ok(json!({ "info": info }))
    })
    .await;
    assert_eq!(rollout.paths(), ["/reset", "/step", "/close"]);
    let failure = rollout.reply.result.unwrap_err();
    assert_eq!(failure.class, FailureClass::Data);
    assert!(
        failure.message.contains("its info can't be read"),
        "{failure:?}"
    );
}
