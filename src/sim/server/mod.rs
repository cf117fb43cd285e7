//! The servers of a simulation: [`Sim`] owns them all.
//!
//! A [`port`] accepts connections, an [`endpoint`] knows the settings, faults and capacity of one agent or server,
//! [`requests`] keeps what became of each request, a [`service`] is a server that is no agent, and [`head`] lists them
//! all. Used by the agent, the model and the environments, which answer.

pub(crate) mod endpoint;
mod head;
pub(crate) mod http;
mod port;
pub(crate) mod requests;
pub(crate) mod service;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, service::service_fn};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::endpoint::{AgentChange, Endpoint};
pub(crate) use self::head::RESERVED_NAMES;
use self::head::{ENVIRONMENT, GYMNASIUM, Head, Listed, MODEL, Role, TOOLS, url};
use self::http::{Abrupt, Reply};
use self::port::Port;
use self::requests::{Counts, MAX_REQUESTS, RequestRecord};
use self::service::{Server, Service};
use super::agent::Agent;
use super::config::{AgentConfig, SimConfig, SimError};
use super::environments::{Environment, Gymnasium, Tools};
use super::model::Model;
use super::plan::Profile;

/// A running simulation: a head server, its agents, a model and environments. Dropping it ends everything at once.
#[derive(Debug)]
pub struct Sim {
    head_url: String,
    head: Arc<Head>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Sim {
    /// Checks the settings, binds all ports, and begins to serve on the current runtime. When it returns, every address
    /// answers.
    ///
    /// # Errors
    /// A setting is out of range, or a port cannot be bound.
    pub async fn start(config: SimConfig) -> Result<Self, SimError> {
        config.check()?;
        let (stop, stopped) = watch::channel(false);
        let mut starting = Starting {
            config: &config,
            stopped,
            tasks: JoinSet::new(),
            listed: BTreeMap::new(),
        };
        for (name, own) in &config.agents {
            let (port, endpoint) = starting.list(name, Role::Agent, own)?;
            let agent = Arc::new(Agent::new(endpoint));
            starting.serve(port, move |request| Arc::clone(&agent).answer(request));
        }
        starting.server(MODEL, Role::Model, &config.model, Model)?;
        starting.server(TOOLS, Role::Resources, &config.tools, Tools::default())?;
        let gymnasium = Gymnasium::default();
        starting.server(GYMNASIUM, Role::Resources, &config.gymnasium, gymnasium)?;
        let environment = &config.environment;
        starting.server(ENVIRONMENT, Role::Resources, environment, Environment)?;

        let (port, _) = Port::bind(SocketAddr::new(config.host, config.port))?;
        let address = port.address();
        let host = advertised(&config);
        let rules = config.gym.rules(|| false);
        let listed = std::mem::take(&mut starting.listed);
        let head = Arc::new(Head::new(&host, address, listed, rules)?);
        let serving = Arc::clone(&head);
        starting.serve(port, move |request| Arc::clone(&serving).answer(request));
        Ok(Self {
            head_url: url(&host, address.port()),
            head,
            stop,
            tasks: starting.tasks,
        })
    }

    /// Returns the address of the model server, without `/v1`.
    pub fn model_url(&self) -> &str {
        self.head.url(MODEL)
    }

    /// Returns the address of the resources server.
    pub fn tools_url(&self) -> &str {
        self.head.url(TOOLS)
    }

    /// Returns the address of the Gymnasium-style server.
    pub fn gymnasium_url(&self) -> &str {
        self.head.url(GYMNASIUM)
    }

    /// Returns the address of the environment server.
    pub fn environment_url(&self) -> &str {
        self.head.url(ENVIRONMENT)
    }

    /// Returns the address of the head server, such as `http://127.0.0.1:11000`.
    pub fn head_url(&self) -> &str {
        &self.head_url
    }

    /// Returns the address of an agent.
    pub fn agent_url(&self, name: &str) -> Option<String> {
        self.agent_urls().remove(name)
    }

    /// Returns the addresses of all agents, by name.
    pub fn agent_urls(&self) -> BTreeMap<String, String> {
        self.head.agent_urls()
    }

    /// Returns the counts of the requests so far, by agent.
    pub fn counters(&self) -> BTreeMap<String, Counts> {
        self.head.counts(true)
    }

    /// Returns the counts of the requests so far, by server that is not an agent: `sim_model`, `sim_tools`,
    /// `sim_gymnasium` and `sim_environment`.
    pub fn server_counters(&self) -> BTreeMap<String, Counts> {
        self.head.counts(false)
    }

    /// Returns the records of the last [`MAX_REQUESTS`] requests of an agent or server, in the order of arrival.
    ///
    /// # Errors
    /// There is no such agent or server.
    pub fn requests(&self, agent: &str) -> Result<Vec<RequestRecord>, SimError> {
        let requests = self.head.endpoint(agent)?.requests();
        Ok(requests.page(0, requests.next(), MAX_REQUESTS))
    }

    /// Changes an agent or a server.
    ///
    /// # Errors
    /// There is no such agent, a setting is out of range, or a port that was down cannot be bound
    /// again.
    pub async fn change(&self, agent: &str, change: AgentChange) -> Result<(), SimError> {
        self.head.endpoint(agent)?.change(&change).await
    }

    /// Changes how many rollouts an agent works on at a time; none for no limit. Running rollouts finish.
    ///
    /// # Errors
    /// There is no such agent, or the capacity is 0.
    pub async fn set_capacity(&self, agent: &str, capacity: Option<usize>) -> Result<(), SimError> {
        let change = AgentChange {
            capacity: Some(capacity),
            ..AgentChange::default()
        };
        self.change(agent, change).await
    }

    /// Takes an agent's port down, or brings it back. When this returns, connections are refused
    /// and open ones are reset, or connections are accepted again.
    ///
    /// # Errors
    /// There is no such agent, or its port cannot be bound again.
    pub async fn set_down(&self, agent: &str, down: bool) -> Result<(), SimError> {
        let change = AgentChange {
            down: Some(down),
            ..AgentChange::default()
        };
        self.change(agent, change).await
    }

    /// Accepts no more connections, answers requests in flight for as long as `grace`, then ends the rest.
    pub async fn shutdown(mut self, grace: Duration) {
        self.stop.send_replace(true);
        let finished = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(grace, finished).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

/// A simulation that is being started.
struct Starting<'a> {
    config: &'a SimConfig,
    stopped: watch::Receiver<bool>,
    tasks: JoinSet<()>,
    listed: BTreeMap<String, Listed>,
}

impl Starting<'_> {
    fn server(
        &mut self,
        name: &'static str,
        role: Role,
        own: &AgentConfig,
        service: impl Service,
    ) -> Result<(), SimError> {
        let (port, endpoint) = self.list(name, role, own)?;
        let server = Arc::new(Server::new(name, endpoint, service));
        self.serve(port, move |request| Arc::clone(&server).answer(request));
        Ok(())
    }

    /// Answers the requests to a port.
    fn serve<F, A>(&mut self, port: Port, answer: F)
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Unpin + 'static,
        A: Future<Output = Result<Reply, Abrupt>> + Send + 'static,
    {
        let service = service_fn(move |request| Box::pin(answer(request)));
        self.tasks.spawn(port.serve(self.stopped.clone(), service));
    }

    /// Binds a port for an agent or server, and lists it.
    fn list(
        &mut self,
        name: &str,
        role: Role,
        own: &AgentConfig,
    ) -> Result<(Port, Arc<Endpoint>), SimError> {
        let address = SocketAddr::new(self.config.host, own.port.unwrap_or(0));
        let (port, switch) = Port::bind(address)?;
        let profile = Profile::with(self.config, own.clone());
        let endpoint = Arc::new(Endpoint::new(profile, switch));
        let (host, number) = (advertised(self.config), port.address().port());
        let listed = Listed {
            role,
            url: url(&host, number),
            host,
            port: number,
            endpoint: Arc::clone(&endpoint),
        };
        self.listed.insert(name.to_owned(), listed);
        Ok((port, endpoint))
    }
}

/// Returns the host under which clients reach a port of the configured one.
fn advertised(config: &SimConfig) -> String {
    let loopback = || match config.host {
        host if !host.is_unspecified() => host,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    config
        .advertise_host
        .clone()
        .unwrap_or_else(|| loopback().to_string())
}
