//! `rollstream check`: assertions in SQL and the health of rollouts, for CI.

use std::sync::Arc;

use clap::Args;
use serde_json::json;

use super::doubts;
use super::gate::{Verdict, gates};
use super::health::CheckedRun;
use super::measurement::{FamilyArgs, MemoryArgs, metric_tables};
use super::output::{DisplayArgs, Exit, print, warn};
use super::runs::{is_file, named_runs};
use crate::error::Error;
use crate::health::HealthOptions;
use crate::query::SqlSession;
use crate::session;

const EXAMPLES: &str = "\
Examples:
  rollstream check runs/first --gate gates.sql
  rollstream check runs/first \\
      --gate 'SELECT * FROM coverage WHERE pending > 0' -q
  rollstream check base=runs/a cand=runs/b --gate gates.sql --json
  rollstream check runs/first --health \\
      --ignore-checks model_call_missing_token_counts
  rollstream check results/rollouts.jsonl --health

A gate is a query: every row that it returns is a violation, whatever is in it. A file holds one or more with `;` between them; the comment \
before a query (`-- All is done`) is its name. The tables are those of `rollstream sql`, metric families included.

--health runs the health checks of NeMo Gym 0.7 on the evidence of each rollout, and writes \
quality_summary.json and rollout_verdicts.jsonl into the run, or beside the files. It is violated if a rollout is \
unhealthy; NeMo Gym's own `gym eval health-check` exits with 0 even then.

It warns of a run that is not complete, and of a gate that names a metric that no row has. To fail on a significant \
difference from a base, use `rollstream compare --fail-if-worse`.

Exit codes:
  0    no gate is violated, and no rollout is unhealthy
  1    an error, for example of the storage
  2    the command line or the SQL of a gate is wrong
  4    a gate is violated, or a rollout is unhealthy";

/// The options of `check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Runs: directories or object-store prefixes, optionally named; with --health alone also rollout files
    #[arg(value_name = "[NAME=]RUN", required = true)]
    pub runs: Vec<String>,
    /// A file of gates, or a gate itself; may be given several times
    #[arg(
        long = "gate",
        value_name = "FILE|SQL",
        required_unless_present = "health",
        allow_hyphen_values = true
    )]
    pub gates: Vec<String>,
    /// Check the health of all rollouts, and write the verdicts
    #[arg(long)]
    pub health: bool,
    /// Leave these checks out of --health
    #[arg(
        long,
        value_name = "CHECK,...",
        value_delimiter = ',',
        requires = "health"
    )]
    pub ignore_checks: Vec<String>,
    /// Which metric families are tables.
    #[command(flatten)]
    pub metrics: FamilyArgs,
    /// The memory that queries may use.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// `rollstream check`: checks runs and files of rollouts.
pub(super) async fn check(args: CheckArgs) -> Result<Exit, Error> {
    let given = args.gates.iter().map(|given| gates(given));
    let given: Vec<_> = given.collect::<Result<_, _>>()?;
    let memory = args.memory.bytes();
    // Becomes false when nobody reads the output any more.
    let mut is_text = !args.display.quiet && !args.display.json;
    let mut verdicts = Vec::new();
    // The health of files can be checked, and gates need runs.
    let is_needed = |run: &&String| !given.is_empty() || !is_file(run);
    let runs: Vec<String> = args.runs.iter().filter(is_needed).cloned().collect();
    if !runs.is_empty() {
        let metrics = metric_tables(&args.metrics, memory)?;
        let context = session::gathering(memory)?;
        let runs = named_runs(&runs).await?;
        let mut session = SqlSession::new(context, runs, Arc::new(metrics))?;
        // All gates see the same snapshot of the runs, even while the runs are being written.
        session.look().await?;
        doubts::of_runs(&session).await?.into_iter().for_each(warn);
        for gate in given.into_iter().flatten() {
            let verdict = Verdict::of(gate, &session).await;
            verdict.warnings().for_each(warn);
            is_text = is_text && print(verdict.text()?)?;
            verdicts.push(verdict);
        }
    }
    let mut health = Vec::new();
    let options = HealthOptions {
        ignored: args.ignore_checks,
        memory,
    };
    for run in args.runs.iter().filter(|_| args.health) {
        let checked = CheckedRun::of(run, &options).await?;
        is_text = is_text && print(checked.text())?;
        health.push(checked);
    }
    let passed =
        verdicts.iter().all(Verdict::is_passed) && health.iter().all(CheckedRun::is_passed);
    if args.display.json && !args.display.quiet {
        let gates: Result<Vec<_>, Error> = verdicts.iter().map(Verdict::json).collect();
        let mut document = json!({"gates": gates?, "passed": passed});
        if args.health {
            document["health"] = health.iter().map(CheckedRun::json).collect();
        }
        let document = serde_json::to_string_pretty(&document).map_err(Error::defect)?;
        print(document + "\n")?;
    }
    end(verdicts, passed)
}

/// Returns the exit code. A gate that fails to run counts more than a violation: its result is unknown.
fn end(verdicts: Vec<Verdict>, passed: bool) -> Result<Exit, Error> {
    let mut texts = Vec::new();
    let mut is_usage = false;
    for verdict in verdicts {
        let name = verdict.short_name();
        if let Err(error) = verdict.found {
            is_usage |= error.exit_code() == 2;
            texts.push(format!("{name}: {error}"));
        }
    }
    match texts.join("\n") {
        text if text.is_empty() && passed => Ok(Exit::Done),
        text if text.is_empty() => Ok(Exit::Violated),
        text if is_usage => Err(Error::Usage(text)),
        text => Err(Error::failed("", text)),
    }
}
