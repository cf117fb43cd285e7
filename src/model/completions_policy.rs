use async_trait::async_trait;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::body::{CompletionAnswer, FinishReason, RequestBody, token_ids};
use super::{Generation, GenerationRequest, Message, ModelClient, Policy};
use crate::call::{CallLog, Posted};
use crate::retry::{Failure, FailureClass};

/// Path of Completions below a server's address.
pub const COMPLETIONS: &str = "v1/completions";

/// The fields of a request that make its tokens exact. `sampling` does not override them.
const EXACT: [(&str, bool); 3] = [
    ("return_token_ids", true),
    // Older versions of vLLM know only this one.
    ("return_tokens_as_token_ids", true),
    ("add_special_tokens", false),
];

/// A model behind Completions of vLLM or SGLang: it gets tokens, and returns tokens with their
/// log-probabilities. The prompt is the tokens of all messages, one after the other, so
/// the log holds exactly what the model saw.
#[derive(Debug)]
pub struct CompletionsPolicy(pub ModelClient);

#[derive(Deserialize)]
struct CompletionChoice<'a> {
    text: String,
    #[serde(borrow)]
    finish_reason: FinishReason<'a>,
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    logprobs: Option<CompletionLogprobs<'a>>,
    meta_info: Option<MetaInfo>,
}

#[derive(Deserialize)]
struct CompletionLogprobs<'a> {
    #[serde(borrow)]
    tokens: Option<&'a RawValue>,
    token_logprobs: Option<Vec<Option<f64>>>,
}

/// SGLang's own fields: log-probability, number and text of each token.
#[derive(Deserialize)]
struct MetaInfo {
    output_token_logprobs: Option<Vec<(Option<f64>, u32, IgnoredAny)>>,
}

/// Returns the tokens of the whole conversation, message by message.
fn prompt<'a>(request: &GenerationRequest<'a>, log: &CallLog) -> Result<Vec<&'a [u32]>, Failure> {
    let ids = |(position, message): (usize, &'a Message)| {
        message.token_ids.as_deref().ok_or_else(|| {
            let why = format!(
                "rollout {}, turn {}: message {position} (role '{}') has no token ids, which \
                 /v1/completions is asked with; give the agent the model's tokenizer",
                log.key(),
                request.turn,
                message.role
            );
            Failure::new(FailureClass::Data, why)
        })
    };
    request.messages.iter().enumerate().map(ids).collect()
}

impl CompletionChoice<'_> {
    /// Returns the tokens, and their log-probabilities if all are known.
    fn tokens(&mut self, posted: &Posted) -> Result<(Vec<u32>, Option<Vec<f64>>), Failure> {
        let meta = self.meta_info.take();
        let meta = meta.and_then(|meta| meta.output_token_logprobs);
        let logprobs = self.logprobs.as_ref();
        let ids = self
            .token_ids
            .take()
            .or_else(|| token_ids(logprobs?.tokens?))
            .or_else(|| Some(meta.as_ref()?.iter().map(|(_, id, _)| *id).collect()));
        let Some(ids) = ids else {
            let why = "the answer has no token ids; use a server of vLLM or SGLang that knows \
                       return_token_ids, or model_api = \"chat-completions\"";
            return Err(posted.refuse(FailureClass::Data, why));
        };
        let own = self.logprobs.take();
        let own = own.and_then(|logprobs| logprobs.token_logprobs);
        let logprobs = own.or_else(|| {
            let meta = meta?.into_iter();
            Some(meta.map(|(logprob, _, _)| logprob).collect())
        });
        if let Some(logprobs) = &logprobs
            && logprobs.len() != ids.len()
        {
            let (logprobs, ids) = (logprobs.len(), ids.len());
            let why = format!("the answer has {logprobs} log-probabilities of {ids} tokens");
            return Err(posted.refuse(FailureClass::Data, &why));
        }
        // A trainer can't use a list in which one is null.
        Ok((ids, logprobs.and_then(|known| known.into_iter().collect())))
    }

    /// Checks that the model saw the tokens that were sent, as far as the server says.
    fn check_prompt(&self, prompt: &[&[u32]], posted: &Posted) -> Result<(), Failure> {
        let Some(seen) = &self.prompt_token_ids else {
            return Ok(());
        };
        if prompt.iter().copied().flatten().eq(seen) {
            return Ok(());
        }
        let sent: usize = prompt.iter().map(|ids| ids.len()).sum();
        let why = format!(
            "the model did not see the tokens that were sent: {sent} were sent, and \
             prompt_token_ids has {}",
            seen.len()
        );
        Err(posted.refuse(FailureClass::Data, &why))
    }
}

#[async_trait]
impl Policy for CompletionsPolicy {
    async fn generate(
        &self,
        request: GenerationRequest<'_>,
        log: &CallLog,
    ) -> Result<Generation, Failure> {
        let prompt = prompt(&request, log)?;
        let mut body = RequestBody::new(self.0.name())?;
        body.list("prompt", prompt.iter().copied().flatten())?;
        let logprobs = request.sampling.get("logprobs").and_then(Value::as_u64);
        let exact = EXACT.iter().map(|(name, _)| *name);
        let own: Vec<&str> = exact.chain(["prompt", "logprobs"]).collect();
        body.sampling(request.sampling, request.stop_strings, &own)?;
        for (name, value) in EXACT {
            body.field(name, &value)?;
        }
        body.field("logprobs", &logprobs.unwrap_or(0))?;
        let posted = self
            .0
            .post(request.turn, body.finish(), None, log, None)
            .await?;
        let answer = CompletionAnswer::<CompletionChoice>::read(&posted)?;
        let mut choice = answer.choice;
        let truncated = choice.finish_reason.is_length(&posted)?;
        choice.check_prompt(&prompt, &posted)?;
        let (token_ids, logprobs) = choice.tokens(&posted)?;
        Ok(Generation {
            text: choice.text,
            num_tokens: Some(token_ids.len() as u64),
            token_ids: Some(token_ids),
            logprobs,
            truncated,
            worker: answer.worker,
        })
    }

    fn address(&self) -> String {
        self.0.address()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use reqwest::header::HeaderMap;
    use serde_json::{Map, json};

    use super::*;
    use crate::call::scripted::{Answer, ScriptedServer, http, log};
    use crate::model::{BytesTokenizer, Endpoints, ModelRetries, OBSERVATION_ROLE, Tokenizer};

    fn policy(server: &ScriptedServer) -> CompletionsPolicy {
        let urls = [server.url().to_owned()];
        let endpoints = Endpoints::new("m", &urls, &HeaderMap::new(), &http()).unwrap();
        let retries = ModelRetries::default();
        CompletionsPolicy(ModelClient::new(endpoints, COMPLETIONS, "m", retries))
    }

    fn message(role: &str, ids: Option<&[u32]>) -> Message {
        Message {
            token_ids: ids.map(<[u32]>::to_vec),
            ..Message::text(role, "not looked at")
        }
    }

    async fn generate(
        choice: Value,
        sampling: Value,
        stop_strings: Option<&[String]>,
    ) -> (String, Result<Generation, Failure>) {
        let answer = json!({"choices": [choice], "usage": {"completion_tokens": 99}});
        let server = ScriptedServer::start(move |_| Answer::ok(&answer)).await;
        let sampling: Map<String, Value> = serde_json::from_value(sampling).unwrap();
        let messages = [
            message("user", Some(&[5, 6])),
            message("assistant", Some(&[])),
            message("environment", Some(&[4_294_967_295])),
        ];
        let request = GenerationRequest {
            turn: 1,
            messages: &messages,
            sampling: &sampling,
            stop_strings,
        };
        let generation = policy(&server).generate(request, &log(0)).await;
        (server.received().remove(0).text, generation)
    }

    #[tokio::test]
    async fn the_tokens_of_all_messages_are_the_prompt() {
        let choice = json!({
            "text": "t", "finish_reason": "length", "stop_reason": null, "token_ids": [9, 8],
            "prompt_token_ids": [5, 6, 4_294_967_295_u32],
            "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.5], "top_logprobs": [{}, {}]},
        });
        let sampling =
            json!({"temperature": 1.0, "logprobs": 3, "prompt": "x", "return_token_ids": false});
        let stop = ["\n".to_owned()];
        let (sent, generation) = generate(choice, sampling, Some(&stop)).await;
        assert_eq!(
            sent,
            concat!(
                r#"{"model":"m","prompt":[5,6,4294967295],"temperature":1.0,"stop":["\n"],"return_token_ids":true,"#,
                r#""return_tokens_as_token_ids":true,"add_special_tokens":false,"logprobs":3}"#
            )
        );
        let expected = Generation {
            text: "t".into(),
            token_ids: Some(vec![9, 8]),
            logprobs: Some(vec![-0.5, -1.5]),
            num_tokens: Some(2),
            truncated: true,
            worker: None,
        };
        assert_eq!(generation.unwrap(), expected);
    }

    #[tokio::test]
    async fn tokens_are_found_wherever_servers_put_them() {
        let choice = |mut extra: Value| {
            extra["text"] = "t".into();
            extra
        };
        let ids = ["token_id:9", "token_id:8"];
        for (extra, logprobs) in [
            (
                json!({"logprobs": {"tokens": ids, "token_logprobs": [-0.5, -1.5]}}),
                Some(vec![-0.5, -1.5]),
            ),
            (
                json!({"token_ids": null, "meta_info": {"output_token_logprobs": [[-0.5, 9, null], [-1.5, 8, "b"]]}}),
                Some(vec![-0.5, -1.5]),
            ),
            (
                json!({"token_ids": [9, 8], "logprobs": {"tokens": ["a", "b"], "token_logprobs": [null, -1.5]}}),
                None,
            ),
            (json!({"token_ids": [9, 8], "logprobs": null}), None),
        ] {
            let (sent, generation) = generate(choice(extra), json!({"logprobs": null}), None).await;
            assert!(sent.ends_with(r#","logprobs":0}"#), "{sent}");
            let generation = generation.unwrap();
            assert_eq!(generation.token_ids, Some(vec![9, 8]));
            assert_eq!(generation.logprobs, logprobs);
            assert!(!generation.truncated);
        }
    }

    #[tokio::test]
    async fn what_is_not_exact_is_refused() {
        for (choice, expected) in [
            (json!({"text": "t"}), "use a server of vLLM or SGLang"),
            (
                json!({"text": "t", "logprobs": {"tokens": ["token_id:1", "a"], "token_logprobs": [-1, -1]}}),
                "no token ids",
            ),
            (
                json!({"text": "t", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-1]}}),
                "1 log-probabilities of 2 tokens",
            ),
            (
                json!({"text": "t", "token_ids": [1], "prompt_token_ids": [1, 5, 6, 7]}),
                "3 were sent, and prompt_token_ids has 4",
            ),
        ] {
            let (_, generation) = generate(choice, json!({}), None).await;
            let failure = generation.unwrap_err();
            assert_eq!(failure.class, FailureClass::Data);
            assert!(failure.message.contains(expected), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn a_message_without_tokens_is_named_and_nothing_is_sent() {
        let server = ScriptedServer::start(|_| Answer::ok("{}")).await;
        let messages = [message("user", Some(&[1])), message("environment", None)];
        let request = GenerationRequest {
            turn: 2,
            messages: &messages,
            sampling: &Map::new(),
            stop_strings: None,
        };
        let failure = policy(&server).generate(request, &log(4)).await;
        let failure = failure.unwrap_err();
        assert_eq!(failure.class, FailureClass::Data);
        let expected = "rollout 3-4, turn 2: message 1 (role 'environment') has no token ids";
        assert!(failure.message.contains(expected), "{failure:?}");
        assert!(server.received().is_empty());
    }

    /// Generates turns: the model's tokens as numbers, and the environment's answer as bytes.
    fn turns() -> impl Strategy<Value = Vec<(Vec<u32>, Vec<u8>)>> {
        let generated = prop::collection::vec(any::<u32>(), 0..20);
        let observed = prop::collection::vec(any::<u8>(), 0..20);
        prop::collection::vec((generated, observed), 1..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The server's texts do not encode to its tokens: all texts are the same.
        #[test]
        fn the_model_sees_every_token_that_was_said(
            prompt in prop::collection::vec(any::<u32>(), 1..20),
            turns in turns(),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let said: Vec<Vec<u32>> = turns.iter().map(|(said, _)| said.clone()).collect();
                let mut said = said.into_iter();
                let seen: Arc<Mutex<Vec<Vec<u32>>>> = Arc::default();
                let sees = Arc::clone(&seen);
                let server = ScriptedServer::start(move |request| {
                    let prompt: Vec<u32> = serde_json::from_value(request.body["prompt"].clone()).unwrap();
                    let ids = said.next().unwrap();
                    let logprobs: Vec<f64> = ids.iter().map(|id| -f64::from(*id) / 7.0).collect();
                    let choice = json!({
                        "text": "\u{fffd}", "token_ids": ids, "prompt_token_ids": prompt,
                        "logprobs": {"token_logprobs": logprobs},
                    });
                    sees.lock().unwrap().push(prompt);
                    Answer::ok(json!({"choices": [choice]}))
                }).await;
                let policy = policy(&server);
                let log = log(0);
                let mut messages = vec![message("user", Some(&prompt))];
                let mut expected = prompt.clone();
                for (turn, (generated, observed)) in (1..).zip(&turns) {
                    let request = GenerationRequest {
                        turn,
                        messages: &messages,
                        sampling: &Map::new(),
                        stop_strings: None,
                    };
                    let generation = policy.generate(request, &log).await.unwrap();
                    let saw = seen.lock().unwrap().last().cloned();
                    prop_assert_eq!(saw.as_ref(), Some(&expected));
                    prop_assert_eq!(generation.token_ids.as_ref(), Some(generated));
                    let logprobs = generated.iter().map(|id| -f64::from(*id) / 7.0).collect();
                    prop_assert_eq!(generation.logprobs.as_ref(), Some(&logprobs));
                    messages.push(Message {
                        token_ids: generation.token_ids,
                        logprobs: generation.logprobs,
                        ..Message::text("assistant", generation.text)
                    });
                    let text = String::from_utf8_lossy(observed);
                    let ids = BytesTokenizer.encode(&text).ids;
                    expected.extend(generated);
                    expected.extend(ids.iter().flatten());
                    messages.push(Message {
                        token_ids: ids,
                        ..Message::text(OBSERVATION_ROLE, text)
                    });
                }
                Ok(())
            })?;
        }
    }
}
