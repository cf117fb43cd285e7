use std::future::Future;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rollstream::sim::{AgentChange, Counts, RequestRecord, Sim, SimConfig};
use tokio::runtime::Runtime;

/// Far longer than anything takes: a test that fails must not hang.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Agents that this test serves and can change.
pub struct Agents {
    // Dropped before the runtime that it is served on.
    sim: Sim,
    runtime: Runtime,
}

impl Agents {
    pub fn start(config: SimConfig) -> Self {
        // Every call in flight is a connection that is held here.
        rollstream::http::raise_open_files();
        let runtime = Runtime::new().unwrap();
        let sim = runtime.block_on(Sim::start(config)).unwrap();
        Self { sim, runtime }
    }

    /// Options that lead to these agents.
    pub fn options(&self) -> String {
        format!("--head-server {}", self.sim.head_url())
    }

    pub fn counts(&self, agent: &str) -> Counts {
        self.sim.counters().remove(agent).unwrap()
    }

    /// Requests of all agents.
    pub fn num_requests(&self) -> u64 {
        let counters = self.sim.counters();
        counters.values().map(|agent| agent.requests).sum()
    }

    /// Requests of the model, the resources servers and the environment.
    pub fn num_server_requests(&self) -> u64 {
        let counters = self.sim.server_counters();
        counters.values().map(|server| server.requests).sum()
    }

    /// Addresses of the model, the resources server, the one in the manner of Gymnasium, and the environment.
    pub fn server_urls(&self) -> [&str; 4] {
        [
            self.sim.model_url(),
            self.sim.tools_url(),
            self.sim.gymnasium_url(),
            self.sim.environment_url(),
        ]
    }

    /// Every request that an agent or a server counted, in the order of arrival.
    pub fn requests(&self, agent: &str) -> Vec<RequestRecord> {
        self.sim.requests(agent).unwrap()
    }

    pub fn set_down(&self, agent: &str, down: bool) {
        self.wait(self.sim.set_down(agent, down)).unwrap();
    }

    pub fn set_capacity(&self, agent: &str, capacity: usize) {
        self.wait(self.sim.set_capacity(agent, Some(capacity)))
            .unwrap();
    }

    pub fn change(&self, agent: &str, change: AgentChange) {
        self.wait(self.sim.change(agent, change)).unwrap();
    }

    /// Waits until what the agents count is as wanted.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(
                Instant::now() < deadline,
                "never: {what}; {:?}",
                self.sim.counters()
            );
            // Only spares the processor; nothing depends on it.
            sleep(Duration::from_millis(1));
        }
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
