//! How `rollstream sql` grows with the run that it reads, and `rollstream ls` with the runs that it lists.

use std::fs;
use std::path::Path;

use clap::Args;
use tempfile::TempDir;

use super::Settings;
use crate::common::{Child, Growth, Report, SimServer, Sweep, Usage, rollstream, write_tasks};

/// Rollouts of a task.
const REPEATS: usize = 4;

/// Rollouts of each run that is listed.
const LISTED: usize = 8;

const QUERY: &str =
    "SELECT agent_name, task_index, avg(reward) AS mean, sum(output_tokens) AS tokens
    FROM rollouts GROUP BY ALL ORDER BY mean, task_index LIMIT 20";

#[derive(Debug, Args)]
pub struct Queries {
    /// Rollouts of the largest run of `sql` [default: 1000000; 20000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Runs of the largest folder of `ls` [default: 1000; 100 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
}

impl Queries {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", "1KB"])?;
        let rollouts = settings.size(self.rollouts, 1_000_000, 20_000);
        let mut growth = Growth::default();
        for rollouts in settings.sizes_up_to(rollouts) {
            let directory = TempDir::with_prefix("rollstream-bench-")?;
            let run = directory.path().join("run");
            collect(&sim, directory.path(), &run, rollouts)?;
            let usages = usages(
                settings,
                &["sql".as_ref(), run.as_ref(), "-c".as_ref(), QUERY.as_ref()],
            )?;
            let case = format!("sql, {rollouts} rollouts");
            add(&case, "sql", rollouts, &usages, (report, &mut growth));
            report.save(&settings.options)?;
        }
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let run = directory.path().join("run");
        collect(&sim, directory.path(), &run, LISTED)?;
        for runs in settings.sizes_up_to(settings.size(self.runs, 1_000, 100)) {
            let folder = directory.path().join(format!("of-{runs}"));
            for number in 0..runs {
                copy(&run, &folder.join(number.to_string()))?;
            }
            let usages = usages(settings, &["ls".as_ref(), folder.as_ref()])?;
            let case = format!("ls, {runs} runs");
            add(&case, "ls", runs, &usages, (report, &mut growth));
        }
        growth.report("queries", report);
        Ok(())
    }
}

fn collect(sim: &SimServer, directory: &Path, run: &Path, rollouts: usize) -> anyhow::Result<()> {
    let input = directory.join("tasks.jsonl");
    let num_tasks = rollouts.div_ceil(REPEATS);
    write_tasks(&input, num_tasks)?;
    let sweep = Sweep {
        input: &input,
        run,
        agents: &[("sim", sim.agent_url())],
        num_rollouts: num_tasks * REPEATS,
        num_repeats: REPEATS,
        concurrency: 256,
        flags: &["--disable-aggregation"],
    };
    sweep.run().map(drop)
}

fn usages(settings: &Settings, arguments: &[&Path]) -> anyhow::Result<Vec<Usage>> {
    let usage = |_| Ok(Child::start(rollstream().args(arguments))?.finish()?.1);
    (0..settings.options.repeats()).map(usage).collect()
}

fn add(
    case: &str,
    command: &str,
    size: usize,
    usages: &[Usage],
    (report, growth): (&mut Report, &mut Growth),
) {
    for figure in Usage::FIGURES {
        let (name, unit, of) = figure;
        let values: Vec<f64> = usages.iter().map(of).collect();
        growth.add(&format!("{command}, {name}"), size, &values);
        report.figure(case, name, unit, &values);
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
