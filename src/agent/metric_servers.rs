use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};

use reqwest::Body;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use tokio::sync::OnceCell;
use url::Url;

use super::registry::headers;
use super::{AgentError, HeadServer};
use crate::config::{AgentSettings, ServerUrl, Settings};
use crate::http::{Call, ClientError, Holder, HttpClients, HttpSettings, Response, Secrets};
use crate::retry::{Failure, FailureClass};

/// The longest time to open a connection: a server that takes longer is assumed to be gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer that is accepted, in bytes after decompression.
const MAX_ANSWER: u64 = 256 << 20;

/// The addresses of agents that are asked for metrics, and the longest wait for each.
#[derive(Debug, Clone, Default)]
pub struct MetricServerOptions {
    /// The addresses of agents, which take precedence.
    pub urls: BTreeMap<String, ServerUrl>,
    /// The head server that knows the other agents.
    pub head_server: Option<ServerUrl>,
    /// The agents that runs recorded. Their addresses count if there is no `head_server`.
    pub recorded: Vec<RecordedAgents>,
    /// Deadline of a request, from the first byte sent to the last one received.
    pub timeout: Duration,
    /// Whether it is worth a word that an agent has no metrics of its own.
    pub must_have: bool,
}

/// The agents of a run as they were when the run was collected.
#[derive(Debug, Clone, Default)]
pub struct RecordedAgents {
    /// Settings of the run, which also name the variables that hold secrets.
    pub settings: Settings,
    /// The address of each agent.
    pub addresses: BTreeMap<String, String>,
}

fn clients(timeout: Duration, most: u64) -> Result<HttpClients, ClientError> {
    HttpClients::new(&HttpSettings {
        connections: 1,
        connect_timeout: CONNECT_TIMEOUT.min(timeout),
        first_byte_timeout: None,
        read_timeout: timeout,
        max_body: most,
        body_memory: most,
    })
}

/// Asks the servers of agents for the metrics that benchmarks define there: `POST
/// /aggregate_metrics`.
#[derive(Debug)]
pub struct MetricServers {
    http: HttpClients,
    options: MetricServerOptions,
    /// The head servers or the reason why one is missing: first the given one, then those of the runs.
    heads: Vec<OnceCell<Result<HeadServer, String>>>,
}

impl MetricServers {
    /// Creates the client. Sends nothing yet.
    ///
    /// # Errors
    /// TLS could not be set up.
    pub fn new(options: MetricServerOptions) -> Result<Self, AgentError> {
        let http = clients(options.timeout, MAX_ANSWER)?;
        let heads = (0..=options.recorded.len()).map(|_| OnceCell::new());
        Ok(Self {
            http,
            heads: heads.collect(),
            options,
        })
    }

    /// Whether it is worth a word that an agent has no metrics of its own.
    pub fn must_have(&self) -> bool {
        self.options.must_have
    }

    /// Returns whether an agent has a server that can be asked. Agents that rollstream runs itself have none.
    ///
    /// # Errors
    /// No address is known for it.
    pub async fn is_there(&self, agent: &str) -> Result<bool, String> {
        if self.runs_here(agent) {
            return Ok(false);
        }
        self.address(agent).await.map(|_| true)
    }

    /// Sends an agent the answers of its rollouts, as the JSON document that `body` holds, and returns
    /// its answer; none if its server has no metrics (404 or 405).
    ///
    /// # Errors
    /// There is no answer. The text says why, without secrets.
    pub async fn ask(&self, agent: &str, body: File) -> Result<Option<String>, String> {
        let base = self.address(agent).await?;
        let headers = self.headers(agent).map_err(|error| error.to_string())?;
        let mut url = Url::parse(&base).map_err(|error| format!("its address: {error}"))?;
        let path = format!("{}/aggregate_metrics", url.path().trim_end_matches('/'));
        url.set_path(&path);
        let call = Call {
            what: &format!("POST {url}"),
            began: Instant::now(),
            secrets: &Secrets::of(&headers),
        };
        let posted = self.post(url, headers, body, &call);
        match tokio::time::timeout(self.options.timeout, posted).await {
            Ok(answer) => answer.map_err(|failure| failure.message),
            Err(_) => {
                let timeout = humantime::format_duration(self.options.timeout);
                let why = format!(
                    "no whole answer within {timeout}; ask again with `rollstream aggregate RUN \
                     --agent-metrics --agent-metrics-timeout TIME`"
                );
                Err(call.failure(FailureClass::Timeout, &why).message)
            }
        }
    }

    async fn post(
        &self,
        url: Url,
        headers: HeaderMap,
        body: File,
        call: &Call<'_>,
    ) -> Result<Option<String>, Failure> {
        let failed = |why: String| call.failure(FailureClass::Data, &why);
        let length = body.metadata().map_err(|error| failed(error.to_string()))?;
        let request = self
            .http
            .for_url(&url)
            .post(url)
            .headers(headers)
            .header(CONTENT_TYPE, "application/json")
            .header(CONTENT_LENGTH, length.len())
            .body(Body::from(tokio::fs::File::from_std(body)));
        let response = self.http.send(request, call).await?;
        match response.status().as_u16() {
            200 => self.text(response, call).await.map(Some),
            404 | 405 => Ok(None),
            _ => Err(call.status_error(response).await),
        }
    }

    async fn text(&self, response: Response, call: &Call<'_>) -> Result<String, Failure> {
        let body = self.http.body(response, Holder::Caller, call).await?;
        String::from_utf8(body.into())
            .map_err(|_| call.failure(FailureClass::Data, "the answer is not UTF-8"))
    }

    /// Returns the address of an agent.
    async fn address(&self, agent: &str) -> Result<String, String> {
        if let Some(url) = self.options.urls.get(agent) {
            return Ok(url.to_string());
        }
        if let Some(head) = &self.options.head_server {
            return self.address_by(0, head, agent).await;
        }
        let mut why = None;
        for (number, run) in (1..).zip(&self.options.recorded) {
            let own = run.settings.agents.get(agent);
            if let Some(url) = own.and_then(|own| own.url.as_ref()) {
                return Ok(url.to_string());
            }
            if let Some(head) = &run.settings.head_server {
                match self.address_by(number, head, agent).await {
                    Ok(address) => return Ok(address),
                    Err(error) => why = Some(error),
                }
            }
            // The run recorded an address that its head server, now gone, once had.
            let recorded = run.addresses.get(agent);
            if let Some(address) = recorded.filter(|address| !address.is_empty()) {
                return Ok(address.clone());
            }
        }
        Err(why.unwrap_or_else(|| {
            "no address is known for it; give --agent-url NAME=URL or --head-server URL".to_owned()
        }))
    }

    async fn address_by(
        &self,
        number: usize,
        url: &ServerUrl,
        agent: &str,
    ) -> Result<String, String> {
        let ask = || async {
            let asked = HeadServer::ask(url.as_str(), &self.http).await;
            asked.map_err(|error| error.to_string())
        };
        let head = match self.heads.get(number) {
            Some(head) => head.get_or_init(ask).await.as_ref(),
            None => return Err(format!("head server {url} was not asked")),
        };
        let head = head.map_err(Clone::clone)?;
        let mut found = head
            .environment_addresses(std::iter::once(agent), None)
            .or_else(|_| head.addresses(std::iter::once(agent)))
            .map_err(|error| error.to_string())?;
        let unknown = || format!("head server {url} does not know it");
        found.remove(agent).ok_or_else(unknown)
    }

    /// Returns whether rollstream runs the agent itself, without a server.
    fn runs_here(&self, agent: &str) -> bool {
        let recorded = self.options.recorded.iter();
        let mut own = recorded.filter_map(|run| run.settings.agents.get(agent));
        own.any(AgentSettings::runs_here)
    }

    /// Returns the headers of an agent, as configured in the run that recorded it.
    fn headers(&self, agent: &str) -> Result<HeaderMap, AgentError> {
        let mut recorded = self.options.recorded.iter();
        let run = recorded.find(|run| run.addresses.contains_key(agent));
        let settings = run.map(|run| run.settings.clone()).unwrap_or_default();
        let none = AgentSettings::default();
        let own = settings.agents.get(agent).unwrap_or(&none);
        headers(agent, own, &settings)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::net::TcpListener;

    use super::*;

    fn servers(options: MetricServerOptions) -> MetricServers {
        MetricServers::new(MetricServerOptions {
            timeout: Duration::from_secs(60),
            ..options
        })
        .unwrap()
    }

    fn at(url: &str) -> MetricServerOptions {
        MetricServerOptions {
            urls: BTreeMap::from([("a".to_owned(), url.parse().unwrap())]),
            ..MetricServerOptions::default()
        }
    }

    fn body(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file
    }

    /// Answers one request with `answer`. Returns the address and the request.
    fn answering(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).unwrap();
                request.extend_from_slice(&bytes[..read]);
            }
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            // The client may have closed the connection.
            let _ = stream.write_all(format!("{head}{answer}").as_bytes());
            String::from_utf8(request).unwrap()
        });
        (url, thread)
    }

    #[tokio::test]
    async fn a_file_is_sent_with_its_length_and_the_answer_is_given_as_it_is() {
        let (url, thread) = answering("{\"x\": 1.50}");
        let answer = servers(at(&url)).ask("a", body("{\"y\":[]}")).await;
        assert_eq!(answer.unwrap().as_deref(), Some("{\"x\": 1.50}"));
        let request = thread.join().unwrap().to_lowercase();
        assert!(
            request.starts_with("post /aggregate_metrics http/1.1\r\n"),
            "{request}"
        );
        for part in ["\r\ncontent-length: 8\r\n", "\r\n\r\n{\"y\":[]}"] {
            assert!(request.contains(part), "{request}");
        }
        assert!(!request.contains("transfer-encoding"), "{request}");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_left() {
        let (url, thread) = answering("{\"x\": 1.50}");
        let servers = MetricServers {
            http: clients(Duration::from_secs(60), 8).unwrap(),
            ..servers(at(&url))
        };
        let error = servers.ask("a", body("{}")).await.unwrap_err();
        assert!(
            error.contains("the answer is larger than 8 bytes") && error.contains(&url),
            "{error}"
        );
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn an_agent_is_looked_for_where_it_was() {
        let url = |text: &str| -> ServerUrl { text.parse().unwrap() };
        let gone = Some(url("http://127.0.0.1:1"));
        let recorded = |head_server: Option<ServerUrl>| {
            let own = AgentSettings {
                url: Some(url("http://own")),
                ..AgentSettings::default()
            };
            RecordedAgents {
                settings: Settings {
                    head_server,
                    agents: BTreeMap::from([("own".to_owned(), own)]),
                    ..Settings::default()
                },
                addresses: BTreeMap::from([
                    ("a".to_owned(), "http://was".to_owned()),
                    ("imported".to_owned(), String::new()),
                ]),
            }
        };
        let options = MetricServerOptions {
            urls: BTreeMap::from([("given".to_owned(), url("http://given"))]),
            recorded: vec![RecordedAgents::default(), recorded(gone.clone())],
            ..MetricServerOptions::default()
        };
        let asked = servers(options.clone());
        for (agent, address) in [
            ("given", "http://given"),
            ("own", "http://own"),
            ("a", "http://was"),
        ] {
            assert_eq!(asked.address(agent).await.unwrap(), address, "{agent}");
        }
        let why = asked.address("imported").await.unwrap_err();
        assert!(why.contains("head server http://127.0.0.1:1"), "{why}");
        let unknown = servers(MetricServerOptions::default());
        let why = unknown.address("a").await.unwrap_err();
        assert!(why.contains("--agent-url"), "{why}");
        // A given head server replaces the recorded ones.
        let asked = servers(MetricServerOptions {
            head_server: gone,
            ..options
        });
        assert!(asked.address("a").await.is_err());
    }
}
