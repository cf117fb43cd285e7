use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::HeaderMap;
use url::Url;

use super::episode;
use super::judge::{Wording, judge};
use super::{Agent, AgentError, Answer, Reply, RolloutRequest};
use crate::gym::GymRules;
use crate::http::{Call, Destination, Holder, HttpClients, Secrets};
use crate::http::{headers_that_matter, with_connect_time};
use crate::retry::{Failure, FailureClass};

/// An agent server of NeMo Gym: `POST /run` with the row answers the verify response.
#[derive(Debug)]
pub struct NemoGymAgent {
    run: Destination,
    what: String,
    /// What the headers hold that must not be repeated.
    secrets: Secrets,
    rules: &'static GymRules,
}

impl NemoGymAgent {
    /// The agent at `base`, which follows these rules; `headers` go with every request.
    ///
    /// # Errors
    /// The address can't be used.
    pub fn new(
        name: &str,
        base: &str,
        headers: HeaderMap,
        http: HttpClients,
        rules: &'static GymRules,
    ) -> Result<Self, AgentError> {
        let refuse = |reason: String| AgentError::Address {
            agent: name.to_owned(),
            url: base.to_owned(),
            reason,
        };
        let mut run = Url::parse(base).map_err(|source| refuse(source.to_string()))?;
        if !matches!(run.scheme(), "http" | "https") || !run.has_host() {
            return Err(refuse("give http://host:port".into()));
        }
        let path = format!("{}/run", run.path().trim_end_matches('/'));
        run.set_path(&path);
        let what = format!("POST {run}");
        let secrets = Secrets::of(&headers);
        Ok(Self {
            run: Destination::new(run, headers, http),
            what,
            secrets,
            rules,
        })
    }

    async fn call(&self, request: RolloutRequest, call: &Call<'_>) -> Reply {
        let episode = match self.rules.routing {
            true => episode::request(&request.body),
            false => Ok(None),
        };
        let (body, is_episode) = match episode {
            Ok(Some(episode)) => (Bytes::from(episode), true),
            Ok(None) => (request.body, false),
            Err(why) => return Reply::new(Err(call.failure(FailureClass::Data, &why))),
        };
        let posted = self.run.post(self.run.headers(), &body, call);
        let response = match posted.await {
            Ok(response) => response,
            Err(failure) => {
                return Reply {
                    elapsed: call.began.elapsed(),
                    ..Reply::new(Err(failure))
                };
            }
        };
        let first_byte = call.began.elapsed();
        let status = response.status().as_u16();
        let headers = headers_that_matter(response.headers());
        let body = match status {
            200 => self.run.body(response, Holder::Lander, call).await,
            _ => Err(Box::pin(call.status_error(response)).await),
        };
        // What follows is our own work, and not the server's.
        let elapsed = call.began.elapsed();
        Reply {
            http_status: Some(status),
            headers,
            first_byte: Some(first_byte),
            elapsed,
            ..Reply::new(body.and_then(|body| match is_episode {
                true => judge_call(record(body, call)?, self.rules, call),
                false => judge_call(body, self.rules, call),
            }))
        }
    }
}

#[async_trait]
impl Agent for NemoGymAgent {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let call = Call {
            what: &self.what,
            began: Instant::now(),
            secrets: &self.secrets,
        };
        let (reply, connect) = with_connect_time(self.call(request, &call)).await;
        Reply { connect, ..reply }
    }

    fn address(&self) -> &str {
        self.what
            .trim_start_matches("POST ")
            .trim_end_matches("/run")
    }
}

/// The answer to an episode as the record of a rollout.
fn record(body: Bytes, call: &Call<'_>) -> Result<Bytes, Failure> {
    match episode::record(&body) {
        Ok(Some(record)) => Ok(Bytes::from(record)),
        Ok(None) => Ok(body),
        Err(why) => Err(call.failure(FailureClass::Data, &why)),
    }
}

fn judge_call(body: Bytes, rules: &GymRules, call: &Call<'_>) -> Result<Answer, Failure> {
    judge(
        body,
        !rules.unscored,
        &Wording {
            failure: &|class, why| call.failure(class, why),
            quote: &|body| call.quote(body),
            shown: &|text| call.secrets.shown(text),
        },
    )
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;
    use crate::gym::GYM_05;

    fn class_of(body: &[u8]) -> Option<(FailureClass, bool)> {
        let call = Call {
            what: "POST http://a/run",
            began: Instant::now(),
            secrets: &Secrets::default(),
        };
        judge_call(Bytes::copy_from_slice(body), &GYM_05, &call)
            .err()
            .map(|failure| (failure.class, failure.failure_terminal))
    }

    #[test]
    fn a_secret_that_is_repeated_is_not_quoted() {
        let mut headers = HeaderMap::new();
        let mut token = HeaderValue::from_static("Bearer hunter2hunter2");
        token.set_sensitive(true);
        headers.insert("authorization", token);
        let call = Call {
            what: "POST http://a/run",
            began: Instant::now(),
            secrets: &Secrets::of(&headers),
        };
        let body = Bytes::from_static(b"invalid key hunter2hunter2 (Bearer hunter2hunter2)");
        let failure = judge_call(body, &GYM_05, &call).unwrap_err();
        assert!(!failure.message.contains("hunter2"), "{failure:?}");
        assert!(
            failure.message.contains("invalid key [secret]"),
            "{failure:?}"
        );
    }

    #[test]
    fn answers_are_judged_by_the_contract() {
        assert_eq!(class_of(br#"{"reward": 1}"#), None);
        assert_eq!(class_of(b"<html>"), Some((FailureClass::Data, false)));
        assert_eq!(class_of(b"\xff{}"), Some((FailureClass::Data, false)));
        let deep = format!(
            r#"{{"reward": 1, "x": {}{}}}"#,
            "[".repeat(9999),
            "]".repeat(9999)
        );
        assert_eq!(class_of(deep.as_bytes()), Some((FailureClass::Data, false)));
        assert_eq!(
            class_of(br#"{"accuracy": 1}"#),
            Some((FailureClass::Data, false))
        );
        assert_eq!(
            class_of(br#"{"reward": 1, "_ng_no_persist": true}"#),
            Some((FailureClass::NotPersisted, false))
        );
        assert_eq!(
            class_of(br#"{"reward": 1, "_ng_failure_class": ""}"#),
            Some((FailureClass::AgentFlagged, false))
        );
        assert_eq!(
            class_of(br#"{"_ng_failure_class": "x", "_ng_failure_terminal": 1}"#),
            Some((FailureClass::AgentFlagged, true))
        );
        assert_eq!(
            class_of(br#"{"reward": 1, "_ng_failure_class": null}"#),
            None
        );
    }
}
