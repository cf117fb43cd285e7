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
use super::config::SimConfig;
use super::connection::{accept, listen};
use super::counters::{AgentCounters, Counts};
use super::error::SimError;
use super::head::{Head, Listed, url};
use super::http::certain;
use super::profile::Profile;

/// A head server and its agents, serving. Dropping it ends everything at once.
#[derive(Debug)]
pub struct Sim {
    head_url: String,
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
        let mut tasks = JoinSet::new();
        let mut agents = BTreeMap::new();
        for (name, own) in &config.agents {
            let listener = listen(SocketAddr::new(config.host, own.port.unwrap_or(0)))?;
            let address = local_address(&listener)?;
            let counters = Arc::new(AgentCounters::default());
            let agent = Agent::new(Profile::new(&config, name), Arc::clone(&counters));
            let agent = Arc::new(agent);
            let service = service_fn(move |request| Box::pin(Arc::clone(&agent).answer(request)));
            tasks.spawn(accept(listener, stopped.clone(), service));
            let listed = Listed {
                host: advertised(&config),
                port: address.port(),
                counters,
            };
            agents.insert(name.clone(), listed);
        }
        let listener = listen(SocketAddr::new(config.host, config.port))?;
        let address = local_address(&listener)?;
        let host = advertised(&config);
        let head = Arc::new(Head::new(&host, address, agents)?);
        let serving = Arc::clone(&head);
        let service =
            service_fn(move |request| std::future::ready(certain(serving.answer(&request))));
        tasks.spawn(accept(listener, stopped, service));
        Ok(Self {
            head_url: url(&host, address.port()),
            head,
            stop,
            tasks,
        })
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
        self.head.counts()
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

fn local_address(listener: &tokio::net::TcpListener) -> Result<SocketAddr, SimError> {
    let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    listener.local_addr().map_err(|source| SimError::Bind {
        address: unknown,
        source,
    })
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
