use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::prelude::SessionContext;

use super::exit::unless_gone;
use super::measure_args::{AggregateArgs, MetricServerArgs};
use super::measurement::measurement;
use super::open::{self, open};
use super::{Exit, health};
use crate::agent::{MetricServerOptions, MetricServers, RecordedAgents};
use crate::config::ServerUrl;
use crate::error::Error;
use crate::export::{ExportTarget, export_metrics};
use crate::health::HealthOptions;
use crate::import::{Zeros, is_stamped};
use crate::measure::{KeyMetrics, PassMajorityOptions};
use crate::pipeline::{Aggregation, AggregationSource};
use crate::session;
use crate::show::{self, RowLimit};
use crate::store::{RunRecord, RunStore, StoreError, part_name};

/// `rollstream aggregate`: metrics over the union of runs, or of files of rollouts.
pub(super) async fn aggregate(args: AggregateArgs) -> Result<Exit, Error> {
    let mut measurement = measurement(&args.metrics)?;
    if !args.families.is_empty() {
        measurement.queries = measurement.queries.only(&args.families)?;
    }
    let options = HealthOptions {
        ignored: args.health_check_ignore.clone(),
        memory: args.metrics.memory.as_usize(),
    };
    options.check()?;
    // Without the statistics there is nothing to make the JSON of.
    measurement.json = !args.tables_only && args.families.is_empty();
    let gym_output = args.gym_output.as_deref();
    let zeros = Zeros {
        failure_classes: args.count_failure_classes_as_zero.clone(),
        missing: args.count_missing_rollouts_as_zero,
    };
    let are_files = args.runs.iter().all(|run| is_file(run));
    let merged = args.merge.clone().or(gym_output.map(PathBuf::from));
    let merged = merged.filter(|_| are_files && !args.no_merge);
    let source = match are_files {
        true => AggregationSource::Files {
            globs: args.runs.clone(),
            merged: merged.clone(),
        },
        false => AggregationSource::Runs(runs(&args.runs).await?),
    };
    let beside = gym_output.and_then(|files| files.strip_suffix(".jsonl"));
    let output = match (args.output.as_deref().or(beside), &source) {
        (Some(output), _) => open(output)?,
        (None, AggregationSource::Runs(runs)) if runs.len() == 1 => match runs.first() {
            Some(run) => run.clone(),
            None => return Ok(Exit::Done),
        },
        (None, _) => {
            return Err(Error::Usage(
                "several runs or files have no place of their own for metrics; name one with --output".into(),
            ));
        }
    };
    measurement.zeros = zeros;
    measurement.benchmark = benchmark(&args)?;
    let key_metrics = args.key_metrics.iter();
    measurement.key_metrics = key_metrics.map(|name| key_metric(name)).collect();
    measurement.agent_servers = agent_servers(&args.servers, &source).await?;
    let aggregation = Aggregation {
        source,
        output: output.clone(),
        gym: args.gym,
        measurement,
    };
    let mut report = aggregation.run().await?;
    if let Some(files) = gym_output {
        let target = ExportTarget::new(Path::new(files), "")?;
        let written = export_metrics(&output, &target).await?;
        report
            .written
            .extend(written.map(|path| path.display().to_string()));
    }
    let checked = merged.filter(|_| gym_output.is_some() && !args.no_health_check);
    if let Some(files) = checked {
        let is_new = is_stamped(&files)?;
        if args.gym.rules(|| is_new).health {
            let files = files.to_string_lossy();
            let said = health::check_file(&files, &options).await;
            let unknown = |error| format!("{files} is there, its health unknown: {error}");
            report.notes.push(said.unwrap_or_else(unknown));
        }
    }
    for note in &report.notes {
        open::note(note);
    }
    if !args.display.quiet {
        unless_gone(show::metrics(&report, args.display.json))?;
    }
    if !args.display.quiet && !args.display.json {
        for family in &args.families {
            if let Some(exit) = show_family(&output, family).await? {
                return Ok(exit);
            }
        }
    }
    Ok(Exit::Done)
}

/// The first rows of a family that was asked for.
async fn show_family(output: &RunStore, family: &str) -> Result<Option<Exit>, Error> {
    let session = SessionContext::new_with_config(session::config());
    let name = part_name("metrics", family);
    let table = session::any_part(&session, output, &name).await?;
    let schema = Arc::new(table.schema().as_arrow().clone());
    let mut sink = show::open_table(&schema, Box::new(io::stdout()), SHOWN);
    for batch in table.limit(0, Some(SHOWN.rows + 1))?.collect().await? {
        if let Some(exit) = unless_gone(sink.write(&batch))? {
            return Ok(Some(exit));
        }
    }
    unless_gone(sink.finish())
}

/// Rows of a family that are shown.
const SHOWN: RowLimit = RowLimit {
    rows: 40,
    hint: "its file has them all",
};

/// Whether an argument names files of rollouts rather than a run.
pub(super) fn is_file(text: &str) -> bool {
    let is_glob = text.contains(['*', '?', '[']) && !text.contains("://");
    (is_glob || text.ends_with(".jsonl")) && !PathBuf::from(text).is_dir()
}

/// Runs that are there.
pub(super) async fn runs(places: &[String]) -> Result<Vec<RunStore>, Error> {
    let mut runs: Vec<RunStore> = Vec::new();
    for place in places {
        let run = open(place)?;
        if RunRecord::load(&run).await?.is_none() {
            let place = run.display("");
            return Err(StoreError::NoRun { place }.into());
        }
        if runs
            .iter()
            .any(|other| other.display("") == run.display(""))
        {
            return Err(Error::Usage(format!("{place} is given twice")));
        }
        runs.push(run);
    }
    Ok(runs)
}

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
                // Settings of another version say nothing that is needed; the addresses stand beside them.
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

fn benchmark(args: &AggregateArgs) -> Result<Option<PassMajorityOptions>, Error> {
    if args.scores.is_empty() {
        return Ok(None);
    }
    let scores = args.scores.iter().map(|text| {
        let (name, metric) = text.split_once('=').unwrap_or((text, text));
        match name.is_empty() || metric.is_empty() {
            true => Err(Error::Usage(format!(
                "--score {text}: write NAME=METRIC, as accuracy=reward"
            ))),
            false => Ok((name.to_owned(), metric.to_owned())),
        }
    });
    Ok(Some(PassMajorityOptions {
        scores: scores.collect::<Result<_, _>>()?,
        answer_key: args.metrics.answer_key.clone(),
        ..PassMajorityOptions::default()
    }))
}

fn key_metric(pattern: &str) -> KeyMetrics {
    match pattern.contains("{k}") {
        true => KeyMetrics::HighestK {
            pattern: pattern.to_owned(),
            score_names: None,
            exclude_names: vec!["no_answer".into()],
        },
        false => KeyMetrics::Names(vec![pattern.to_owned()]),
    }
}
