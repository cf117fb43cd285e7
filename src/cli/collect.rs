use std::io::{self, IsTerminal};
use std::path::Path;

use super::args::{CollectArgs, DisplayArgs};
use super::exit::unless_gone;
use super::signals::{interrupted, stop_on_signal};
use super::{Exit, open, simulated};
use crate::error::Error;
use crate::export::{ExportTarget, export_nemo_gym};
use crate::pipeline::Sweep;
use crate::show::{self, Progress, ProgressMode};
use crate::store::{RunRecord, RunState};

/// `rollstream collect`.
pub(super) async fn collect(args: CollectArgs) -> Result<Exit, Error> {
    let mut settings = args.settings()?;
    let gym_output = settings.gym_output.clone();
    let require_complete = settings.require_complete;
    let place = settings.output.clone();
    raise_file_limit();
    let grace = settings.grace.duration();
    let _sim = simulated::start(&mut settings).await?;
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
    if let (Some(rollouts), Some(place)) = (gym_output, place) {
        gym_files(Path::new(&rollouts), &place).await?;
    }
    if let Some(nothing) = report.nothing_scored {
        return Err(nothing.into());
    }
    match exit {
        Exit::SomeFailed if require_complete => Err(Error::Incomplete {
            done: report.rollouts.done,
            planned: report.rollouts.planned,
            place: report.place,
        }),
        exit => Ok(exit),
    }
}

/// Writes what the run holds as NeMo Gym's files, over those of an earlier time.
async fn gym_files(rollouts: &Path, place: &str) -> Result<(), Error> {
    let run = open::open(place)?;
    let Some(record) = RunRecord::load(&run).await? else {
        return Ok(());
    };
    let target = ExportTarget::new(rollouts, place)?;
    let report = export_nemo_gym(&run, &record, &target, true).await?;
    report.warnings.iter().for_each(open::warn);
    Ok(())
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
