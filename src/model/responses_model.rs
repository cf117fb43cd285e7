use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::body::RequestBody;
use super::chat::{request_from_responses, response_from_chat};
use super::{CHAT_COMPLETIONS, Endpoints, ModelClient, ModelRetries};
use super::{ModelResponse, Responder, ResponseRequest};
use crate::call::{CallLog, CookieJar, Posted};
use crate::retry::{Failure, FailureClass};

/// Path of Responses below a server's address.
pub const RESPONSES: &str = "v1/responses";

/// A model behind Responses, or behind Chat Completions to which Responses are translated.
#[derive(Debug)]
pub struct ResponsesModel {
    client: ModelClient,
    speaks_chat: bool,
}

impl ResponsesModel {
    /// Creates a client of the model `name` behind Responses.
    pub fn new(endpoints: Arc<Endpoints>, name: &str, retries: ModelRetries) -> Self {
        Self {
            client: ModelClient::new(endpoints, RESPONSES, name, retries),
            speaks_chat: false,
        }
    }

    /// Creates a client of the model `name` behind Chat Completions.
    pub fn over_chat(endpoints: Arc<Endpoints>, name: &str, retries: ModelRetries) -> Self {
        Self {
            client: ModelClient::new(endpoints, CHAT_COMPLETIONS, name, retries),
            speaks_chat: true,
        }
    }

    /// Returns the fields that the request sets itself, including `model` if the agent has a model name.
    fn own_fields(&self) -> &[&'static str] {
        match self.client.name() {
            "" => &["input"],
            _ => &["input", "model"],
        }
    }

    fn chat_request(&self, request: &ResponseRequest<'_>) -> Result<RequestBody, Failure> {
        let input = request.input.iter();
        let input: Result<Vec<Value>, _> =
            input.map(|item| serde_json::from_str(item.get())).collect();
        let refuse = |why: String| {
            let why = format!(
                "{}: turn {}: the conversation can't be sent: {why}",
                self.client.address(),
                request.turn
            );
            Failure::new(FailureClass::Data, why)
        };
        let input = input.map_err(|source| refuse(source.to_string()))?;
        let chat = request_from_responses(request.params, &input)
            .map_err(|source| refuse(source.to_string()))?;
        let mut body = RequestBody::new(self.client.name())?;
        body.parameters(&chat, self.own_fields())?;
        Ok(body)
    }

    fn responses_request(&self, request: &ResponseRequest<'_>) -> Result<RequestBody, Failure> {
        let mut body = RequestBody::new(self.client.name())?;
        body.parameters(request.params, self.own_fields())?;
        body.list("input", request.input.iter())?;
        Ok(body)
    }
}

#[async_trait]
impl Responder for ResponsesModel {
    async fn respond(
        &self,
        request: ResponseRequest<'_>,
        cookies: &mut CookieJar,
        log: &CallLog,
    ) -> Result<ModelResponse, Failure> {
        let body = if self.speaks_chat {
            self.chat_request(&request)?
        } else {
            self.responses_request(&request)?
        };
        let posted = self
            .client
            .post(request.turn, body.finish(), Some(cookies), log, None)
            .await?;
        let text = if self.speaks_chat {
            said_as_response(&posted, request.params)?
        } else {
            let body = posted.body.to_vec();
            String::from_utf8(body).map_err(|_| refuse(&posted, "it is not UTF-8"))?
        };
        let response = ModelResponse::parse(text).map_err(|why| refuse(&posted, &why))?;
        if let Some(usage) = &response.usage {
            let tokens = |name: &str| usage.get(name).and_then(Value::as_u64);
            posted
                .open
                .used(tokens("input_tokens"), tokens("output_tokens"));
        }
        check_error(&response, &posted)?;
        Ok(response)
    }

    fn address(&self) -> String {
        self.client.address()
    }
}

fn said_as_response(posted: &Posted, params: &Map<String, Value>) -> Result<String, Failure> {
    let completion: Map<String, Value> = serde_json::from_slice(&posted.body)
        .map_err(|source| refuse(posted, &source.to_string()))?;
    let response = response_from_chat(&completion, params)
        .map_err(|source| refuse(posted, &source.to_string()))?;
    serde_json::to_string(&response).map_err(|source| refuse(posted, &source.to_string()))
}

/// Returns the failure that a response reports: a model can fail with status 200.
fn check_error(response: &ModelResponse, posted: &Posted) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct ErrorField {
        error: Option<ModelFailure>,
    }
    #[derive(Deserialize)]
    struct ModelFailure {
        code: Option<Value>,
        message: Option<String>,
    }
    let fields: ErrorField = serde_json::from_str(&response.text)
        .map_err(|source| refuse(posted, &source.to_string()))?;
    let Some(error) = fields.error else {
        return Ok(());
    };
    let code = error.code.as_ref().and_then(Value::as_str);
    let code = code.unwrap_or_default();
    let class = match code {
        "server_error" | "rate_limit_exceeded" | "vector_store_timeout" => FailureClass::Infra,
        _ => FailureClass::Data,
    };
    let message = error.message.unwrap_or_default();
    let why = format!("the model failed ({code}): {message}");
    Err(posted.refuse(class, &why))
}

fn refuse(posted: &Posted, why: &str) -> Failure {
    let why = format!("the answer is no response: {why}{}", posted.quote());
    posted.refuse(FailureClass::Data, &why)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;
    use crate::call::scripted::{Answer, ScriptedServer, http, log};

    async fn respond(
        answer: Answer,
        over_chat: bool,
    ) -> (String, Result<ModelResponse, Failure>, CallLog) {
        let server = ScriptedServer::start(move |_| answer.clone()).await;
        let urls = [server.url().to_owned()];
        let endpoints = Endpoints::new("m", &urls, &HeaderMap::new(), &http()).unwrap();
        let model = if over_chat {
            ResponsesModel::over_chat(endpoints, "m", ModelRetries::default())
        } else {
            ResponsesModel::new(endpoints, "m", ModelRetries::default())
        };
        let params = json!({"model": "other", "temperature": 0.5, "stream": true});
        let item = r#"{"role": "user",  "content": "1.50"}"#;
        let input = [RawValue::from_string(item.to_owned()).unwrap()];
        let request = ResponseRequest {
            turn: 1,
            params: params.as_object().unwrap(),
            input: &input,
        };
        let log = log(0);
        let mut cookies = CookieJar::default();
        let response = model.respond(request, &mut cookies, &log).await;
        let mut set = HeaderMap::new();
        let origin = url::Url::parse(server.url()).unwrap().origin();
        cookies.add_to(&origin, &mut set);
        assert_eq!(set.len(), 1);
        (server.received().remove(0).text, response, log)
    }

    fn answering(body: impl ToString) -> Answer {
        Answer::ok(body).with("set-cookie", "s=1")
    }

    #[tokio::test]
    async fn items_go_and_come_as_they_are_written() {
        let body = r#"{"id": "r", "output": [{"type":"message",  "x": 1.50}], "error": null,
                       "usage": {"input_tokens": 7, "output_tokens": 2}}"#;
        let (sent, response, log) = respond(answering(body), false).await;
        assert_eq!(
            sent,
            r#"{"model":"m","temperature":0.5,"input":[{"role": "user",  "content": "1.50"}]}"#
        );
        let response = response.unwrap();
        assert_eq!(response.text, body);
        assert_eq!(
            response.output[0].get(),
            r#"{"type":"message",  "x": 1.50}"#
        );
        let end = log.take().remove(0).end.unwrap();
        assert_eq!((end.input_tokens, end.output_tokens), (Some(7), Some(2)));
    }

    #[tokio::test]
    async fn a_chat_completion_is_read_as_a_response() {
        let body = json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        });
        let (sent, response, log) = respond(answering(body), true).await;
        let sent: Value = serde_json::from_str(&sent).unwrap();
        assert_eq!(sent["model"], "m");
        assert_eq!(sent["temperature"], 0.5);
        assert_eq!(sent["messages"][0]["role"], "user");
        assert_eq!(sent.get("stream"), None);
        let response = response.unwrap();
        assert!(response.output[0].get().contains("hi"));
        let end = log.take().remove(0).end.unwrap();
        assert_eq!((end.input_tokens, end.output_tokens), (Some(7), Some(2)));
    }

    #[tokio::test]
    async fn a_failure_with_status_200_is_one() {
        for (body, over_chat, class) in [
            (
                json!({"output": [], "error": {"code": "server_error", "message": "oh"}}),
                false,
                FailureClass::Infra,
            ),
            (
                json!({"output": [], "error": {"code": "invalid_prompt", "message": "oh"}}),
                false,
                FailureClass::Data,
            ),
            (json!({"output": 3}), false, FailureClass::Data),
            (json!([]), false, FailureClass::Data),
            (json!({"choices": []}), true, FailureClass::Data),
        ] {
            let (_, response, log) = respond(answering(&body), over_chat).await;
            let failure = response.unwrap_err();
            assert_eq!(failure.class, class, "{body}");
            let end = log.take().remove(0).end.unwrap();
            assert_eq!(end.failure, Some(class), "{body}");
        }
    }
}
