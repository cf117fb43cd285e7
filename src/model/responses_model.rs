use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::chat::{request_from_responses, response_from_chat};
use super::request_body::RequestBody;
use super::{CHAT_COMPLETIONS, Endpoints, ModelClient, Repetition};
use super::{ModelResponse, Responder, ResponseRequest};
use crate::failure::{Failure, FailureClass};
use crate::turn::{CookieJar, Posted, TurnLog};

/// Path of Responses below a server's address.
pub const RESPONSES: &str = "v1/responses";

/// A model behind Responses, or behind Chat Completions that Responses are said in.
#[derive(Debug)]
pub struct ResponsesModel {
    client: ModelClient,
    speaks_chat: bool,
}

impl ResponsesModel {
    /// The model `name` behind Responses.
    pub fn new(endpoints: Arc<Endpoints>, name: &str, repetition: Repetition) -> Self {
        Self {
            client: ModelClient::new(endpoints, RESPONSES, name, repetition),
            speaks_chat: false,
        }
    }

    /// The model `name` behind Chat Completions.
    pub fn over_chat(endpoints: Arc<Endpoints>, name: &str, repetition: Repetition) -> Self {
        Self {
            client: ModelClient::new(endpoints, CHAT_COMPLETIONS, name, repetition),
            speaks_chat: true,
        }
    }

    /// What is said of the model in a request: its name is the one that its servers know.
    fn own_fields(&self) -> &[&'static str] {
        match self.client.name() {
            "" => &["input"],
            _ => &["input", "model"],
        }
    }

    fn chat_request(&self, request: &ResponseRequest<'_>) -> Result<RequestBody, Failure> {
        let input: Result<Vec<Value>, _> = request
            .input
            .iter()
            .map(|item| serde_json::from_str(item.get()))
            .collect();
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
        log: &TurnLog,
    ) -> Result<ModelResponse, Failure> {
        let body = match self.speaks_chat {
            true => self.chat_request(&request)?,
            false => self.responses_request(&request)?,
        };
        let posted = self
            .client
            .post(request.turn, body.finish(), Some(cookies), log, None)
            .await?;
        let text = match self.speaks_chat {
            true => said_as_response(&posted, request.params)?,
            false => {
                let body = posted.body.to_vec();
                String::from_utf8(body).map_err(|_| refuse(&posted, "it is not UTF-8"))?
            }
        };
        let response = ModelResponse::parse(text).map_err(|why| refuse(&posted, &why))?;
        if let Some(usage) = &response.usage {
            let tokens = |name: &str| usage.get(name).and_then(Value::as_u64);
            posted
                .turn
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

/// A model can fail with status 200: the response says so then.
fn check_error(response: &ModelResponse, posted: &Posted) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Fields {
        error: Option<Error>,
    }
    #[derive(Deserialize)]
    struct Error {
        code: Option<Value>,
        message: Option<String>,
    }
    let fields: Fields = serde_json::from_str(&response.text)
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
