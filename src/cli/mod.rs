//! The command line: [`Cli`] is what clap reads, and [`main`] runs it.
//!
//! Each command is one file, with its options and its `--help`. The options of `collect` are declared in
//! [`crate::config`]; `sweep_args` makes flags of them. Commands share `output`, `runs` and `measurement`.

mod aggregate;
mod check;
mod cluster;
mod collect;
mod compare;
mod config;
mod doubts;
mod export;
mod gate;
mod gym_eval;
mod gym_keys;
mod gym_output;
mod health;
mod import;
mod ls;
mod measurement;
mod metrics;
mod output;
mod pager;
mod profile;
mod resume;
mod runs;
mod show;
mod signals;
mod sim;
pub mod sql;
mod status;
mod sweep_args;
mod view;

use std::env::args_os;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use tokio::runtime::Builder;

use aggregate::AggregateArgs;
use check::CheckArgs;
use cluster::ClusterArgs;
use collect::CollectArgs;
use compare::CompareArgs;
use export::ExportArgs;
use gym_keys::translated;
use import::ImportArgs;
use ls::LsArgs;
use metrics::MetricsArgs;
use output::{Exit, complain, print};
use profile::ProfileArgs;
use resume::ResumeArgs;
use show::ShowArgs;
use sim::SimArgs;
use sql::{SQL_EXAMPLES, SqlArgs};
use status::StatusArgs;
use view::{ReportArgs, ViewArgs};

use crate::error::Error;
use crate::guide;
use crate::launch;
use crate::show::{terminal_width, wrapped_page};

const EXIT_CODES: &str = "\
Exit codes:
  0    all rollouts are done
  1    an error
  2    the command line, a setting or the input is wrong; nothing was sent
  3    finished, but some rollouts failed for good, or are still pending
  4    stopped by --deadline, --max-failures or --max-error-rate; `rollstream resume` continues
       `check`: a gate is violated
  130  interrupted; `rollstream resume` continues";

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
    /// Send every task to its agent, write the rollouts as Parquet, and compute metrics
    #[command(after_help = collect::EXAMPLES, after_long_help = format!("{}\n\n{EXIT_CODES}", collect::EXAMPLES))]
    Collect(Box<CollectArgs>),
    /// Send what is pending of a run, with the settings that it has on record
    Resume(ResumeArgs),
    /// Print the plan, the counts per agent and an estimate; send nothing
    Plan(Box<CollectArgs>),
    /// Print the resolved settings and where each came from
    #[command(
        after_help = "The output is TOML that --config reads again; with --json, {key: {value, source}}."
    )]
    Config(Box<CollectArgs>),
    /// Query one or several runs with SQL, even while they are being collected
    #[command(after_help = SQL_EXAMPLES)]
    Sql(SqlArgs),
    /// Read rollouts in the terminal: prompt, turns, tool calls, answer, reward, and why some failed
    Show(ShowArgs),
    /// Look at one or several runs in the browser: charts, tasks, transcripts, search, comparison, SQL
    View(ViewArgs),
    /// Write what the browser shows of one or several runs to one HTML file, to send around
    Report(ReportArgs),
    /// Compute the metrics of one or several runs, or of files of rollouts, as if they were one
    Aggregate(Box<AggregateArgs>),
    /// Check runs for CI: assertions in SQL, and the health of rollouts
    Check(CheckArgs),
    /// Write NeMo Gym's reward profile of a run, or of the files of a collection
    Profile(ProfileArgs),
    /// List the metric families, or show one
    Metrics(MetricsArgs),
    /// Compare runs task by task: differences, intervals, tests, and which tasks flipped
    Compare(Box<CompareArgs>),
    /// List the runs below a directory: state, counts, mean reward, and when they were made
    Ls(LsArgs),
    /// Show how a run is doing, whether live, dead or finished
    Status(StatusArgs),
    /// Import the files of a NeMo Gym collection as a run, which `collect --resume` can finish
    Import(ImportArgs),
    /// Write a run as the files of a NeMo Gym collection
    Export(ExportArgs),
    /// Run the processes of a cluster, which `collect --cluster` uses
    #[command(after_help = cluster::EXAMPLES)]
    Cluster(ClusterArgs),
    /// Serve simulated agents and a head server, for demos, tests and benchmarks
    Sim(Box<SimArgs>),
    /// Run a program until standard input ends, then end all that descends from it
    #[command(hide = true)]
    Supervise(SuperviseArgs),
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

/// The options of `supervise`.
#[derive(Debug, Args)]
pub struct SuperviseArgs {
    /// Have a second process of this kind run the program
    #[arg(long)]
    pub first: bool,
    /// The program
    pub program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

impl CompletionsArgs {
    /// Returns the completion script for the shell.
    pub(super) fn script(&self) -> Vec<u8> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "rollstream", &mut script);
        script
    }
}

/// A blocking thread ends after it was idle for this long. A resume has one for each part that it reads, and a thread
/// that stays holds on to the memory that it worked with.
const IDLE: Duration = Duration::from_millis(50);

/// What still runs when a command has ended may take this long to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// The whole program. It is no `async` function: a crate that awaits one compiles all that it awaits anew.
pub fn main() -> ExitCode {
    if let Some(page) = guide_page(args_os()) {
        // A reader that has seen enough is no error.
        let _ = std::io::stdout().write_all(page.as_bytes());
        return ExitCode::SUCCESS;
    }
    let failed = |error: Error| {
        complain(&error);
        ExitCode::from(error.exit_code())
    };
    let cli = match translated(args_os()) {
        Ok(arguments) => Cli::parse_from(arguments),
        Err(error) => return failed(error),
    };
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(IDLE)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::from(1);
        }
    };
    let code = match runtime.block_on(run(cli)) {
        Ok(exit) => exit.into(),
        Err(error) => failed(error),
    };
    // Tasks that are dropped remove their temporary files. What a thread waits for has nobody left to answer to.
    runtime.shutdown_timeout(FAREWELL);
    code
}

/// Returns the guide page that a command line asks for with `help TOPIC`.
fn guide_page(arguments: impl IntoIterator<Item = OsString>) -> Option<String> {
    let mut arguments = arguments.into_iter().skip(1);
    let is_help = arguments.next()? == "help";
    let page = guide::page(arguments.next().filter(|_| is_help)?.to_str()?)?;
    let width = terminal_width(std::io::stdout());
    Some(width.map_or_else(|| page.to_owned(), |width| wrapped_page(page, width)))
}

/// Runs the command.
///
/// # Errors
/// The command failed; [`Error::exit_code`] gives the exit code.
async fn run(cli: Cli) -> Result<Exit, Error> {
    match cli.command {
        Command::Collect(args) => collect::collect(*args).await,
        Command::Resume(args) => resume::resume(args).await,
        Command::Plan(args) => collect::plan(*args).await,
        Command::Config(args) => print(config::render(&args)?).map(|_| Exit::Done),
        Command::Sql(args) => sql::sql(args).await,
        Command::Show(args) => show::show(args).await,
        Command::View(args) => view::view(args).await,
        Command::Report(args) => view::report(args).await,
        Command::Aggregate(args) => aggregate::aggregate(*args).await,
        Command::Check(args) => check::check(args).await,
        Command::Profile(args) => profile::profile(args).await,
        Command::Metrics(args) => print(metrics::render(&args)?).map(|_| Exit::Done),
        Command::Compare(args) => compare::compare(*args).await,
        Command::Ls(args) => ls::ls(args).await,
        Command::Status(args) => status::status(args).await,
        Command::Import(args) => import::import(args).await,
        Command::Export(args) => export::export(args).await,
        Command::Cluster(args) => cluster::cluster(args).await.map(|()| Exit::Done),
        Command::Sim(args) => sim::sim(*args).await,
        Command::Supervise(args) => launch::supervise(args.first, &args.program, &args.arguments)
            .await
            .map(Exit::Code)
            .map_err(|error| {
                Error::failed(format!("cannot run {}", args.program.display()), error)
            }),
        Command::Completions(args) => print(args.script()).map(|_| Exit::Done),
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
