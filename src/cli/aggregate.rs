//! `rollstream aggregate`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use datafusion::prelude::SessionContext;

use super::health;
use super::measurement::{MetricArgs, measurement};
use super::output::{DisplayArgs, Exit, note, unless_gone};
use super::runs::{is_file, open, runs};
use crate::agent::{MetricServerOptions, MetricServers, RecordedAgents};
use crate::config::{self, ServerUrl, Span};
use crate::error::Error;
use crate::export::{ExportTarget, export_metrics};
use crate::gym::GymChoice;
use crate::health::HealthOptions;
use crate::import::{Zeros, is_stamped};
use crate::measure::{Aggregation, AggregationSource};
use crate::measure::{KeyMetrics, PassMajorityOptions};
use crate::session;
use crate::show::{self, Format, RowLimit};
use crate::store::{RunRecord, RunStore, part_name};

const EXAMPLES: &str = "\
Examples:
  rollstream aggregate runs/first --missing bounds --by difficulty
  rollstream aggregate runs/a s3://bucket/b -o runs/both \\
      --answer-key extracted_answer
  rollstream aggregate 'results/shard-*.jsonl' -o results \\
      --score accuracy=reward --key-metric 'pass@{k}'
  rollstream aggregate runs/first --agent-metrics \\
      --head-server http://gym:11000";

/// The options of `aggregate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AggregateArgs {
    /// Runs to aggregate as one, or NeMo Gym rollout files, also as globs
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    /// Directory or object-store prefix for metrics/ and aggregate_metrics.json [default: a single run]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<String>,
    /// Write the rollouts of all files, sorted, to this file as well
    #[arg(long, value_name = "FILE")]
    pub merge: Option<PathBuf>,
    /// Compute this metric family and no others; may be given several times
    #[arg(long = "family", value_name = "NAME")]
    pub families: Vec<String>,
    /// Show all numbers of the answers, also those that are not scores: constants, answers, token counts
    #[arg(long)]
    pub all: bool,
    /// Write the tables, but no aggregate_metrics.json, which holds every rollout
    #[arg(long)]
    pub tables_only: bool,
    /// NeMo Gym's rules and files.
    #[command(flatten)]
    pub gym: GymAggregateArgs,
    /// Which agents are asked for metrics of their own.
    #[command(flatten)]
    pub servers: MetricServerArgs,
    /// Which metrics are computed, and how.
    #[command(flatten)]
    pub metrics: MetricArgs,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// Rules and files of NeMo Gym.
#[derive(Debug, Args)]
#[command(next_help_heading = "NeMo Gym")]
pub struct GymAggregateArgs {
    /// Version of NeMo Gym whose rules hold: 0.5, 0.7, or auto (the version of the runs or files)
    #[arg(long, value_name = "VERSION", default_value = "auto")]
    pub gym: GymChoice,
    /// Count rollouts as zero if NAME_failures.jsonl beside their file gives their last failure one of these classes
    #[arg(long, value_name = "CLASS,...", value_delimiter = ',')]
    pub count_failure_classes_as_zero: Vec<String>,
    /// Count rollouts as zero if NAME_materialized_inputs.jsonl beside a file has them, but no other file does
    #[arg(long)]
    pub count_missing_rollouts_as_zero: bool,
    /// Write NeMo Gym's files: NAME.jsonl with the merged rollouts of all files, and NAME_aggregate_metrics.json
    #[arg(long, value_name = "NAME.jsonl", value_parser = gym_output, conflicts_with = "merge")]
    pub gym_output: Option<String>,
    /// With --gym-output: skip the health check of the rollouts, which is part of the rules of 0.7
    #[arg(long, requires = "gym_output")]
    pub no_health_check: bool,
    /// Health checks to leave out
    #[arg(
        long,
        value_name = "CHECK,...",
        value_delimiter = ',',
        requires = "gym_output"
    )]
    pub health_check_ignore: Vec<String>,
    /// Leave NAME.jsonl out of --gym-output
    #[arg(long, requires = "gym_output")]
    pub no_merge: bool,
    /// Report pass@k of this metric in aggregate_metrics.json as NeMo Gym's benchmarks do, such as accuracy=reward
    #[arg(long = "score", value_name = "NAME=METRIC", conflicts_with_all = ["families", "tables_only"])]
    pub scores: Vec<String>,
    /// Mark key metrics: a whole name, or a pattern such as pass@{k}, which takes the largest k
    #[arg(long = "key-metric", value_name = "PATTERN", conflicts_with_all = ["families", "tables_only"])]
    pub key_metrics: Vec<String>,
}

/// Which agents are asked for metrics of their own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics of agents")]
pub struct MetricServerArgs {
    /// Ask each agent's server for its own metrics (POST /aggregate_metrics), and add them to aggregate_metrics.json
    #[arg(long, conflicts_with_all = ["families", "tables_only"])]
    pub agent_metrics: bool,
    /// Address of an agent's server; repeatable [default: its address when the run was collected]
    #[arg(
        long = "agent-url",
        value_name = "NAME=URL",
        requires = "agent_metrics"
    )]
    pub agent_urls: Vec<String>,
    /// NeMo Gym head server, which knows the addresses of the agents' servers
    #[arg(long, value_name = "URL", requires = "agent_metrics")]
    pub head_server: Option<String>,
    /// Longest time to wait for an agent's server
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        requires = "agent_metrics"
    )]
    pub agent_metrics_timeout: Span,
}

/// `rollstream aggregate`: computes metrics over the union of runs, or of files of rollouts.
pub(super) async fn aggregate(args: AggregateArgs) -> Result<Exit, Error> {
    let gym = &args.gym;
    let mut measurement = measurement(&args.metrics)?;
    if !args.families.is_empty() {
        measurement.queries = measurement.queries.only(&args.families)?;
    }
    let checks = HealthOptions {
        ignored: gym.health_check_ignore.clone(),
        memory: args.metrics.memory.bytes(),
    };
    checks.check()?;
    let gym_output = gym.gym_output.as_deref();
    let are_files = args.runs.iter().all(|run| is_file(run));
    let merged = args.merge.clone().or(gym_output.map(PathBuf::from));
    let merged = merged.filter(|_| are_files && !gym.no_merge);
    let source = if are_files {
        AggregationSource::Files {
            globs: args.runs.clone(),
            merged: merged.clone(),
        }
    } else {
        AggregationSource::Runs(runs(&args.runs).await?)
    };
    let beside = gym_output.and_then(|files| files.strip_suffix(".jsonl"));
    let output = match (args.output.as_deref().or(beside), &source) {
        (Some(output), _) => open(output)?,
        (None, AggregationSource::Runs(runs)) if let [run] = runs.as_slice() => run.clone(),
        (None, _) => {
            return Err(Error::Usage(
                "metrics of several runs, or of files, have no default directory; name one with --output".into(),
            ));
        }
    };
    // The JSON is made of statistics, which a selection of families lacks.
    measurement.json = !args.tables_only && args.families.is_empty();
    measurement.zeros = Zeros {
        failure_classes: gym.count_failure_classes_as_zero.clone(),
        missing: gym.count_missing_rollouts_as_zero,
    };
    measurement.benchmark = benchmark(&args)?;
    measurement.key_metrics = gym
        .key_metrics
        .iter()
        .map(|name| key_metric(name))
        .collect();
    measurement.agent_servers = agent_servers(&args.servers, &source).await?;
    let aggregation = Aggregation {
        source,
        output: output.clone(),
        gym: gym.gym,
        measurement,
    };
    let mut report = aggregation.run().await?;
    if let Some(files) = gym_output {
        let target = ExportTarget::new(Path::new(files), "")?;
        let written = export_metrics(&output, &target).await?;
        let written = written.map(|path| path.display().to_string());
        report.written.extend(written);
    }
    let checked = merged.filter(|_| gym_output.is_some() && !gym.no_health_check);
    if let Some(files) = checked {
        let is_new = is_stamped(&files)?;
        if gym.gym.rules(|| is_new).health {
            let files = files.to_string_lossy();
            let said = health::check_file(&files, &checks).await;
            let unknown = |error| format!("wrote {files}, but could not check its health: {error}");
            report.notes.push(said.unwrap_or_else(unknown));
        }
    }
    report.notes.iter().for_each(note);
    if args.display.quiet {
        return Ok(Exit::Done);
    }
    unless_gone(show::metrics(&report, args.display.json, args.all))?;
    let shown = args.families.iter().filter(|_| !args.display.json);
    for family in shown {
        if let Some(exit) = show_family(&output, family).await? {
            return Ok(exit);
        }
    }
    Ok(Exit::Done)
}

/// Shows the first rows of a family that --family names.
async fn show_family(output: &RunStore, family: &str) -> Result<Option<Exit>, Error> {
    let session = SessionContext::new_with_config(session::config());
    let name = part_name("metrics", family);
    let table = session::any_part(&session, output, &name).await?;
    let schema = Arc::new(table.schema().as_arrow().clone());
    let limit = RowLimit {
        width: show::terminal_width(io::stdout()),
        ..SHOWN
    };
    let mut sink = show::open_sink(Format::Table, &schema, Box::new(io::stdout()), limit)?;
    for batch in table.limit(0, Some(SHOWN.rows + 1))?.collect().await? {
        if let Some(exit) = unless_gone(sink.write(&batch))? {
            return Ok(Some(exit));
        }
    }
    unless_gone(sink.finish())
}

/// Shows at most this many rows of a family.
const SHOWN: RowLimit = RowLimit {
    rows: 40,
    width: None,
    hint: "the family's file has all rows",
};

async fn agent_servers(
    args: &MetricServerArgs,
    source: &AggregationSource,
) -> Result<Option<Arc<MetricServers>>, Error> {
    if !args.agent_metrics {
        return Ok(None);
    }
    let address = |option: &str, url: &str| -> Result<ServerUrl, Error> {
        url.parse().map_err(|error| Error::usage(option, error))
    };
    let urls = args.agent_urls.iter().map(|text| {
        let usage = || Error::Usage("--agent-url: write NAME=URL".into());
        let (name, url) = text.split_once('=').ok_or_else(usage)?;
        let url = address(&format!("--agent-url for '{name}'"), url)?;
        Ok((name.to_owned(), url))
    });
    let head_server = args.head_server.as_deref();
    let head_server = head_server.map(|url| address("--head-server", url));
    let mut recorded = Vec::new();
    if let AggregationSource::Runs(runs) = source {
        for run in runs {
            let Some(record) = RunRecord::load(run).await? else {
                continue;
            };
            recorded.push(RecordedAgents {
                // Settings of another version may not parse; the addresses are recorded separately.
                settings: serde_json::from_value(record.settings).unwrap_or_default(),
                addresses: record.agents,
            });
        }
    }
    let servers = MetricServers::new(MetricServerOptions {
        urls: urls.collect::<Result<_, Error>>()?,
        head_server: head_server.transpose()?,
        recorded,
        timeout: args.agent_metrics_timeout.duration(),
        must_have: true,
    })?;
    Ok(Some(Arc::new(servers)))
}

fn gym_output(text: &str) -> Result<String, String> {
    config::gym_output(text).map(|()| text.to_owned())
}

fn benchmark(args: &AggregateArgs) -> Result<Option<PassMajorityOptions>, Error> {
    let scores = &args.gym.scores;
    if scores.is_empty() {
        return Ok(None);
    }
    let scores = scores.iter().map(|text| {
        let (name, metric) = text.split_once('=').unwrap_or((text, text));
        if name.is_empty() || metric.is_empty() {
            let usage = format!("--score {text}: write NAME=METRIC, such as accuracy=reward");
            return Err(Error::Usage(usage));
        }
        Ok((name.to_owned(), metric.to_owned()))
    });
    Ok(Some(PassMajorityOptions {
        scores: scores.collect::<Result<_, _>>()?,
        answer_key: args.metrics.answer_key.clone(),
        ..PassMajorityOptions::default()
    }))
}

fn key_metric(pattern: &str) -> KeyMetrics {
    if !pattern.contains("{k}") {
        return KeyMetrics::Names(vec![pattern.to_owned()]);
    }
    KeyMetrics::HighestK {
        pattern: pattern.to_owned(),
        score_names: None,
        exclude_names: vec!["no_answer".into()],
    }
}
