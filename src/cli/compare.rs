//! `rollstream compare`.

use std::path::{Path, PathBuf};
use std::{fs, iter};

use clap::{Args, ValueEnum};

use super::measurement::MemoryArgs;
use super::output::{Exit, unless_gone, warn};
use super::runs::{GivenRun, given_run, is_file, open};
use crate::config::Settings;
use crate::error::Error;
use crate::import::CollectionFiles;
use crate::measure::compare::{self, CompareRun};
use crate::measure::compare::{ComparedRun, ComparisonOptions, ComparisonReport, MetricComparison};
use crate::show;
use crate::store::{RunRecord, Scratch, StoreError};
use crate::sweep::import_collection;

const EXAMPLES: &str = "\
Examples:
  rollstream compare runs/base runs/candidate
  rollstream compare base=runs/1 warm=runs/2 cold=s3://bucket/3 \\
      --metric reward --flips flips.parquet
  rollstream compare runs/first#small runs/first#large --task-key id --json

Runs may be finished or still being collected. NAME.jsonl means the run NAME if it exists, else NeMo Gym's own files. \
Tasks match by their content, or by the field that --task-key names, wherever they are in the input. Each task weighs \
the same. Agents match by name; #AGENT chooses one agent per side.

Tests: McNemar's test for scores of 0 and 1 (exact if fewer than 25 tasks differ; the clustered form with repeats), a \
sign-flip permutation test for other scores; p-values with Holm's correction over all rows.

--fail-if-worse makes it a gate for CI: a candidate is worse if its mean of a compared metric is lower than that of the \
base, and the difference is significant. No significant difference is no proof that there is none: see the MDE.

Exit codes:
  0    compared
  1    an error, for example of the storage
  2    the command line is wrong, or there is nothing to compare
  4    a candidate is significantly worse, with --fail-if-worse";

/// The options of `compare`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// The base of the comparison: a directory, an object-store prefix, or NAME.jsonl of NeMo Gym
    #[arg(
        value_name = "[NAME=]BASE[#AGENT]",
        required_unless_present = "baseline"
    )]
    pub base: Option<String>,
    /// The runs to compare with the base
    #[arg(
        value_name = "[NAME=]CANDIDATE[#AGENT]",
        required_unless_present = "candidate_files"
    )]
    pub candidates: Vec<String>,
    /// The same arguments under NeMo Gym's names.
    #[command(flatten)]
    pub gym: GymCompareArgs,
    /// How the runs are compared.
    #[command(flatten)]
    pub options: ComparisonOptions,
    /// The memory that queries may use.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Exit with 4 if a candidate's mean is significantly lower than that of the base in a compared metric
    #[arg(long)]
    pub fail_if_worse: bool,
    /// Write the tasks that flipped to this Parquet file
    #[arg(long, value_name = "FILE")]
    pub flips: Option<PathBuf>,
    /// Show one JSON document for programs
    #[arg(long)]
    pub json: bool,
}

/// The options of NeMo Gym's `eval compare`: other names for the same arguments.
#[derive(Debug, Args)]
#[command(next_help_heading = "NeMo Gym")]
pub struct GymCompareArgs {
    /// The same as BASE
    #[arg(
        long,
        value_name = "NAME.jsonl",
        conflicts_with_all = ["base", "candidates"],
        requires = "candidate_files"
    )]
    pub baseline: Option<String>,
    /// The same as CANDIDATE
    #[arg(
        id = "candidate_files",
        long = "candidates",
        value_name = "NAME.jsonl,...",
        value_delimiter = ',',
        requires = "baseline"
    )]
    pub candidates: Vec<String>,
    /// The agent to compare, on both sides
    #[arg(long, value_name = "AGENT", requires = "baseline")]
    pub agent: Option<String>,
    /// The agent of the baseline
    #[arg(
        long,
        value_name = "AGENT",
        requires = "baseline",
        conflicts_with = "agent"
    )]
    pub baseline_agent: Option<String>,
    /// The agent of each candidate
    #[arg(
        long,
        value_name = "AGENT,...",
        value_delimiter = ',',
        requires = "baseline",
        conflicts_with = "agent"
    )]
    pub candidate_agents: Vec<String>,
    /// Write compare_report.md and compare_report.json to this directory as well
    #[arg(long, short, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Which of the two reports to write
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "both",
        requires = "output_dir"
    )]
    pub report_format: ReportFormat,
    #[arg(long, hide = true, value_parser = metrics_file)]
    pub baseline_agg_metrics: Option<String>,
    #[arg(long, hide = true, value_parser = metrics_file)]
    pub candidates_agg_metrics: Option<String>,
}

/// The formats of the report files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// The text that is shown, as Markdown
    Md,
    /// What --json shows
    Json,
    /// Both files
    Both,
}

fn metrics_file(_: &str) -> Result<String, String> {
    Err(String::from(
        "rollouts are compared directly, not their aggregate metrics; leave this option out",
    ))
}

impl CompareArgs {
    /// Returns the base and the candidates, from arguments or from NeMo Gym's options.
    pub(super) fn runs(&self) -> (String, Vec<String>) {
        let named = |place: &str, agent: Option<&String>| match agent.or(self.gym.agent.as_ref()) {
            Some(agent) => format!("{place}#{agent}"),
            None => place.to_owned(),
        };
        match (&self.gym.baseline, &self.base) {
            (Some(base), _) => {
                let agents = self.gym.candidate_agents.iter().map(Some);
                let candidates = self.gym.candidates.iter();
                let candidates = candidates.zip(agents.chain(iter::repeat(None)));
                let candidates = candidates.map(|(place, agent)| named(place, agent));
                let base = named(base, self.gym.baseline_agent.as_ref());
                (base, candidates.collect())
            }
            (None, base) => (base.clone().unwrap_or_default(), self.candidates.clone()),
        }
    }
}

/// `rollstream compare`: compares candidates with a base. Writes nothing to the runs.
pub(super) async fn compare(args: CompareArgs) -> Result<Exit, Error> {
    let (base, others) = args.runs();
    let base = given_run(&base)?;
    let mut candidates: Vec<GivenRun> = Vec::new();
    for given in others.iter().map(|text| given_run(text)) {
        let given = given?;
        if candidates.iter().any(|other| other.name == given.name) {
            return Err(Error::Usage(format!(
                "two candidates are called '{}'; give each a name of its own, as in NAME={}",
                given.name, given.place
            )));
        }
        candidates.push(given);
    }
    let scratch = Scratch::new().map_err(|source| StoreError::File {
        action: "create a directory in",
        path: std::env::temp_dir(),
        source,
    })?;
    let base = found(base, &scratch, 0).await?;
    let mut runs = Vec::new();
    for (number, candidate) in (1..).zip(candidates) {
        runs.push(found(candidate, &scratch, number).await?);
    }
    let options = ComparisonOptions {
        memory: args.memory.bytes(),
        ..args.options
    };
    let report = compare::compare(&base, &runs, &options, args.flips.as_deref()).await?;
    for run in iter::once(&report.base).chain(&report.candidates) {
        warn_of_missing(run);
    }
    unless_gone(show::comparison(&report, args.json))?;
    if let Some(directory) = &args.gym.output_dir {
        write(&report, directory, args.gym.report_format)?;
    }
    let is_worse = report.comparisons.iter().any(MetricComparison::is_worse);
    Ok(if args.fail_if_worse && is_worse {
        Exit::Violated
    } else {
        Exit::Done
    })
}

/// Writes the report to the files in which users of NeMo Gym look for it.
fn write(report: &ComparisonReport, directory: &Path, format: ReportFormat) -> Result<(), Error> {
    let failed = |path: &Path, source| StoreError::file("write", path)(source).of_output();
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    let put = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))
    };
    if format != ReportFormat::Json {
        put("compare_report.md", show::comparison_markdown(report))?;
    }
    if format != ReportFormat::Md {
        let text = serde_json::to_string_pretty(report).map_err(Error::defect)?;
        put("compare_report.json", text + "\n")?;
    }
    Ok(())
}

/// Opens a run. Files that NeMo Gym collected are imported into a run in `scratch` first.
async fn found(given: GivenRun, scratch: &Scratch, number: usize) -> Result<CompareRun, Error> {
    let beside = given.place.strip_suffix(".jsonl");
    let beside = beside.filter(|_| is_file(&given.place));
    let run = match beside.map(open).transpose()? {
        None => open(&given.place)?,
        Some(run) if RunRecord::load(&run).await?.is_some() => run,
        Some(_) => {
            let files = CollectionFiles::find(Path::new(&given.place), None, None)?;
            let imported = scratch.path().join(number.to_string());
            let settings = Settings {
                output: Some(imported.to_string_lossy().into_owned()),
                ..Settings::default()
            };
            let report = import_collection(files, &settings).await?;
            report.warnings.iter().for_each(warn);
            open(settings.required_output()?)?
        }
    };
    Ok(CompareRun {
        place: beside.map_or_else(|| run.display(""), |_| given.place.clone()),
        run,
        name: given.name,
        agent: given.agent,
    })
}

/// Warns of missing rollouts, which may change the result.
fn warn_of_missing(run: &ComparedRun) {
    for agent in run.agents.iter().filter(|agent| agent.missing() > 0) {
        warn(format_args!(
            "{}: {} of {} rollouts of agent '{}' are missing ({} failed, {} pending); the other scores \
             are compared without them",
            run.name,
            agent.missing(),
            agent.planned,
            agent.agent_name,
            agent.failed,
            agent.pending,
        ));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use crate::cli::Cli;

    #[test]
    fn compare_wants_a_base_and_candidates_and_shares_between_0_and_1() {
        let kind = |line: &str| {
            Cli::try_parse_from(line.split(' '))
                .map(|_| ())
                .map_err(|error| error.kind())
        };
        let line = "rollstream compare a b c --metric x --metric y --confidence 0.9 --task-key id";
        assert_eq!(kind(line), Ok(()));
        let missing = Err(ErrorKind::MissingRequiredArgument);
        assert_eq!(kind("rollstream compare a"), missing);
        for gym in [
            "--baseline a.jsonl --candidates b.jsonl,c.jsonl --agent x",
            "--baseline a.jsonl --candidates b.jsonl --candidate-agents x -o d --report-format md",
        ] {
            assert_eq!(kind(&format!("rollstream compare {gym}")), Ok(()), "{gym}");
        }
        assert_eq!(kind("rollstream compare --baseline a.jsonl"), missing);
        for wrong in [
            "--baseline-agg-metrics x",
            "--confidence 95",
            "--confidence 1",
            "--power 0",
            "--power x",
            "--resamples 0",
            "--permutations 1000001",
            "--task-key a..b",
        ] {
            let kind = kind(&format!("rollstream compare a b {wrong}"));
            let expected = [ErrorKind::ValueValidation, ErrorKind::InvalidValue];
            assert!(kind.is_err_and(|kind| expected.contains(&kind)), "{wrong}");
        }
    }
}
