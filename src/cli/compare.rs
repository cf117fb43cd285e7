use super::Exit;
use super::compare_args::CompareArgs;
use super::compared_run::{GivenRun, given_run};
use super::exit::unless_gone;
use super::open::{open, warn};
use crate::comparison::{ComparedRun, ComparisonOptions};
use crate::error::Error;
use crate::pipeline::{self, CompareRun};
use crate::show;

/// `rollstream compare`: what candidates have over a base. Writes nothing to the runs.
pub(super) async fn compare(args: CompareArgs) -> Result<Exit, Error> {
    let base = given_run(&args.base)?;
    let mut candidates: Vec<GivenRun> = Vec::new();
    for text in &args.candidates {
        let given = given_run(text)?;
        if candidates.iter().any(|other| other.name == given.name) {
            return Err(Error::Usage(format!(
                "two candidates are called '{}'; give each a name of its own, as in NAME={}",
                given.name, given.place
            )));
        }
        candidates.push(given);
    }
    let base = found(base)?;
    let candidates: Vec<CompareRun> = candidates
        .into_iter()
        .map(found)
        .collect::<Result<_, _>>()?;
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
    let report = pipeline::compare(&base, &candidates, &options, args.flips.as_deref()).await?;
    for run in std::iter::once(&report.base).chain(&report.candidates) {
        warn_of_missing(run);
    }
    unless_gone(show::comparison(&report, args.json))?;
    Ok(Exit::Done)
}

fn found(given: GivenRun) -> Result<CompareRun, Error> {
    Ok(CompareRun {
        run: open(&given.place)?,
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
