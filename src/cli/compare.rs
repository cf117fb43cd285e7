use std::path::Path;

use super::Exit;
use super::aggregate::is_file;
use super::compare_args::{CompareArgs, ReportFormat};
use super::compared_run::{GivenRun, given_run};
use super::exit::unless_gone;
use super::open::{open, warn};
use crate::comparison::{ComparedRun, ComparisonOptions, ComparisonReport};
use crate::config::Settings;
use crate::error::Error;
use crate::import::CollectionFiles;
use crate::pipeline::{self, CompareRun, import_collection};
use crate::show;
use crate::store::{RunRecord, Scratch, StoreError};

/// `rollstream compare`: what candidates have over a base. Writes nothing to the runs.
pub(super) async fn compare(args: CompareArgs) -> Result<Exit, Error> {
    let (base, others) = args.runs();
    let base = given_run(&base)?;
    let mut candidates: Vec<GivenRun> = Vec::new();
    for text in others {
        let given = given_run(&text)?;
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
        metrics: args.metric,
        task_key: args.task_key,
        confidence: args.confidence,
        resamples: args.resamples,
        permutations: args.permutations,
        power: args.power,
        seed: args.seed,
        memory: args.memory.as_usize(),
    };
    let report = pipeline::compare(&base, &runs, &options, args.flips.as_deref()).await?;
    for run in std::iter::once(&report.base).chain(&report.candidates) {
        warn_of_missing(run);
    }
    unless_gone(show::comparison(&report, args.json))?;
    if let Some(directory) = &args.gym.output_dir {
        write(&report, directory, args.gym.report_format)?;
    }
    Ok(Exit::Done)
}

/// Writes the report where NeMo Gym's users look for it.
fn write(report: &ComparisonReport, directory: &Path, format: ReportFormat) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| {
            StoreError::File {
                action: "write",
                path,
                source,
            }
            .of_output()
        }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let put = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(failed(&path))
    };
    if format != ReportFormat::Json {
        put("compare_report.md", show::comparison_markdown(report))?;
    }
    if format != ReportFormat::Md {
        let text = serde_json::to_string_pretty(report);
        let text = text.map_err(Error::defect)?;
        put("compare_report.json", text + "\n")?;
    }
    Ok(())
}

/// A run; of files that NeMo Gym collected, a run is made in `scratch` first.
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
        place: match beside {
            Some(_) => given.place,
            None => run.display(""),
        },
        run,
        name: given.name,
        agent: given.agent,
    })
}

/// Rollouts that are missing may be just those that would change the result.
fn warn_of_missing(run: &ComparedRun) {
    for agent in run.agents.iter().filter(|agent| agent.missing() > 0) {
        warn(format_args!(
            "{}: {} of {} rollouts of agent '{}' are missing ({} failed, {} pending); the scores of the others \
             are compared as they are",
            run.name,
            agent.missing(),
            agent.planned,
            agent.agent_name,
            agent.failed,
            agent.pending,
        ));
    }
}
