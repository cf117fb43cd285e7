//! The running simulation: [`Sim`] owns the ports, the connections and the counters.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::agent::Agent;
use super::config::{AgentConfig, SimConfig};
use super::control::{AgentChange, Control};
use super::counters::Counts;
use super::environments::{Environment, Gymnasium, Tools};
use super::error::SimError;
use super::head::{Head, url};
use super::http::certain;
use super::listed::{ENVIRONMENT, GYMNASIUM, Listed, MODEL, Role, TOOLS};
use super::model::Model;
use super::port::Port;
use super::profile::Profile;
use super::requests::{MAX_REQUESTS, RequestRecord};
use super::service::{Server, Service};
use super::station::Station;

/// A head server, its agents, a model and environments, serving. Dropping it ends everything at once.
#[derive(Debug)]
pub struct Sim {
    head_url: String,
    model_url: String,
    tools_url: String,
    gymnasium_url: String,
    environment_url: String,
    head: Arc<Head>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Sim {
    /// Checks the settings, binds all ports, and begins to serve on the runtime that it is called
    /// from. When it returns, every address answers.
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
            starting.agent(name, own)?;
        }
        let model_url = starting.server(MODEL, Role::Model, &config.model, Model)?;
        let tools_url = starting.server(TOOLS, Role::Resources, &config.tools, Tools::default())?;
        let gymnasium = Gymnasium::default();
        let gymnasium_url =
            starting.server(GYMNASIUM, Role::Resources, &config.gymnasium, gymnasium)?;
        let environment = &config.environment;
        let environment_url =
            starting.server(ENVIRONMENT, Role::Resources, environment, Environment)?;
        let Starting {
            stopped,
            mut tasks,
            listed,
            ..
        } = starting;
        let (port, _) = Port::bind(SocketAddr::new(config.host, config.port))?;
        let address = port.address();
        let host = advertised(&config);
        let rules = config.gym.rules(|| false);
        let head = Arc::new(Head::new(&host, address, listed, rules)?);
        let serving = Arc::clone(&head);
        let service = service_fn(move |request| {
            let reply = Arc::clone(&serving).answer(request);
            Box::pin(async { certain(reply.await) })
        });
        tasks.spawn(port.serve(stopped, service));
        Ok(Self {
            head_url: url(&host, address.port()),
            model_url,
            tools_url,
            gymnasium_url,
            environment_url,
            head,
            stop,
            tasks,
        })
    }

    /// Address of the model server, without `/v1`.
    pub fn model_url(&self) -> &str {
        &self.model_url
    }

    /// Address of the resources server.
    pub fn tools_url(&self) -> &str {
        &self.tools_url
    }

    /// Address of the server in the manner of Gymnasium.
    pub fn gymnasium_url(&self) -> &str {
        &self.gymnasium_url
    }

    /// Address of the environment server.
    pub fn environment_url(&self) -> &str {
        &self.environment_url
    }

    /// Address of the head server, such as `http://127.0.0.1:11000`.
    pub fn head_url(&self) -> &str {
        &self.head_url
    }

    /// Address of an agent.
    pub fn agent_url(&self, name: &str) -> Option<String> {
        self.agent_urls().remove(name)
    }

    /// Addresses of all agents, by name.
    pub fn agent_urls(&self) -> BTreeMap<String, String> {
        self.head.agent_urls()
    }

    /// What became of the requests so far, by agent.
    pub fn counters(&self) -> BTreeMap<String, Counts> {
        self.head.counts(true)
    }

    /// What became of the requests so far, by server that is no agent: `sim_model`, `sim_tools`,
    /// `sim_gymnasium` and `sim_environment`.
    pub fn server_counters(&self) -> BTreeMap<String, Counts> {
        self.head.counts(false)
    }

    /// Every request that an agent or a server counted, in the order of arrival: the last
    /// [`MAX_REQUESTS`].
    ///
    /// # Errors
    /// There is no such agent or server.
    pub fn requests(&self, agent: &str) -> Result<Vec<RequestRecord>, SimError> {
        let log = self.head.control(agent)?.station().counters().log();
        Ok(log.page(0, log.next(), MAX_REQUESTS))
    }

    /// Changes what an agent or a server does, from now on.
    ///
    /// # Errors
    /// There is no such agent, a setting is out of range, or a port that was down cannot be bound
    /// again.
    pub async fn change(&self, agent: &str, change: AgentChange) -> Result<(), SimError> {
        self.head.control(agent)?.change(&change).await
    }

    /// Changes how many rollouts an agent works on at a time; missing: no limit. What is worked on
    /// is finished.
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

    /// Takes an agent's port down, or brings it back: when this returns, connections are refused
    /// and those that were open are reset, or connections are accepted again.
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

    /// Accepts nothing more, lets requests in flight be answered for as long as `grace`, then ends
    /// what is left.
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
    fn agent(&mut self, name: &str, own: &AgentConfig) -> Result<(), SimError> {
        let (port, station, _) = self.list(name, Role::Agent, own)?;
        let agent = Arc::new(Agent::new(station));
        let service = service_fn(move |request| Box::pin(Arc::clone(&agent).answer(request)));
        self.tasks.spawn(port.serve(self.stopped.clone(), service));
        Ok(())
    }

    /// Starts a server; gives its address.
    fn server(
        &mut self,
        name: &'static str,
        role: Role,
        own: &AgentConfig,
        service: impl Service,
    ) -> Result<String, SimError> {
        let (port, station, url) = self.list(name, role, own)?;
        let server = Arc::new(Server::new(name, station, service));
        let service = service_fn(move |request| Box::pin(Arc::clone(&server).answer(request)));
        self.tasks.spawn(port.serve(self.stopped.clone(), service));
        Ok(url)
    }

    /// Binds a port, and makes the head server list what will be there.
    fn list(
        &mut self,
        name: &str,
        role: Role,
        own: &AgentConfig,
    ) -> Result<(Port, Arc<Station>, String), SimError> {
        let address = SocketAddr::new(self.config.host, own.port.unwrap_or(0));
        let (port, switch) = Port::bind(address)?;
        let station = Arc::new(Station::new(Profile::with(self.config, own.clone())));
        let listed = Listed {
            role,
            host: advertised(self.config),
            port: port.address().port(),
            control: Control::new(Arc::clone(&station), switch),
        };
        let url = listed.url();
        self.listed.insert(name.to_owned(), listed);
        Ok((port, station, url))
    }
}

/// The host under which clients reach what listens on the configured one.
fn advertised(config: &SimConfig) -> String {
    let loopback = || match config.host {
        host if !host.is_unspecified() => host,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    };
    config
        .advertise_host
        .clone()
        .unwrap_or_else(|| loopback().to_string())
}
