//! Sweeps of agents that the program runs itself, between servers that fail as they are told, and kills at random.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rollstream::sim::{AgentConfig, Draws, Latency, SimConfig};
use serde_json::{Value, json};

use super::agents::{Agents, PATIENCE};
use super::calls::{Calls, Figures};
use super::ledger::Ledger;
use super::load;
use super::scene::{quick, rates};
use crate::common::{Ended, Folder, Program, Running, Task, task};

pub const REPEATS: u64 = 4;

/// Which of the program's own agents, and how it goes about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Responses,
    Gymnasium,
    PerSample,
    Lockstep,
}

/// A sweep, and the servers between which it runs.
pub struct NativeScene {
    pub folder: Folder,
    pub agents: Agents,
    pub rollouts: u64,
    pub kind: Kind,
}

/// Servers that answer at once, with so many turns in an episode.
pub fn servers(turns: u64) -> SimConfig {
    SimConfig {
        turns: Some(turns),
        // Whole seconds are not what is tested here.
        retry_after: Duration::from_millis(3),
        ..quick()
    }
}

/// A server with these faults, and latencies that shuffle what goes on.
pub fn faulty(faults: &[(&str, f64)]) -> AgentConfig {
    AgentConfig {
        faults: Some(rates(faults)),
        latency: Some(Latency::LogNormal {
            median: Duration::from_millis(1),
            sigma: 1.0,
            cap: Some(Duration::from_millis(20)),
        }),
        ..AgentConfig::default()
    }
}

/// A task for any kind of agent.
fn native_task(number: u64) -> Task {
    let question = format!("What is {number} + {}?", number + 1);
    let answer = 2 * number + 1;
    task(&question)
        .answered_by(answer)
        .with("task_name", "math")
        .with("extra_env_info", json!({ "expected_answer": answer }))
}

/// The same with a tool, whose answers do not grow with its calls.
fn with_tools(number: u64) -> Task {
    let question = format!("What is {number} + {}?", number + 1);
    let input = json!([{"role": "user", "content": question}]);
    let any = json!({"type": "number"});
    let operations = json!({"type": "string", "enum": ["add", "subtract", "multiply"]});
    let parameters = json!({
        "type": "object",
        "properties": {"operation": operations, "a": any, "b": any},
        "required": ["operation", "a", "b"],
    });
    let tool = json!({"type": "function", "name": "calculate", "parameters": parameters});
    let params = json!({"input": input, "tools": [tool]});
    native_task(number).with("responses_create_params", params)
}

impl NativeScene {
    /// A sweep of so many rollouts, and servers for it.
    pub fn new(kind: Kind, rollouts: u64, config: SimConfig) -> Self {
        assert_eq!(rollouts % REPEATS, 0);
        let numbers = 1..=rollouts / REPEATS;
        let tasks: Vec<Task> = match kind {
            Kind::Responses => numbers.map(with_tools).collect(),
            _ => numbers.map(native_task).collect(),
        };
        let scene = Self {
            folder: Folder::with_tasks(tasks),
            agents: Agents::start(config),
            rollouts,
            kind,
        };
        scene.folder.write("native.toml", &scene.settings());
        scene
    }

    fn settings(&self) -> String {
        let [model, tools, gymnasium, environment] = self.agents.server_urls();
        let of_kind = match self.kind {
            Kind::Responses => {
                format!("kind = 'responses'\nmodel_api = 'responses'\nresources_url = '{tools}'\n")
            }
            Kind::Gymnasium => format!(
                "kind = 'responses'\nmodel_api = 'chat-completions'\nresources_url = '{gymnasium}'\n\
                 resources = 'gymnasium'\nmax_steps = 100\n"
            ),
            Kind::PerSample => format!(
                "kind = 'multi-turn'\nmax_turns = 1000\nenvironments.math = {{ kind = 'step', url = '{environment}' }}\n"
            ),
            Kind::Lockstep => format!(
                "kind = 'multi-turn'\nmax_turns = 1000\nmodel_api = 'completions'\ntokenizer = 'bytes'\n\
                 driver = 'lockstep'\nbatch_size = 12\n\
                 environments.math = {{ kind = 'step', url = '{environment}' }}\n"
            ),
        };
        format!(
            "agent = 'native'\n[agents.native]\nmodel_url = '{model}'\nmodel = 'm'\nmodel_retries = 3\n{of_kind}"
        )
    }

    pub fn collect(&self, options: &str) -> Program {
        let line = format!(
            "collect --config native.toml -i tasks.jsonl --num-repeats {REPEATS} -o run --retry-backoff 1ms \
             --disable-aggregation"
        );
        self.folder
            .rollstream(&line)
            .args(&super::load::partitions())
            .args(options)
    }

    pub fn run_json(&self) -> Value {
        self.folder.json("run/run.json")
    }

    /// Runs and goes on until nothing is pending, and is killed meanwhile so many times, each after a random number of
    /// further requests, `most` of them at most.
    pub fn collect_with_kills(&self, kills: usize, most: usize, draws: &mut Draws) {
        let mut killed = 0;
        loop {
            let concurrency = load::concurrency(12) as usize + draws.below(12);
            let options = format!("--resume --part-size 50KB --concurrency {concurrency}");
            let mut running = self.collect(&options).start();
            let requests = self.agents.num_server_requests() + 1 + draws.below(most) as u64;
            while killed < kills && running.is_running() {
                if self.agents.num_server_requests() >= requests {
                    running.signal("KILL");
                    break;
                }
                // Only spares the processor: what is waited for is counted.
                sleep(Duration::from_micros(200));
            }
            let ended = self.end(running);
            if ended.code.is_none() {
                killed += 1;
                continue;
            }
            assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
            if self.run_json()["rollouts"]["pending"] == 0 {
                break;
            }
        }
        assert_eq!(killed, kills, "it ended before");
    }

    /// Waits for the end: many rollouts may take longer than others wait for anything.
    pub fn end(&self, mut running: Running) -> Ended {
        let deadline = Instant::now() + PATIENCE * (self.rollouts / 100) as u32;
        while running.is_running() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        running.end()
    }

    /// What is on record is true at any time: see [`Calls`] and [`Ledger`].
    #[track_caller]
    pub fn is_on_record(&self) -> (Ledger, Calls, Figures) {
        let run = self.folder.path("run");
        let (ledger, calls) = (Ledger::read(&run), Calls::read(&run));
        ledger.is_consistent();
        calls.are_consistent(&ledger);
        let figures = calls.are_what_servers_counted(&self.agents);
        for (key, rollout) in &ledger.rollouts {
            let [input, output] = calls.tokens(*key, rollout.attempt);
            let [said_input, said_output, said_total] = rollout.tokens;
            // A multi-turn agent counts its input by the log, and not by what the model says.
            if matches!(self.kind, Kind::Responses | Kind::Gymnasium) {
                assert_eq!(said_input, Some(input), "{key:?}");
                assert_eq!(said_total, Some(input + output), "{key:?}");
            }
            assert_eq!(said_output, Some(output), "{key:?}");
        }
        (ledger, calls, figures)
    }

    /// Every rollout has landed once or was given up, and all of it is on record.
    #[track_caller]
    pub fn is_settled(&self) -> (Ledger, Calls, Figures) {
        let (ledger, calls, figures) = self.is_on_record();
        let attempts = ledger.by_rollout();
        let mut given_up = 0;
        for task in 0..(self.rollouts / REPEATS) as i64 {
            for rollout in 0..REPEATS as i64 {
                let key = (task, rollout);
                let last = attempts[&key].last().unwrap();
                let is_done = ledger.rollouts.contains_key(&key);
                assert!(is_done != last.terminal, "{key:?}: {last:?}");
                given_up += usize::from(last.terminal);
            }
        }
        assert_eq!(attempts.len() as u64, self.rollouts);
        assert_eq!(ledger.rollouts.len() + given_up, self.rollouts as usize);
        let counted = &self.run_json()["rollouts"];
        let expected: BTreeMap<&str, usize> = BTreeMap::from([
            ("planned", self.rollouts as usize),
            ("done", ledger.rollouts.len()),
            ("failed", given_up),
            ("pending", 0),
        ]);
        for (name, count) in expected {
            assert_eq!(counted[name], count, "{name}: {counted}");
        }
        (ledger, calls, figures)
    }
}
