//! The command line as clap reads it: [`Cli`] with its commands. Each command's options stand in the command's own file.

use clap::{Args, CommandFactory, Parser, Subcommand};

use super::aggregate::AggregateArgs;
use super::check::CheckArgs;
use super::collect::{CollectArgs, EXAMPLES};
use super::compare::CompareArgs;
use super::export::ExportArgs;
use super::import::ImportArgs;
use super::metrics::MetricsArgs;
use super::profile::ProfileArgs;
use super::sim::SimArgs;
use super::sql::args::{SQL_EXAMPLES, SqlArgs};
use super::status::StatusArgs;
use crate::guide;

const EXIT_CODES: &str = "\
Exit codes:
  0    all rollouts are done
  1    an error
  2    the command line, a setting or the input is wrong; nothing was sent
  3    finished, but some rollouts failed for good, or are still pending
  4    `collect`: stopped by --deadline, --max-failures or --max-error-rate; `--resume` continues
       `check`: a gate is violated
  130  interrupted; `--resume` continues";

/// Collects rollouts of language-model agents: JSONL in, Parquet and metrics out.
#[derive(Debug, Parser)]
#[command(name = "rollstream", version, after_help = format!("{EXIT_CODES}\n\n{}", guide::topics()), max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Send every task to its agent and land the rollouts, then compute metrics
    #[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
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
    Aggregate(Box<AggregateArgs>),
    /// Check that runs are as they should be: assertions in SQL, for CI
    Check(CheckArgs),
    /// Write NeMo Gym's reward profile of a run, or of the files of a collection
    Profile(ProfileArgs),
    /// List the metric families, or show one
    Metrics(MetricsArgs),
    /// Compare runs task by task: differences, intervals, tests, and which tasks flipped
    Compare(Box<CompareArgs>),
    /// Say how a run is doing, live, dead or finished
    Status(StatusArgs),
    /// Make a run of the files of a NeMo Gym collection, to be finished with `collect --resume`
    Import(ImportArgs),
    /// Write a run as the files of a NeMo Gym collection
    Export(ExportArgs),
    /// Serve simulated agents and a head server, for demos, tests and benchmarks
    Sim(Box<SimArgs>),
    /// Print the completion script for a shell
    #[command(
        after_help = "Example: rollstream completions bash > ~/.local/share/bash-completion/completions/rollstream"
    )]
    Completions(CompletionsArgs),
}

/// The options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

impl CompletionsArgs {
    /// The completion script for the shell.
    pub(super) fn script(&self) -> Vec<u8> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "rollstream", &mut script);
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_shell_learns_the_commands_and_flags() {
        for shell in clap_complete::Shell::value_variants() {
            let script = CompletionsArgs { shell: *shell }.script();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("num-repeats-add-seed"), "{shell}");
            assert!(script.contains("completions"), "{shell}");
        }
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
