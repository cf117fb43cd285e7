//! [`Workspace`]: a directory with input files and a run, and how to make sweeps of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rollstream::config::{Concurrency, Settings};
use rollstream::sim::{AgentConfig, Counts, FaultKind, FaultRates, Latency, Sim, SimConfig};
use rollstream::{Sweep, SweepReport};
use tempfile::TempDir;

/// Longest time that anything may take that must come at all.
const DEADLINE: Duration = Duration::from_secs(120);

pub struct Workspace {
    directory: TempDir,
}

impl Workspace {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where the run is.
    pub fn run(&self) -> PathBuf {
        self.path("run")
    }

    /// Writes an input file; gives its name as an option takes it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    /// Settings of a sweep over `tasks`, `repeats` times each, against `sim`.
    pub fn settings(&self, tasks: &str, repeats: u32, sim: &Sim) -> Settings {
        Settings {
            input: vec![self.write("tasks.jsonl", tasks)],
            head_server: Some(sim.head_url().parse().unwrap()),
            ..self.bare_settings(repeats)
        }
    }

    /// The same without input and agents.
    pub fn bare_settings(&self, repeats: u32) -> Settings {
        Settings {
            output: Some(self.run().display().to_string()),
            num_repeats: repeats.to_string().parse().unwrap(),
            concurrency: Concurrency::Fixed(16),
            state_dir: Some(self.path("state")),
            aggregate: false,
            // One attempt each, where a test asks for no more.
            infra_budget: 1,
            rate_limit_budget: 1,
            data_budget: 1,
            max_attempts: 1,
            retry_backoff: "1ms".parse().unwrap(),
            ..Settings::default()
        }
    }
}

/// `count` different tasks, sent to `agents` in turn. The task in line `n` has the index `n - 1`.
pub fn tasks(count: usize, agents: &[&str]) -> String {
    let mut lines = String::new();
    for task in 0..count {
        let agent = agents[task % agents.len()];
        writeln!(
            lines,
            r#"{{"responses_create_params":{{"input":"What is {task} + 1?"}},"expected_answer":{},"agent_ref":{{"name":"{agent}"}}}}"#,
            task + 1
        )
        .unwrap();
    }
    lines
}

/// A simulation whose answers are small and immediate.
pub fn quick(agents: &[(&str, AgentConfig)]) -> SimConfig {
    SimConfig {
        agents: agents
            .iter()
            .map(|(name, own)| ((*name).to_owned(), own.clone()))
            .collect(),
        latency: Latency::Fixed(Duration::ZERO),
        body_size: 600,
        ..SimConfig::default()
    }
}

/// One agent, `sim`, that never answers.
pub async fn hanging() -> Sim {
    let faults = FaultRates(BTreeMap::from([(FaultKind::Hang, 1.0)]));
    let config = SimConfig {
        faults,
        ..quick(&[("sim", AgentConfig::default())])
    };
    Sim::start(config).await.unwrap()
}

pub fn counts(sim: &Sim, agent: &str) -> Counts {
    sim.counters().remove(agent).unwrap()
}

/// Prepares a sweep and does it.
pub async fn sweep(settings: Settings) -> SweepReport {
    Sweep::prepare(settings)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap()
}

/// Does a sweep that is cut off as soon as `holds`.
pub async fn sweep_until(
    settings: Settings,
    what: &str,
    holds: impl Fn(&Sweep) -> Box<dyn FnMut() -> bool>,
) -> SweepReport {
    let sweep = Sweep::prepare(settings).await.unwrap();
    let shutdown = sweep.shutdown();
    let holds = holds(&sweep);
    let watching = async {
        until(what, holds).await;
        shutdown.abort();
    };
    let (report, ()) = tokio::join!(sweep.collect(), watching);
    report.unwrap()
}

/// Waits until `holds`; it is an error that it never does.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < DEADLINE, "this never came: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
