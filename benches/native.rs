//! Tool-calling rollouts that rollstream runs itself, beside a loop in Python that makes the same calls (aiohttp), and,
//! where one is there, beside an agent server of NeMo Gym between the same model and tools. The simulated model and
//! tools are processes of their own and answer at once.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
use clap::Parser;
use serde_json::Value;
use tempfile::TempDir;

use common::{Child, Options, Report, SimServer, Usage, check_done, cpu_time, rollstream};

/// Rollouts per second and CPU per rollout of natively run tool calls.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Rollouts of each of the example tasks with tools
    #[arg(long, value_name = "N")]
    repeats_of_a_task: Option<usize>,
    /// Rounds of tool calls in a rollout
    #[arg(long, value_name = "N", default_value_t = 3)]
    turns: usize,
    /// Rollouts in flight
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [64])]
    concurrency: Vec<usize>,
    /// A Python with aiohttp
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// An agent server of NeMo Gym that asks the model and tools at --model-url and --tools-url
    #[arg(long, value_name = "URL", requires = "agent_pid")]
    agent_url: Option<String>,
    /// Its process, whose CPU time is counted
    #[arg(long, value_name = "PID")]
    agent_pid: Option<u32>,
    /// A model in place of the simulated one
    #[arg(long, value_name = "URL")]
    model_url: Option<String>,
    /// Tools in place of the simulated ones
    #[arg(long, value_name = "URL")]
    tools_url: Option<String>,
    /// Tasks in place of the example tasks with tools
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

struct Scene<'a> {
    cli: &'a Cli,
    directory: TempDir,
    input: PathBuf,
    model: String,
    tools: String,
    repeats: usize,
    rollouts: usize,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    rollstream::http::raise_open_files();
    let turns = cli.turns.to_string();
    let sim = SimServer::start(&["--latency", "fixed:0s", "--turns", &turns])?;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/example_tool_tasks.jsonl");
    let input = cli.input.clone().unwrap_or(example);
    let tasks = std::fs::read_to_string(&input)?.lines().count();
    let repeats = cli
        .repeats_of_a_task
        .unwrap_or(if cli.options.quick { 40 } else { 400 });
    let scene = Scene {
        directory: TempDir::with_prefix("rollstream-bench-")?,
        model: cli.model_url.clone().unwrap_or(sim.url("model").to_owned()),
        tools: cli.tools_url.clone().unwrap_or(sim.url("tools").to_owned()),
        input,
        repeats,
        rollouts: tasks * repeats,
        cli: &cli,
    };
    let mut report = Report::new("native");
    for &concurrency in &cli.concurrency {
        scene.measure(concurrency, &mut report)?;
    }
    report.finish(&cli.options)
}

impl Scene<'_> {
    fn measure(&self, concurrency: usize, report: &mut Report) -> anyhow::Result<()> {
        let (mut own, mut python, mut server) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.cli.options.repeats() {
            own.push(self.own(concurrency)?);
            python.push(self.python(concurrency)?);
            if let (Some(url), Some(pid)) = (&self.cli.agent_url, self.cli.agent_pid) {
                server.push(self.agent_server(url, pid, concurrency)?);
            }
        }
        let case = format!("{} turns, {concurrency} in flight", self.cli.turns);
        for (baseline, usages) in [("aiohttp loop", &python), ("agent server", &server)] {
            if usages.is_empty() {
                continue;
            }
            let rate = |usage: &Usage| self.rollouts as f64 / usage.wall.as_secs_f64();
            let cpu = |usage: &Usage| usage.cpu.as_secs_f64() * 1e3 / self.rollouts as f64;
            let values = |of: &dyn Fn(&Usage) -> f64, usages: &[Usage]| -> Vec<f64> {
                usages.iter().map(of).collect()
            };
            let ours = values(&rate, &own);
            report.compare(
                &case,
                "rate",
                "rollouts/s",
                &ours,
                (baseline, &values(&rate, usages)),
            );
            let ours = values(&cpu, &own);
            report.compare(
                &case,
                "CPU",
                "ms/rollout",
                &ours,
                (baseline, &values(&cpu, usages)),
            );
        }
        Ok(())
    }

    /// A whole sweep whose rollouts run in the program itself.
    fn own(&self, concurrency: usize) -> anyhow::Result<Usage> {
        let config = self.directory.path().join("native.toml");
        let text = format!(
            "[agents.solver]\nkind = \"responses\"\nmodel_url = \"{}\"\nmodel_api = \"responses\"\nresources_url = \"{}\"\n",
            self.model, self.tools
        );
        std::fs::write(&config, text)?;
        let mut command = rollstream();
        command.arg("collect").arg("--config").arg(config);
        command.args(["--agent", "solver"]);
        self.collect(&mut command, concurrency)
    }

    fn collect(&self, command: &mut Command, concurrency: usize) -> anyhow::Result<Usage> {
        command.arg("--input").arg(&self.input);
        command
            .arg("--output")
            .arg(self.directory.path().join("run"));
        command.args(["--overwrite", "--json"]);
        command.args(["--num-repeats", &self.repeats.to_string()]);
        command.args(["--concurrency", &concurrency.to_string()]);
        let (output, usage) = Child::start(command)?.finish()?;
        check_done(&output, self.rollouts)?;
        Ok(usage)
    }

    fn python(&self, concurrency: usize) -> anyhow::Result<Usage> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/native.py");
        let mut command = Command::new(&self.cli.python);
        command.arg(script).arg(&self.input);
        command.args([&self.model, &self.tools]);
        command.args([self.repeats.to_string(), concurrency.to_string()]);
        let (output, usage) = Child::start(&mut command)?.finish()?;
        let told: Value = serde_json::from_str(&output)?;
        ensure!(
            told["rollouts"] == self.rollouts,
            "not everything was collected: {told}"
        );
        Ok(usage)
    }

    /// A sweep through an agent server; the CPU time is the server's alone.
    fn agent_server(&self, url: &str, pid: u32, concurrency: usize) -> anyhow::Result<Usage> {
        let before = cpu_time(pid)?;
        let mut command = rollstream();
        command.args(["collect", "--agent", "server", "--agent-url"]);
        command.arg(format!("server={url}"));
        let usage = self.collect(&mut command, concurrency)?;
        Ok(Usage {
            cpu: cpu_time(pid)?.saturating_sub(before),
            ..usage
        })
    }
}
