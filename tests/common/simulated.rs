use std::time::Duration;

use rollstream::sim::{AgentConfig, Counts, Latency, Sim, SimConfig};
use tokio::runtime::Runtime;

/// Agents that this test serves while the program runs beside it.
pub struct Simulated {
    // Dropped before the runtime that it is served on.
    sim: Sim,
    _runtime: Runtime,
}

/// Agents of these names, which answer at once.
pub fn instant<const N: usize>(names: [&str; N]) -> SimConfig {
    SimConfig {
        agents: names
            .map(|name| (name.to_owned(), AgentConfig::default()))
            .into(),
        latency: Latency::Fixed(Duration::ZERO),
        ..SimConfig::default()
    }
}

/// An agent `quick`, which answers at once, and one `slow`, which takes an hour.
pub fn quick_and_slow() -> SimConfig {
    let mut config = instant(["quick"]);
    let slow = AgentConfig {
        latency: Some(Latency::Fixed(Duration::from_secs(3600))),
        ..AgentConfig::default()
    };
    config.agents.insert("slow".into(), slow);
    config
}

impl Simulated {
    pub fn start(config: SimConfig) -> Self {
        let runtime = Runtime::new().unwrap();
        let sim = runtime.block_on(Sim::start(config)).unwrap();
        Self {
            sim,
            _runtime: runtime,
        }
    }

    /// The simulation, which also serves a model, tools and environments.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Options that lead to these agents.
    pub fn options(&self) -> String {
        format!("--head-server {}", self.sim.head_url())
    }

    /// Rollouts that the agents were asked for, all together.
    pub fn requests(&self) -> u64 {
        self.sim
            .counters()
            .values()
            .map(|agent| agent.requests)
            .sum()
    }

    /// What one of the agents counted.
    pub fn counts(&self, agent: &str) -> Counts {
        self.sim.counters().remove(agent).unwrap()
    }

    /// Task, rollout and attempt of each request, in the order in which they came.
    pub fn asked(&self, agent: &str) -> Vec<(i64, i64, i64)> {
        let records = self.sim.requests(agent).unwrap().into_iter();
        let number = |number: u64| i64::try_from(number).unwrap();
        records
            .map(|record| {
                (
                    number(record.task_index),
                    number(record.rollout_index),
                    number(record.attempt),
                )
            })
            .collect()
    }

    /// Rollouts whose caller left before the answer.
    pub fn abandoned(&self) -> u64 {
        self.sim
            .counters()
            .values()
            .map(|agent| agent.abandoned)
            .sum()
    }
}
