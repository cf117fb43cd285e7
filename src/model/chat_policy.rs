use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::body::{CompletionAnswer, FinishReason, RequestBody, token_id};
use super::{Generation, GenerationRequest, Message, ModelClient, OBSERVATION_ROLE, Policy};
use crate::call::CallLog;
use crate::retry::Failure;

/// The role under which messages of an environment are sent: model servers have no role for them.
pub const SENT_OBSERVATION_ROLE: &str = "user";

/// Path of Chat Completions below a server's address.
pub const CHAT_COMPLETIONS: &str = "v1/chat/completions";

/// A model behind Chat Completions: texts go there, and texts come back.
#[derive(Debug)]
pub struct ChatPolicy(pub ModelClient);

/// A message as it is sent.
#[derive(Serialize)]
struct Sent<'a> {
    role: &'a str,
    content: &'a Value,
}

impl<'a> Sent<'a> {
    fn of(message: &'a Message) -> Self {
        let role = match message.role.as_str() {
            OBSERVATION_ROLE => SENT_OBSERVATION_ROLE,
            role => role,
        };
        Self {
            role,
            content: &message.content,
        }
    }
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    message: ChatMessage,
    #[serde(borrow)]
    finish_reason: FinishReason<'a>,
    logprobs: Option<ChatLogprobs>,
    /// The token ids that vLLM and SGLang send if `return_token_ids` is set.
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct ChatMessage {
    content: Option<ChatContent>,
    refusal: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ChatContent {
    Text(String),
    Parts(Vec<ChatPart>),
}

#[derive(Deserialize)]
struct ChatPart {
    text: Option<String>,
}

#[derive(Deserialize)]
struct ChatLogprobs {
    content: Option<Vec<Token>>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
    logprob: Option<f64>,
}

impl ChatMessage {
    /// Returns the text; if there is no other text, the refusal.
    fn text(self) -> String {
        match self.content {
            Some(ChatContent::Text(text)) => text,
            Some(ChatContent::Parts(parts)) => {
                parts.into_iter().filter_map(|part| part.text).collect()
            }
            None => self.refusal.unwrap_or_default(),
        }
    }
}

#[async_trait]
impl Policy for ChatPolicy {
    async fn generate(
        &self,
        request: GenerationRequest<'_>,
        log: &CallLog,
    ) -> Result<Generation, Failure> {
        let mut body = RequestBody::new(self.0.name())?;
        body.list("messages", request.messages.iter().map(Sent::of))?;
        body.sampling(request.sampling, request.stop_strings, &["messages"])?;
        let posted = self
            .0
            .post(request.turn, body.finish(), None, log, None)
            .await?;
        let answer = CompletionAnswer::<ChatChoice>::read(&posted)?;
        let choice = answer.choice;
        let truncated = choice.finish_reason.is_length(&posted)?;
        let tokens = choice.logprobs.and_then(|logprobs| logprobs.content);
        let token_ids = choice.token_ids.or_else(|| {
            let tokens = tokens.as_ref()?.iter();
            tokens.map(|token| token_id(&token.token)).collect()
        });
        let logprobs: Option<Vec<f64>> =
            tokens.and_then(|tokens| tokens.iter().map(|token| token.logprob).collect());
        let count = token_ids.as_ref().map(Vec::len);
        Ok(Generation {
            text: choice.message.text(),
            num_tokens: answer.output_tokens.or(count.map(|count| count as u64)),
            // Log-probabilities of other tokens than the known ones would mislead.
            logprobs: logprobs.filter(|logprobs| count.is_none_or(|count| count == logprobs.len())),
            token_ids,
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
    use reqwest::header::HeaderMap;
    use serde_json::{Map, json};

    use super::*;
    use crate::call::scripted::{Answer, ScriptedServer, http, log};
    use crate::model::{Endpoints, ModelRetries};
    use crate::retry::FailureClass;

    async fn generate(
        answer: Value,
        sampling: Value,
        stop_strings: Option<&[String]>,
    ) -> (String, Result<Generation, Failure>, CallLog) {
        let server = ScriptedServer::start(move |_| Answer::ok(&answer)).await;
        let urls = [format!("{}/v1", server.url())];
        let endpoints = Endpoints::new("m", &urls, &HeaderMap::new(), &http()).unwrap();
        let client = ModelClient::new(endpoints, CHAT_COMPLETIONS, "m", ModelRetries::default());
        let sampling: Map<String, Value> = serde_json::from_value(sampling).unwrap();
        let parts = json!([{"type": "text", "text": "a\"b"}]);
        let messages = [
            Message::text("system", "be\nbrief"),
            Message {
                content: parts,
                ..Message::text("user", "")
            },
            Message {
                token_ids: Some(vec![7]),
                ..Message::text("assistant", "1")
            },
            Message::text("environment", "no"),
        ];
        let request = GenerationRequest {
            turn: 2,
            messages: &messages,
            sampling: &sampling,
            stop_strings,
        };
        let log = log(1);
        let generation = ChatPolicy(client).generate(request, &log).await;
        let received = server.received().remove(0);
        assert_eq!(received.path, "/v1/chat/completions");
        (received.text, generation, log)
    }

    #[tokio::test]
    async fn a_conversation_is_sent_and_its_answer_read() {
        let answer = json!({
            "id": "x", "worker": 3,
            "choices": [{"index": 0, "finish_reason": "length", "message":
                {"role": "assistant", "content": "two", "tool_calls": []}}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 5},
        });
        let sampling = json!({"temperature": 0.5, "model": "other", "stop": "x", "stream": true, "max_tokens": 9});
        let stop = ["</a>".to_owned()];
        let (sent, generation, log) = generate(answer, sampling, Some(&stop)).await;
        let messages = concat!(
            r#"[{"role":"system","content":"be\nbrief"},"#,
            r#"{"role":"user","content":[{"type":"text","text":"a\"b"}]},"#,
            r#"{"role":"assistant","content":"1"},{"role":"user","content":"no"}]"#,
        );
        assert_eq!(
            sent,
            format!(
                r#"{{"model":"m","messages":{messages},"temperature":0.5,"max_tokens":9,"stop":["</a>"]}}"#
            )
        );
        let expected = Generation {
            text: "two".into(),
            num_tokens: Some(5),
            truncated: true,
            worker: Some("3".into()),
            ..Generation::default()
        };
        assert_eq!(generation.unwrap(), expected);
        let end = log.take().remove(0).end.unwrap();
        assert_eq!((end.input_tokens, end.output_tokens), (Some(11), Some(5)));
    }

    #[tokio::test]
    async fn stop_strings_of_a_turn_replace_those_of_the_sampling() {
        let answer = json!({"choices": [{"message": {"content": null, "refusal": "no"}}]});
        let sampling = || json!({"stop": "x"});
        let (sent, generation, _) = generate(answer.clone(), sampling(), None).await;
        assert!(sent.ends_with(r#","stop":"x"}"#), "{sent}");
        assert_eq!(generation.unwrap().text, "no");
        let (sent, _, _) = generate(answer, sampling(), Some(&[])).await;
        assert!(!sent.contains("stop"), "{sent}");
    }

    #[tokio::test]
    async fn tokens_are_kept_where_they_are_given() {
        let choice = |extra: Value| {
            let mut choice = json!({"message": {"content": "ab"}, "finish_reason": "stop"});
            let extra: Map<String, Value> = serde_json::from_value(extra).unwrap();
            choice.as_object_mut().unwrap().extend(extra);
            json!({"choices": [choice]})
        };
        let content = json!([{"token": "token_id:5", "logprob": -0.5}, {"token": "token_id:6", "logprob": -1.0}]);
        let both = Some(vec![-0.5, -1.0]);
        for (extra, ids, logprobs) in [
            (
                json!({"token_ids": [5, 6], "logprobs": {"content": content}}),
                Some(vec![5, 6]),
                both.clone(),
            ),
            (
                json!({"logprobs": {"content": content}}),
                Some(vec![5, 6]),
                both,
            ),
            (
                json!({"token_ids": [5], "logprobs": {"content": content}}),
                Some(vec![5]),
                None,
            ),
            (
                json!({"logprobs": {"content": [{"token": "a", "logprob": -2.0}]}}),
                None,
                Some(vec![-2.0]),
            ),
            (json!({"logprobs": null, "token_ids": null}), None, None),
        ] {
            let (_, generation, _) = generate(choice(extra), json!({}), None).await;
            let generation = generation.unwrap();
            let count = ids.as_ref().map(|ids: &Vec<u32>| ids.len() as u64);
            assert_eq!(
                (
                    generation.token_ids,
                    generation.logprobs,
                    generation.num_tokens
                ),
                (ids, logprobs, count)
            );
        }
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_read_is_refused_in_its_row() {
        for (answer, class) in [
            (json!({"choices": []}), FailureClass::Data),
            (json!({"error": "x"}), FailureClass::Data),
            (
                json!({"choices": [{"message": {"content": "ab"}, "finish_reason": "abort"}]}),
                FailureClass::Infra,
            ),
        ] {
            let (_, generation, log) = generate(answer, json!({}), None).await;
            let failure = generation.unwrap_err();
            assert_eq!((failure.class, failure.http_status), (class, Some(200)));
            let rows = log.take();
            assert_eq!(rows.len(), 1);
            assert_eq!(rows[0].end.as_ref().unwrap().failure, Some(class));
        }
    }
}
