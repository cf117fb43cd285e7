use std::fmt::Debug;

use async_trait::async_trait;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::retry::Failure;
use crate::turn::{CookieJar, TurnLog};

/// A model that goes on with a conversation of OpenAI's Responses.
#[async_trait]
pub trait Responder: Debug + Send + Sync {
    /// Asks for the next items. Every request is in `log`.
    ///
    /// # Errors
    /// No server of the model gave a whole answer that can be read.
    async fn respond(
        &self,
        request: ResponseRequest<'_>,
        cookies: &mut CookieJar,
        log: &TurnLog,
    ) -> Result<ModelResponse, Failure>;

    /// Where it is, without secrets, for people to read.
    fn address(&self) -> String;
}

/// A conversation that is to be gone on with.
#[derive(Debug, Clone, Copy)]
pub struct ResponseRequest<'a> {
    /// Number of the turn, from 1.
    pub turn: u32,
    /// What the task says of it but for `input`.
    pub params: &'a Map<String, Value>,
    /// The items so far.
    pub input: &'a [Box<RawValue>],
}

/// What a model answered.
#[derive(Debug, Clone)]
pub struct ModelResponse {
    /// The whole Responses object as JSON text.
    pub text: String,
    /// Its `output`.
    pub output: Vec<Box<RawValue>>,
    /// Its `usage`, where it has one.
    pub usage: Option<Map<String, Value>>,
    /// Its `incomplete_details` is there and not null.
    pub is_incomplete: bool,
}

impl ModelResponse {
    /// Reads a Responses object; its items stay as they are written.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: String) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct Fields {
            output: Vec<Box<RawValue>>,
            #[serde(default)]
            usage: Option<Map<String, Value>>,
            #[serde(default)]
            incomplete_details: Option<serde::de::IgnoredAny>,
        }
        let fields: Fields = serde_json::from_str(&text).map_err(|source| source.to_string())?;
        Ok(Self {
            output: fields.output,
            usage: fields.usage,
            is_incomplete: fields.incomplete_details.is_some(),
            text,
        })
    }
}
