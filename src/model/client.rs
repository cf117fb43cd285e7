use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::sleep;

use super::Endpoints;
use crate::call::{CallKind, CallLog, CallSpec, CookieJar, Post, Posted, Target};
use crate::retry::{Backoff, Failure, FailureClass};

/// The longest `Retry-After` that is waited for here. A failure carries a longer one, so that all rollouts wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The rules for retries of calls to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelRetries {
    /// The most retries of a call whose server, or the network to it, failed.
    pub retries: u32,
    /// The wait before each retry.
    pub backoff: Backoff,
    /// The longest time of each try, to the last byte of the answer.
    pub deadline: Option<Duration>,
}

impl Default for ModelRetries {
    /// Returns two retries, after at most half a second and one second.
    fn default() -> Self {
        Self {
            retries: 2,
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(20),
            },
            deadline: None,
        }
    }
}

/// The client of a model, at one path of its servers.
#[derive(Debug)]
pub struct ModelClient {
    endpoints: Arc<Endpoints>,
    targets: Vec<Target>,
    name: Arc<str>,
    retries: ModelRetries,
    kind: CallKind,
}

impl ModelClient {
    /// Creates a client of the model `name` at `path` of `endpoints`.
    pub fn new(
        endpoints: Arc<Endpoints>,
        path: &str,
        name: impl Into<Arc<str>>,
        retries: ModelRetries,
    ) -> Self {
        let targets = endpoints.targets().iter();
        Self {
            targets: targets.map(|target| target.at(path)).collect(),
            endpoints,
            name: name.into(),
            retries,
            kind: CallKind::Model,
        }
    }

    /// Sets the purpose of its calls.
    #[must_use]
    pub fn of_kind(self, kind: CallKind) -> Self {
        Self { kind, ..self }
    }

    /// Returns the name of the model, as it is sent; empty if none is sent.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the addresses, without secrets, for people to read.
    pub fn address(&self) -> String {
        let addresses: Vec<&str> = self.targets.iter().map(Target::address).collect();
        addresses.join(", ")
    }

    /// Sends a call until an answer has status 200. Failures of servers and networks and passed deadlines are retried,
    /// at another endpoint if there is one; failures that the request itself seems to cause are not. `log` gets each
    /// try. `cookies` are sent with each try and updated by it. No try begins after `until`.
    ///
    /// # Errors
    /// The failure of the last try. If a server asked for a wait of more than a minute, or beyond `until`, its
    /// `retry_after` says how long.
    pub async fn post(
        &self,
        turn: u32,
        body: Bytes,
        mut cookies: Option<&mut CookieJar>,
        log: &CallLog,
        until: Option<Instant>,
    ) -> Result<Posted, Failure> {
        let mut call = CallSpec::new(turn, self.kind, Arc::clone(&self.name));
        let ModelRetries {
            retries,
            backoff,
            deadline,
        } = self.retries;
        let mut failed_at = Vec::new();
        loop {
            let chosen = self.endpoints.choose(&failed_at, Instant::now());
            let Some(target) = self.targets.get(chosen.index()) else {
                let why = format!("the model '{}' has no address", self.name);
                return Err(Failure::new(FailureClass::Data, why));
            };
            let open = target.begin(&call, log)?;
            let again = call.again(&open);
            let post = Post {
                call,
                body: body.clone(),
                cookies: cookies.as_deref_mut(),
                deadline: deadline.map(|limit| (limit, "generation_timeout")),
            };
            let posted = target.send(post, open).await;
            let posted = posted.and_then(|posted| posted.ok().map(drop).map(|()| posted));
            let mut failure = match posted {
                Ok(posted) => {
                    chosen.succeeded();
                    return Ok(posted);
                }
                Err(failure) => failure,
            };
            if !failure.class.is_transient() {
                chosen.succeeded();
                failure.message.push_str(advice(failure.http_status));
                return Err(failure);
            }
            let now = Instant::now();
            chosen.failed(failure.retry_after, now);
            failed_at.push(chosen.index());
            drop(chosen);
            let failures = u32::try_from(failed_at.len()).unwrap_or(u32::MAX);
            if failures > retries {
                return Err(failure);
            }
            let asked = self.endpoints.left_alone(&failed_at, now);
            let wait = asked.max(backoff.jittered(failures, fastrand::f64()));
            if asked > LONGEST_WAIT || until.is_some_and(|until| now + wait >= until) {
                if !asked.is_zero() {
                    failure.retry_after = Some(asked);
                }
                return Err(failure);
            }
            sleep(wait).await;
            call = again;
        }
    }
}

/// Returns what to do about a status that no other request of this kind would change.
fn advice(status: Option<u16>) -> &'static str {
    match status {
        Some(401 | 403) => {
            "; name the environment variable that holds the key of the endpoint: --bearer-token-env, or \
             --judge-token-env for a judge"
        }
        Some(404 | 405) => "; check the address and the name of the model",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::*;
    use crate::call::scripted::{Answer, ScriptedServer, http, log};

    const AT_ONCE: ModelRetries = ModelRetries {
        retries: 2,
        backoff: Backoff {
            base: Duration::ZERO,
            cap: Duration::ZERO,
        },
        deadline: None,
    };

    fn client(urls: &[&str]) -> ModelClient {
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        let endpoints = Endpoints::new("m", &urls, &HeaderMap::new(), &http()).unwrap();
        ModelClient::new(endpoints, "v1/completions", "m", AT_ONCE)
    }

    async fn post(client: &ModelClient, log: &CallLog) -> Result<Posted, Failure> {
        let body = Bytes::from_static(b"{}");
        client.post(1, body, None, log, None).await
    }

    /// Starts a server that returns the answers one after the other.
    async fn answering(answers: Vec<Answer>) -> ScriptedServer {
        let mut answers = answers.into_iter();
        ScriptedServer::start(move |_| answers.next().unwrap()).await
    }

    #[tokio::test]
    async fn a_failure_is_retried_and_each_try_is_a_row() {
        let limited = Answer::status(429, "slow down").with("retry-after", 0);
        let server = answering(vec![Answer::status(500, ""), limited, Answer::ok("{}")]).await;
        let log = log(1);
        let posted = post(&client(&[server.url()]), &log).await.unwrap();
        assert_eq!(posted.body, "{}");
        let received = server.received();
        let ids: Vec<_> = received
            .iter()
            .map(|request| request.header("x-request-id").unwrap())
            .collect();
        assert_eq!(ids, ["3-1-a0-c0", "3-1-a0-c0-t1", "3-1-a0-c0-t2"]);
        assert_eq!(received[0].path, "/v1/completions");
        let rows = log.take().into_iter().map(|row| {
            let end = row.end.unwrap();
            (row.start.retry, end.http_status, end.failure)
        });
        let infra = Some(FailureClass::Infra);
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                (0, Some(500), infra),
                (1, Some(429), infra),
                (2, Some(200), None)
            ]
        );
    }

    #[tokio::test]
    async fn the_last_failure_is_given_when_the_retries_are_spent() {
        let limited = Answer::status(429, "no").with("retry-after-ms", 1);
        let server = answering(vec![limited; 3]).await;
        let failure = post(&client(&[server.url()]), &log(0)).await.unwrap_err();
        assert_eq!(server.received().len(), 3);
        assert_eq!(failure.http_status, Some(429));
        assert_eq!(failure.retry_after, Some(Duration::from_millis(1)));
    }

    #[tokio::test]
    async fn what_the_request_causes_is_not_retried() {
        let server = answering(vec![Answer::status(400, "the context is too long")]).await;
        let failure = post(&client(&[server.url()]), &log(0)).await.unwrap_err();
        assert_eq!(server.received().len(), 1);
        assert_eq!(
            (failure.class, failure.http_status),
            (FailureClass::Data, Some(400))
        );
        assert!(failure.message.contains("too long"), "{failure:?}");
    }

    #[tokio::test]
    async fn a_retry_goes_to_another_server_and_the_next_call_does_too() {
        let bad =
            ScriptedServer::start(|_| Answer::status(503, "starting").with("retry-after", 3600))
                .await;
        let good = ScriptedServer::start(|_| Answer::ok("{}")).await;
        let client = client(&[bad.url(), good.url()]);
        for call in 0..3 {
            post(&client, &log(call)).await.unwrap();
        }
        assert_eq!((bad.received().len(), good.received().len()), (1, 3));
    }

    #[tokio::test]
    async fn a_server_that_is_gone_is_left_for_another() {
        let good = ScriptedServer::start(|_| Answer::ok("{}")).await;
        let log = log(0);
        let client = client(&["http://127.0.0.1:1", good.url()]);
        post(&client, &log).await.unwrap();
        let rows = log.take();
        assert_eq!(rows.len(), 2);
        let first = rows[0].end.as_ref().unwrap();
        assert_eq!(
            (first.failure, first.http_status),
            (Some(FailureClass::Infra), None)
        );
    }

    #[tokio::test]
    async fn who_asks_for_a_long_wait_is_not_waited_for_here() {
        let limited = Answer::status(429, "").with("retry-after", 61);
        let server = answering(vec![limited]).await;
        let failure = post(&client(&[server.url()]), &log(0)).await.unwrap_err();
        assert_eq!(failure.http_status, Some(429));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(61)));
    }

    #[tokio::test]
    async fn no_try_begins_after_the_deadline() {
        let limited = Answer::status(429, "").with("retry-after", 30);
        let server = answering(vec![limited]).await;
        let until = Instant::now() + Duration::from_secs(20);
        let body = Bytes::from_static(b"{}");
        let client = client(&[server.url()]);
        let failure = client
            .post(1, body, None, &log(0), Some(until))
            .await
            .unwrap_err();
        assert_eq!(failure.retry_after, Some(Duration::from_secs(30)));
    }
}
