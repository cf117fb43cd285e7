use std::io::{self, IsTerminal};
use std::path::Path;

use super::args::{CollectArgs, DisplayArgs};
use super::exit::unless_gone;
use super::measurement::DEFAULT_MEMORY;
use super::signals::{interrupted, stop_on_signal};
use super::{Exit, gym_output, health, open, simulated};
use crate::error::{Error, FAILURE, Fatal};
use crate::health::HealthOptions;
use crate::pipeline::Sweep;
use crate::show::{self, Progress, ProgressMode};
use crate::store::RunState;

/// `rollstream collect`.
pub(super) async fn collect(args: CollectArgs) -> Result<Exit, Error> {
    let mut settings = args.settings()?;
    let gym_files = settings.gym_output.clone();
    let require_complete = settings.require_complete;
    let place = settings.output.clone();
    let health = HealthOptions {
        ignored: settings.health_check_ignored_checks.clone(),
        memory: DEFAULT_MEMORY,
    };
    health.check()?;
    let health = (settings.aggregate && settings.health_check).then_some(health);
    raise_file_limit();
    let grace = settings.grace.duration();
    let _sim = simulated::start(&mut settings).await?;
    let settings = gym_output::go_on(settings).await?;
    let mut sweep = tokio::select! {
        prepared = Sweep::prepare(settings) => prepared?,
        // Nothing was sent or written yet.
        stopped = interrupted() => return stopped.map(|()| Exit::Interrupted),
    };
    warn(&sweep);
    let _signals = stop_on_signal(sweep.shutdown(), grace)?;
    let live = args.live.map(|every| sweep.measure_live(every.duration()));
    let progress = Progress::start(sweep.tally(), live, mode(&args.display));
    let report = sweep.collect().await;
    progress.finish(report.is_ok()).await;
    let report = report?;
    let exit = match report.state {
        RunState::Interrupted => Exit::Interrupted,
        RunState::Stopped => Exit::Stopped,
        _ if report.rollouts.failed > 0 || report.rollouts.pending > 0 => Exit::SomeFailed,
        _ => Exit::Done,
    };
    if !args.display.quiet {
        unless_gone(show::report(&report, args.display.json))?;
    }
    // Whatever becomes of these, the sweep has been told of.
    if let (Some(rollouts), Some(place)) = (gym_files, place) {
        gym_output::write(Path::new(&rollouts), &place).await?;
        if let Some(options) = health
            && matches!(exit, Exit::Done | Exit::SomeFailed)
        {
            match health::check_collected(&rollouts, &place, &options).await {
                Ok(said) if !args.display.quiet => said.iter().for_each(open::note),
                Ok(_) => {}
                Err(error) => {
                    open::warn(format!("{rollouts} is there, its health unknown: {error}"))
                }
            }
        }
    }
    if let Some(nothing) = report.nothing_scored {
        return Err(nothing.into());
    }
    match exit {
        Exit::SomeFailed if require_complete => Err(Incomplete {
            done: report.rollouts.done,
            planned: report.rollouts.planned,
            place: report.place,
        }
        .into()),
        exit => Ok(exit),
    }
}

/// A run that --require-complete wants complete, and is not.
#[derive(Debug, thiserror::Error)]
#[error(
    "EVAL FAILED: {done}/{planned} samples completed, and --require-complete wants all. Partial artifacts retained at {place}; \
     go on with --resume"
)]
struct Incomplete {
    /// Rollouts that are done.
    done: u64,
    /// Rollouts that were asked for.
    planned: u64,
    /// The run, as a person names it.
    place: String,
}

impl Fatal for Incomplete {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

/// Says what is odd about the input, and what was decided.
pub(super) fn warn(sweep: &Sweep) {
    sweep.notes().iter().for_each(open::note);
    for warning in sweep.warnings() {
        open::warn(warning);
    }
}

fn mode(display: &DisplayArgs) -> ProgressMode {
    match display {
        DisplayArgs { quiet: true, .. } => ProgressMode::Quiet,
        DisplayArgs { json: true, .. } => ProgressMode::Json,
        _ if io::stderr().is_terminal() => {
            let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            ProgressMode::Terminal {
                colors: !display.no_color && !unwanted,
            }
        }
        _ => ProgressMode::Lines,
    }
}

/// Every call in flight is an open connection: as many as the system allows.
pub(super) fn raise_file_limit() {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_wins_over_json() {
        let display = |quiet, json| DisplayArgs {
            quiet,
            json,
            no_color: false,
        };
        assert_eq!(mode(&display(true, true)), ProgressMode::Quiet);
        assert_eq!(mode(&display(false, true)), ProgressMode::Json);
    }
}
