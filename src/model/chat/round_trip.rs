//! Tests that a conversation survives the way through chat and back.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{request_from_responses, response_from_chat};

/// One answer of a model, and what came back from the tools that it called.
#[derive(Debug, Clone)]
struct Turn {
    question: String,
    reasoning: String,
    text: String,
    calls: Vec<(String, String, String)>,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let call = ("[a-z]{1,3}", any::<String>(), any::<String>());
    // Text that looks like a thought is one.
    let text = any::<String>().prop_map(|text| text.replace("<think>", ""));
    let turn = (
        any::<String>(),
        any::<String>(),
        text,
        prop::collection::vec(call, 0..4),
    )
        .prop_map(|(question, reasoning, text, calls)| Turn {
            question,
            reasoning,
            text,
            calls,
        });
    prop::collection::vec(turn, 0..5)
}

fn message_of(turn: &Turn, index: usize) -> Value {
    let calls: Vec<Value> = turn
        .calls
        .iter()
        .enumerate()
        .map(|(call, (name, arguments, _))| {
            json!({"id": format!("c{index}-{call}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    let mut message = json!({"role": "assistant", "content": turn.text});
    if turn.text.is_empty() && !calls.is_empty() {
        message["content"] = Value::Null;
    }
    if !turn.reasoning.is_empty() {
        message["reasoning_content"] = json!(turn.reasoning);
        message["reasoning"] = json!(turn.reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

proptest! {
    /// Chat answers, read as Responses items and sent back, are the same chat messages.
    #[test]
    fn conversations_are_the_same_after_both_ways(turns in turns()) {
        let mut conversation = Vec::new();
        let mut expected = Vec::new();
        for (index, turn) in turns.iter().enumerate() {
            conversation.push(json!({"role": "user", "content": turn.question}));
            expected.push(json!({"role": "user", "content": turn.question}));
            let message = message_of(turn, index);
            let completion = json!({"id": format!("r{index}"), "choices": [{"message": message}]});
            let response = response_from_chat(completion.as_object().unwrap(), &Map::new()).unwrap();
            conversation.extend(response["output"].as_array().unwrap().iter().cloned());
            expected.push(message);
            for (call, (_, _, output)) in turn.calls.iter().enumerate() {
                let call_id = format!("c{index}-{call}");
                conversation.push(json!({"type": "function_call_output", "call_id": call_id, "output": output}));
                expected.push(json!({"role": "tool", "tool_call_id": call_id, "content": output}));
            }
        }
        let body = request_from_responses(&Map::new(), &conversation).unwrap();
        prop_assert_eq!(&body["messages"], &Value::Array(expected));
    }

    /// Nothing that a server sends may crash the process.
    #[test]
    fn any_message_is_an_answer_or_an_error(message in json_value(), choice in json_value()) {
        for choice in [json!({"message": message}), choice] {
            let completion = json!({"choices": [choice], "usage": choice});
            let _ = response_from_chat(completion.as_object().unwrap(), &Map::new());
            let params = json!({"tools": [choice], "tool_choice": choice, "text": choice, "metadata": choice});
            let _ = request_from_responses(params.as_object().unwrap(), &[choice]);
        }
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "type",
        "role",
        "content",
        "text",
        "tool_calls",
        "function",
        "id",
        "summary",
        "token_ids",
        "logprobs",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec![
            "message",
            "assistant",
            "user",
            "reasoning",
            "function",
            "<think>",
            "</think>",
            ""
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}
