//! The command line: every command and option, and the texts of `--help`.
//!
//! [`Cli`] is what clap reads. The options of a sweep are [`SweepArgs`], which become settings; what only changes
//! how a command shows things is [`DisplayArgs`] and never part of a run's identity.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::check::args::{CHECK_EXAMPLES, CheckArgs};
use super::compare_args::{COMPARE_EXAMPLES, CompareArgs};
use super::measure_args::AggregateArgs;
use super::metrics_args::{METRICS_EXAMPLES, MetricsArgs};
use super::open;
use super::profile_args::{PROFILE_EXAMPLES, ProfileArgs};
use super::sim_args::SimArgs;
use super::sql::args::{SQL_EXAMPLES, SqlArgs};
use super::sweep_args::SweepArgs;
use crate::config::{ConfigError, Resolved, Settings, Span};
use crate::gym::GymChoice;

const EXIT_CODES: &str = "\
Exit codes:
  0    all rollouts are done
  1    an error
  2    the command line, a setting or the input is wrong; nothing was sent
  3    finished, but some rollouts failed for good, or are still pending
  4    `collect`: stopped by --deadline, --max-failures or --max-error-rate; `--resume` continues
       `check`: a gate is violated
  130  interrupted; `--resume` continues";

const GUIDES: &str = "\
Guides:
  rollstream help nemo-gym    coming from NeMo Gym";

const COLLECT_EXAMPLES: &str = "\
Examples:
  rollstream collect -i tasks.jsonl -o runs/first --agent sim --num-repeats 4
  rollstream collect -i 'tasks/*.jsonl.zst' -o s3://bucket/run --head-server http://gym:11000
  rollstream collect -i tasks.jsonl -o runs/a --agent-url a=http://10.0.0.7:8000 --set responses_create_params.temperature=0.6
  rollstream collect --config sweep.toml --resume
  rollstream collect +agent_name=a +input_jsonl_fpath=x.jsonl +output_jsonl_fpath=y.jsonl +num_repeats=4";

const AGGREGATE_EXAMPLES: &str = "\
Examples:
  rollstream aggregate runs/first --missing bounds --by difficulty
  rollstream aggregate runs/a s3://bucket/b -o runs/both --answer-key extracted_answer
  rollstream aggregate 'results/shard-*.jsonl' -o results --score accuracy=reward --key-metric 'pass@{k}'
  rollstream aggregate runs/first --agent-metrics --head-server http://gym:11000";

const STATUS_EXAMPLES: &str = "\
Examples:
  rollstream status runs/first
  rollstream status s3://bucket/run --watch --interval 10s
  rollstream status runs/first --json | jq '.agents[] | {agent_name, done, pending, errors}'";

const IMPORT_EXAMPLES: &str = "\
Examples:
  rollstream import results/rollouts.jsonl -o runs/rollouts
  rollstream collect --resume -o runs/rollouts --head-server http://127.0.0.1:11000

It reads NAME.jsonl, NAME_materialized_inputs.jsonl and, if there is one, NAME_failures.jsonl, and leaves them as they
are. A last line that NeMo Gym was cut off in writing is left out, with a warning.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  rollstream export runs/rollouts -o results/rollouts.jsonl
  rollstream export s3://bucket/run -o results/

It writes NAME.jsonl, NAME_materialized_inputs.jsonl and NAME_failures.jsonl, sorted by task and rollout.";

/// Collects rollouts of language-model agents: JSONL in, Parquet and metrics out.
#[derive(Debug, Parser)]
#[command(name = "rollstream", version, after_help = format!("{EXIT_CODES}\n\n{GUIDES}"), max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Send every task to its agent and land the rollouts, then compute metrics
    #[command(after_help = COLLECT_EXAMPLES, after_long_help = format!("{COLLECT_EXAMPLES}\n\n{EXIT_CODES}"))]
    Collect(Box<CollectArgs>),
    /// Print the plan, the counts per agent and an estimate; send nothing
    Plan(Box<CollectArgs>),
    /// Print the resolved settings and where each came from
    #[command(
        after_help = "The output is TOML that --config reads again; with --json, {key: {value, source}}."
    )]
    Config(Box<CollectArgs>),
    /// Ask SQL questions of one or several runs, also while they are being collected
    #[command(after_help = SQL_EXAMPLES)]
    Sql(SqlArgs),
    /// Compute the metrics of one or several runs, or of files of rollouts, as if they were one
    #[command(after_help = AGGREGATE_EXAMPLES)]
    Aggregate(Box<AggregateArgs>),
    /// Check that runs are as they should be: assertions in SQL, for CI
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Write NeMo Gym's reward profile of a run, or of the files of a collection
    #[command(after_help = PROFILE_EXAMPLES)]
    Profile(ProfileArgs),
    /// List the metric families, or show one
    #[command(after_help = METRICS_EXAMPLES)]
    Metrics(MetricsArgs),
    /// Compare runs task by task: differences, intervals, tests, and which tasks flipped
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(Box<CompareArgs>),
    /// Say how a run is doing, live, dead or finished
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Make a run of the files of a NeMo Gym collection, to be finished with `collect --resume`
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Write a run as the files of a NeMo Gym collection
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Serve simulated agents and a head server, for demos, tests and benchmarks
    Sim(Box<SimArgs>),
    /// Print the completion script for a shell
    #[command(
        after_help = "Example: rollstream completions bash > ~/.local/share/bash-completion/completions/rollstream"
    )]
    Completions(CompletionsArgs),
}

/// The options of `collect`, `plan` and `config`.
#[derive(Debug, Args)]
pub struct CollectArgs {
    /// What becomes settings.
    #[command(flatten)]
    pub sweep: SweepArgs,
    /// Show the key metrics while it runs, measured so often from what has landed and what the journal holds
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "10s", help_heading = "Display")]
    pub live: Option<Span>,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

impl CollectArgs {
    /// The settings that this command line, the environment of this process, the file and the defaults give.
    ///
    /// # Errors
    /// If any of them is wrong.
    pub fn resolve(&self) -> Result<Resolved, ConfigError> {
        self.sweep
            .layers()
            .environment(std::env::vars_os())
            .resolve()
    }

    /// The settings. Remarks on the overrides go to stderr.
    ///
    /// # Errors
    /// If any of them is wrong.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        let resolved = self.resolve()?;
        if !self.display.quiet {
            resolved.notes.iter().for_each(open::note);
        }
        Ok(resolved.settings)
    }
}

/// How things are shown. These are not settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Display")]
pub struct DisplayArgs {
    /// Show errors only
    #[arg(long, short)]
    pub quiet: bool,
    /// Show JSON for programs: an event per line, or one document
    #[arg(long)]
    pub json: bool,
    /// Show no colours (so does the variable NO_COLOR)
    #[arg(long)]
    pub no_color: bool,
}

/// The options of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The run: a directory or an object-store prefix
    pub run: String,
    /// Show it again and again until nobody works on the run any more
    #[arg(long)]
    pub watch: bool,
    /// The time between two looks
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch")]
    pub interval: Span,
    /// Show JSON for programs: one document, or with --watch one a line
    #[arg(long)]
    pub json: bool,
    /// Show no colours (so does the variable NO_COLOR)
    #[arg(long)]
    pub no_color: bool,
}

/// The options of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The rollouts of the collection, or their path without .jsonl
    #[arg(value_name = "NAME.jsonl")]
    pub rollouts: PathBuf,
    /// Where the run goes: directory or object-store prefix
    #[arg(long, short, value_name = "RUN")]
    pub output: String,
    /// The materialized inputs, if not NAME_materialized_inputs.jsonl
    #[arg(long, value_name = "FILE")]
    pub materialized_inputs: Option<PathBuf>,
    /// The flagged answers, if not NAME_failures.jsonl
    #[arg(long, value_name = "FILE")]
    pub failures: Option<PathBuf>,
    /// Delete a run that is there already
    #[arg(long)]
    pub overwrite: bool,
    /// Try failures again that agents call terminal: timeouts, and faults of the environment
    #[arg(long)]
    pub retry_terminal_timeouts: bool,
    /// Try rollouts again whose judge gave no valid answer (invalid_judge_response)
    #[arg(long)]
    pub retry_invalid_judge_responses: bool,
    /// Version of NeMo Gym whose rules the run follows: 0.5, 0.7, or auto, which takes the one that the files are of
    #[arg(long, value_name = "VERSION", default_value = "auto")]
    pub gym: GymChoice,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// The options of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The run: a directory or an object-store prefix
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Where the files go: NAME.jsonl, or a directory
    #[arg(long, short, value_name = "PATH")]
    pub output: PathBuf,
    /// Whose files they are
    #[arg(long, value_enum, default_value_t = ExportFormat::NemoGym)]
    pub format: ExportFormat,
    /// Replace files that are there already
    #[arg(long)]
    pub overwrite: bool,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// What a run is exported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// NAME.jsonl, NAME_materialized_inputs.jsonl and NAME_failures.jsonl
    NemoGym,
}

/// The options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_lists_the_exit_codes_and_examples() {
        let mut command = Cli::command();
        let help = command.render_help().to_string();
        for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "130 "] {
            assert!(help.contains(&format!("\n  {code}")), "{code}: {help}");
        }
        let collect = command.find_subcommand_mut("collect").unwrap();
        let help = collect.render_long_help().to_string();
        assert!(
            help.contains("+input_jsonl_fpath=x.jsonl") && help.contains("130"),
            "{help}"
        );
    }
}
