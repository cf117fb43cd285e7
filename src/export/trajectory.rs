//! Records what agents that rollstream runs itself did, as NeMo Gym does for its own: `ng_trajectory`, schema 1.0, and
//! `ng_model_call_capture`.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::calls::ModelCall;
use super::stamps::Identity;
use crate::json::{ObjectError, splice, value};

/// The fields with the evidence.
const TRAJECTORY: &str = "ng_trajectory";
const CAPTURE: &str = "ng_model_call_capture";

/// The only invocation of such a rollout.
const ROOT: &str = "root";

/// What a model said in a turn.
struct Said {
    answer: Value,
    reasoning: Value,
    tool_calls: usize,
}

/// Returns an answer with the evidence of these calls. An answer with a trajectory of its own stays as it is.
///
/// # Errors
/// The answer is not a JSON object.
pub(super) fn with_evidence<'a>(
    answer: &'a str,
    identity: &Identity,
    calls: &[ModelCall],
) -> Result<Cow<'a, str>, ObjectError> {
    if calls.is_empty() {
        return Ok(Cow::Borrowed(answer));
    }
    let parsed = value(answer).unwrap_or_default();
    if parsed.get(TRAJECTORY).is_some() {
        return Ok(Cow::Borrowed(answer));
    }
    let trajectory = trajectory(&parsed, identity, calls).to_string();
    let capture = capture(identity, calls).to_string();
    let fields = [(TRAJECTORY, trajectory.as_str()), (CAPTURE, &capture)];
    splice(answer.trim_ascii(), &fields).map(Cow::Owned)
}

fn trajectory(answer: &Value, identity: &Identity, calls: &[ModelCall]) -> Value {
    let answered: Vec<&ModelCall> = calls.iter().filter(|call| call.is_ok()).collect();
    let said = said(answer, answered.len());
    let mut gaps = vec![
        json!({"code": "conversation_unavailable"}),
        json!({"code": "tool_calls_unavailable"}),
    ];
    if said.is_none() {
        let detail = "the answer does not show which turn said what";
        gaps.push(json!({"code": "turns_unavailable", "detail": detail}));
    }
    let references: Vec<Value> = answered
        .iter()
        .map(|call| json!({"model_call_id": call.id()}))
        .collect();
    let mut steps = 0;
    let turns = said
        .iter()
        .flatten()
        .zip(&answered)
        .zip(&references)
        .enumerate();
    let turns = turns.map(|(number, ((said, call), reference))| {
        let turn = json!({
            "invocation_id": ROOT,
            "task_id": identity.task,
            "rollout_id": identity.rollout,
            "turn_no": number + 1,
            "timestamp": call.started_at(),
            "answer": said.answer,
            "reasoning_content": said.reasoning,
            "step_count": steps,
            "model_calls": [reference],
        });
        steps += said.tool_calls;
        turn
    });
    let turns: Vec<Value> = turns.collect();
    let counts = Counts::of(answer, answered.len());
    let mut number = 0;
    let model_calls: Vec<Value> = calls
        .iter()
        .map(|call| {
            let mut observed = model_call(call);
            if call.is_ok() {
                counts.correct(number, &mut observed);
                number += 1;
                if number == answered.len() {
                    end(answer, said.as_deref().unwrap_or_default(), &mut observed);
                }
            }
            observed
        })
        .collect();
    json!({
        "schema_version": "1.0",
        "task_id": identity.task,
        "rollout_id": identity.rollout,
        "invocations": [{
            "kind": "agent_invocation",
            "invocation_id": ROOT,
            "status": "completed",
            "model_calls": references,
        }],
        "turns": turns,
        "model_calls": model_calls,
        "gaps": gaps,
    })
}

fn model_call(call: &ModelCall) -> Value {
    json!({
        "model_call_id": call.id(),
        "started_at": call.started_at(),
        "completed_at": call.finished_at(),
        "duration_ms": call.latency_ms,
        "response_metadata": {
            "model_ref": {"type": "responses_api_models", "name": call.name},
            "status_code": call.http_status,
            "error_category": call.error(),
        },
        "token_stats": {
            "prompt_tokens": call.input_tokens,
            "completion_tokens": call.output_tokens,
        },
    })
}

/// Adds the reason why the last call ended, if it was a limit that the answer names.
fn end(answer: &Value, said: &[Said], call: &mut Value) {
    let reason = answer.pointer("/response/incomplete_details/reason");
    if let (Some(reason @ Value::String(_)), Some(said)) = (reason, said.last()) {
        let output = [&said.reasoning, &said.answer];
        let output = output.into_iter().filter_map(Value::as_array).flatten();
        call["response_metadata"]["finish_reason"] = reason.clone();
        call["response"] = json!({"output": output.collect::<Vec<_>>()});
    }
}

/// The tokens of each turn, if the agent counts them; its response has their sum.
struct Counts<'a>(Option<(&'a [Value], &'a [Value])>);

impl<'a> Counts<'a> {
    fn of(answer: &'a Value, turns: usize) -> Self {
        let counts = |name: &str| {
            let counts = answer.get(name)?.as_array()?;
            (counts.len() == turns).then_some(counts.as_slice())
        };
        Self(counts("turn_input_tokens").zip(counts("turn_gen_tokens")))
    }

    fn correct(&self, turn: usize, call: &mut Value) {
        if let Self(Some((input, output))) = self
            && let (Some(input), Some(output)) = (input.get(turn), output.get(turn))
        {
            call["token_stats"] = json!({"prompt_tokens": input, "completion_tokens": output});
        }
    }
}

/// Returns what the model said in each of its turns; `None` if the answer does not show it.
fn said(answer: &Value, turns: usize) -> Option<Vec<Said>> {
    if let Some(output) = answer.pointer("/response/output").and_then(Value::as_array) {
        return said_in_output(output, turns);
    }
    let log = answer.get("message_log")?.as_array()?;
    let said = log.iter().filter(|message| message["role"] == "assistant");
    let said: Vec<Said> = said
        .map(|message| Said {
            answer: message["content"].clone(),
            reasoning: Value::Null,
            tool_calls: 0,
        })
        .collect();
    // The task itself may contain answers before the first turn.
    let first = said.len().checked_sub(turns)?;
    Some(said.into_iter().skip(first).collect())
}

/// Returns what the model said in each turn. A turn ends where a tool or the environment answers.
fn said_in_output(output: &[Value], turns: usize) -> Option<Vec<Said>> {
    let is_heard = |item: &Value| {
        item["type"] == "function_call_output"
            || ["user", "system", "developer"]
                .iter()
                .any(|role| item["role"] == *role)
    };
    let mut said: Vec<Vec<&Value>> = Vec::new();
    let mut begins = true;
    for item in output {
        if is_heard(item) {
            begins = true;
            continue;
        }
        if std::mem::take(&mut begins) {
            said.push(Vec::new());
        }
        if let Some(turn) = said.last_mut() {
            turn.push(item);
        }
    }
    // The model may have said nothing in its last turn.
    if begins && said.len() + 1 == turns {
        said.push(Vec::new());
    }
    let said_by = |turn: Vec<&Value>| {
        let is_reasoning = |item: &&&Value| item["type"] == "reasoning";
        let (reasoning, answer): (Vec<&Value>, Vec<&Value>) =
            turn.iter().copied().partition(|item| is_reasoning(&item));
        Said {
            tool_calls: answer
                .iter()
                .filter(|item| item["type"] == "function_call")
                .count(),
            answer: json!(answer),
            reasoning: if reasoning.is_empty() {
                Value::Null
            } else {
                json!(reasoning)
            },
        }
    };
    (said.len() == turns).then(|| said.into_iter().map(said_by).collect())
}

fn total_tokens(call: &ModelCall) -> Option<i64> {
    Some(call.input_tokens?.saturating_add(call.output_tokens?))
}

fn capture(identity: &Identity, calls: &[ModelCall]) -> Value {
    let sum = |count: fn(&ModelCall) -> Option<i64>| {
        let counts: Vec<i64> = calls.iter().filter_map(count).collect();
        (!counts.is_empty()).then(|| counts.into_iter().fold(0, i64::saturating_add))
    };
    let latency: f64 = calls.iter().filter_map(|call| call.latency_ms).sum();
    let records = calls.iter().enumerate().map(|(index, call)| {
        let record = json!({
            "model_call_id": call.id(),
            "call_index": index,
            "model_ref": {"type": "responses_api_models", "name": call.name},
            "status_code": call.http_status,
            "error_category": call.error(),
            "started_at": call.started_at(),
            "completed_at": call.finished_at(),
            "tokens_in": call.input_tokens,
            "tokens_out": call.output_tokens,
            "tokens_total": total_tokens(call),
            "latency_total_ms": call.latency_ms,
        });
        let fields = record.as_object().cloned().unwrap_or_default();
        fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .collect::<Map<_, _>>()
    });
    json!({
        "rollout_id": identity.rollout,
        "metrics": {
            "tokens_in": sum(|call| call.input_tokens),
            "tokens_out": sum(|call| call.output_tokens),
            "tokens_reasoning": null,
            "tokens_total": sum(total_tokens),
            "cached_tokens": null,
            "latency_total_ms": latency,
            "num_calls": calls.len(),
        },
        "calls": records.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(output: &Value, turns: usize) -> Option<Vec<String>> {
        let answer = json!({"response": {"output": output}});
        let said = said(&answer, turns)?;
        Some(said.iter().map(|said| said.answer.to_string()).collect())
    }

    #[test]
    fn turns_end_where_somebody_else_speaks() {
        let call = json!({"type": "function_call"});
        let heard = json!({"type": "function_call_output"});
        let text = json!({"type": "message", "role": "assistant"});
        let user = json!({"role": "user", "content": "go on"});
        let output = json!([call, call, heard, heard, call, heard, text, user, text]);
        let one = format!("[{text}]");
        let all = vec![
            format!("[{call},{call}]"),
            format!("[{call}]"),
            one.clone(),
            one,
        ];
        assert_eq!(answers(&output, 4).unwrap(), all);
        assert_eq!(answers(&output, 5), None);
        assert_eq!(
            answers(&json!([call, heard]), 2).unwrap(),
            [format!("[{call}]"), "[]".to_owned()]
        );
        assert_eq!(answers(&json!([]), 1).unwrap(), ["[]"]);
    }
}
