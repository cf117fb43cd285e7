//! `rollstream collect` and `rollstream plan`.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::pin::pin;

use clap::Args;

use super::measurement::{DEFAULT_MEMORY, FamilyArgs};
use super::output::{DisplayArgs, Exit, note, unless_gone, wants_colors, warn};
use super::signals::{interrupted, stop_on_signal};
use super::sweep_args::SweepArgs;
use super::{cluster, gym_output, health, view};
use crate::config::{ConfigError, Resolved, Settings, Span};
use crate::error::{Error, FAILURE, Fatal};
use crate::health::HealthOptions;
use crate::http::raise_open_files;
use crate::launch::{Launch, LaunchError};
use crate::report::SweepReport;
use crate::show::{self, ProgressDisplay, ProgressMode};
use crate::sim::{Sim, SimConfig};
use crate::store::RunState;
use crate::sweep::Sweep;
use crate::track::{Ending, Trackers};

pub(super) const EXAMPLES: &str = "\
Examples:
  rollstream collect -i tasks.jsonl -o runs/first --agent sim --num-repeats 4
  rollstream collect -i questions.jsonl -o runs/a \\
      --model-url http://127.0.0.1:8000/v1 --model NAME --check numeric
  rollstream collect -i 'tasks/*.jsonl.zst' -o s3://bucket/run \\
      --head-server http://gym:11000
  rollstream collect -i tasks.jsonl -o runs/a \\
      --agent-url a=http://10.0.0.7:8000 \\
      --set responses_create_params.temperature=0.6
  rollstream collect --gym-config mcqa.yaml --gym-config model.yaml \\
      --split validation -o runs/a
  rollstream gym eval run --benchmark aime24 --split benchmark -o a.jsonl
  rollstream collect --config sweep.toml --resume
  rollstream collect +agent_name=a +input_jsonl_fpath=x.jsonl \\
      +output_jsonl_fpath=y.jsonl +num_repeats=4";

/// The options of `collect`, `plan` and `config`.
#[derive(Debug, Args)]
pub struct CollectArgs {
    /// The options that become settings.
    #[command(flatten)]
    pub sweep: SweepArgs,
    /// What is shown.
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// What is shown of a sweep while it runs, and when it has ended.
#[derive(Debug, Args)]
pub struct ShownArgs {
    /// Show the key metrics while it runs, measured at this interval from landed rows and the journal
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "10s", help_heading = "Display")]
    pub live: Option<Span>,
    /// Write what the browser shows of the run to this file at the end, as `rollstream report` does
    #[arg(long, value_name = "FILE.html", help_heading = "Display")]
    pub report: Option<PathBuf>,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

impl CollectArgs {
    /// Resolves the settings from the defaults, the file, the environment of this process and this command line.
    ///
    /// # Errors
    /// If any of them is wrong.
    pub fn resolve(&self) -> Result<Resolved, ConfigError> {
        self.sweep
            .layers()
            .environment(std::env::vars_os())
            .resolve()
    }

    /// Resolves the settings, and prints remarks on the overrides to stderr.
    fn resolve_and_tell(&self) -> Result<Resolved, ConfigError> {
        let resolved = self.resolve()?;
        if !self.shown.display.quiet {
            resolved.notes.iter().for_each(note);
        }
        Ok(resolved)
    }
}

/// `rollstream collect`: runs a sweep, reports on it, and writes NeMo Gym's files if asked.
pub(super) async fn collect(args: CollectArgs) -> Result<Exit, Error> {
    let resolved = args.resolve_and_tell()?;
    carry_out(resolved.settings, resolved.gym_secrets, &args.shown).await
}

/// Runs a sweep, with NeMo Gym's programs around it if the settings name their configuration. `secrets` are overrides for
/// these programs.
pub(super) async fn carry_out(
    mut settings: Settings,
    secrets: Vec<String>,
    shown: &ShownArgs,
) -> Result<Exit, Error> {
    let Some(mut gym) = Launch::of(&settings, secrets)? else {
        return sweep(settings, shown, None).await;
    };
    let say = |step: &str| {
        if !shown.display.quiet {
            note(step);
        }
    };
    let started = tokio::select! {
        started = gym.start(&mut settings, say) => started.map(|()| true).map_err(Error::from),
        stopped = interrupted() => stopped.map(|()| false),
    };
    let exit = match started {
        Ok(true) => sweep(settings, shown, Some(&mut gym)).await,
        Ok(false) => Ok(Exit::Interrupted),
        Err(error) => Err(error),
    };
    if gym.will_end() {
        say("ends NeMo Gym's programs");
    }
    let is_stopped = tokio::select! {
        () = gym.stop(exit.is_err()) => true,
        _ = interrupted() => false,
    };
    if !is_stopped {
        gym.kill().await;
    }
    exit
}

/// Runs a sweep, reports on it, and writes NeMo Gym's files if asked. It ends early if a server of `gym` dies.
async fn sweep(
    mut settings: Settings,
    shown: &ShownArgs,
    gym: Option<&mut Launch>,
) -> Result<Exit, Error> {
    let ShownArgs { live, display, .. } = shown;
    let gym_files = settings.gym_output.clone();
    let require_complete = settings.require_complete;
    let place = settings.output.clone();
    let health = HealthOptions {
        ignored: settings.health_check_ignored_checks.clone(),
        memory: DEFAULT_MEMORY,
    };
    health.check()?;
    if settings.cluster.is_some() {
        cluster::required()?;
    }
    let health = (settings.aggregate && settings.health_check).then_some(health);
    raise_open_files();
    let grace = settings.grace.duration();
    let _sim = simulate(&mut settings).await?;
    let settings = gym_output::resume(settings).await?;
    let mut sweep = tokio::select! {
        prepared = Sweep::prepare(settings) => prepared?,
        // Nothing was sent or written yet.
        stopped = interrupted() => return stopped.map(|()| Exit::Interrupted),
    };
    tell(&sweep);
    let live = live.map(|every| sweep.measure_live(every.duration()));
    let progress = ProgressDisplay::start(sweep.progress(), live, mode(display));
    let _signals = stop_on_signal(sweep.shutdown(), grace, progress.messages())?;
    let trackers = track(&sweep, &progress, display)?;
    let (shutdown, upload_rollouts) = (sweep.shutdown(), sweep.settings().upload_rollouts);
    let (report, died) = match gym {
        Some(gym) => unless_died(sweep, gym).await,
        None => (collect_sweep(sweep).await, None),
    };
    let mut unlogged = Vec::new();
    if let Some(trackers) = trackers {
        let ending = Ending {
            ended_well: report
                .as_ref()
                .is_ok_and(|report| report.stopped_by.is_none()),
            has_metrics: report.is_ok(),
            has_rollouts: report.is_ok() && upload_rollouts && !shutdown.is_stopping(),
        };
        tokio::select! {
            warnings = trackers.finish(ending) => unlogged = warnings,
            // A server that died has set it, too.
            () = shutdown.aborting(), if died.is_none() => {}
        }
    }
    progress.finish(report.is_ok()).await;
    unlogged.iter().for_each(warn);
    if let Some(died) = died {
        match report {
            Ok(report) => warn(format!(
                "{} of {} rollouts are done and kept in {}",
                report.rollouts.done, report.rollouts.planned, report.place
            )),
            Err(error) => warn(error),
        }
        return Err(died.into());
    }
    let report = report?;
    let exit = match report.state {
        RunState::Interrupted => Exit::Interrupted,
        RunState::Stopped => Exit::Stopped,
        _ if report.rollouts.failed > 0 || report.rollouts.pending > 0 => Exit::SomeFailed,
        _ => Exit::Done,
    };
    if !display.quiet {
        unless_gone(show::report(&report, display.json, display.verbose))?;
    }
    if let (Some(file), Some(place)) = (&shown.report, &place) {
        view::write(file, std::slice::from_ref(place), &FamilyArgs::default()).await?;
    }
    // The report comes first: it stays valid even if writing these files fails.
    if let (Some(rollouts), Some(place)) = (gym_files, place) {
        gym_output::write(Path::new(&rollouts), &place).await?;
        if let Some(options) = health
            && matches!(exit, Exit::Done | Exit::SomeFailed)
        {
            match health::check_collected(&rollouts, &place, &options).await {
                Ok(said) if !display.quiet => said.iter().for_each(note),
                Ok(_) => {}
                Err(error) => warn(format!("{rollouts} is there, its health unknown: {error}")),
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

/// Collects here, or on the cluster that the settings name.
async fn collect_sweep(sweep: Sweep) -> Result<SweepReport, Error> {
    #[cfg(feature = "cluster")]
    if let Some(cluster) = sweep.settings().cluster.clone() {
        return crate::cluster::collect(sweep, &cluster).await;
    }
    sweep.collect().await
}

/// Collects until the end, or until a server dies: then calls in flight are dropped, since they have nobody to answer.
async fn unless_died(
    sweep: Sweep,
    gym: &mut Launch,
) -> (Result<SweepReport, Error>, Option<LaunchError>) {
    let shutdown = sweep.shutdown();
    let mut collect = pin!(collect_sweep(sweep));
    let died = tokio::select! {
        report = &mut collect => return (report, None),
        died = gym.died() => died,
    };
    shutdown.abort();
    (collect.await, Some(died))
}

/// Starts to log the sweep to the trackers that the settings name. Processes that share a run would each log a part.
fn track(
    sweep: &Sweep,
    display: &ProgressDisplay,
    shown: &DisplayArgs,
) -> Result<Option<Trackers>, Error> {
    let (messages, quiet) = (display.messages(), shown.quiet);
    let tell = move |text: String| {
        if !quiet {
            messages.say(&format!("note: {text}"));
        }
    };
    let trackers = Trackers::start(sweep.settings(), sweep.run(), &sweep.progress(), tell)?;
    if sweep.settings().shard.is_some() && trackers.is_some() {
        note(
            "several processes collect this run: `rollstream export RUN` logs it to the trackers when it is complete",
        );
        return Ok(None);
    }
    Ok(trackers)
}

/// The run is incomplete although --require-complete is set.
#[derive(Debug, thiserror::Error)]
#[error(
    "EVAL FAILED: {done}/{planned} samples completed, but --require-complete is set. Partial results are in {place}; \
     `rollstream resume {place}` continues"
)]
struct Incomplete {
    /// Rollouts that are done.
    done: u64,
    /// Rollouts that were asked for.
    planned: u64,
    /// The path or URL of the run, for messages.
    place: String,
}

impl Fatal for Incomplete {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

/// Prints the notes and warnings of a prepared sweep to stderr.
fn tell(sweep: &Sweep) {
    sweep.notes().iter().for_each(note);
    sweep.warnings().into_iter().for_each(warn);
}

fn mode(display: &DisplayArgs) -> ProgressMode {
    match display {
        DisplayArgs { quiet: true, .. } => ProgressMode::Quiet,
        DisplayArgs { json: true, .. } => ProgressMode::Json,
        _ if io::stderr().is_terminal() => ProgressMode::Terminal {
            colors: wants_colors(display.no_color),
        },
        _ => ProgressMode::Lines,
    }
}

/// `rollstream plan`: prints what `collect` would do. Sends nothing and writes nothing.
pub(super) async fn plan(args: CollectArgs) -> Result<Exit, Error> {
    let resolved = args.resolve_and_tell()?;
    let mut settings = resolved.settings;
    if let Some(gym) = Launch::of(&settings, resolved.gym_secrets)? {
        gym.reuse(&mut settings).await?;
    }
    // `collect` raises the limit too, and the plan shows it.
    raise_open_files();
    let _sim = simulate(&mut settings).await?;
    let sweep = Sweep::prepare(settings).await?;
    tell(&sweep);
    let plan = sweep.plan().await?;
    unless_gone(show::plan(
        &plan,
        args.shown.display.json,
        args.shown.display.verbose,
    ))?;
    Ok(Exit::Done)
}

/// The name of the agent that is simulated if no setting gives its address.
pub(super) const SIMULATED: &str = "sim";

/// Starts the simulated agent for `--agent sim`, if no setting gives it an address. It listens on free ports of the
/// loopback interface until it is dropped.
async fn simulate(settings: &mut Settings) -> Result<Option<Sim>, Error> {
    let own = settings.agents.get(SIMULATED);
    let is_known = own.is_some_and(|agent| agent.url.is_some() || agent.runs_here());
    let is_known = is_known || settings.head_server.is_some();
    if settings.agent.as_deref() != Some(SIMULATED) || is_known {
        return Ok(None);
    }
    let config: SimConfig = serde_json::from_value(settings.sim.clone().into())
        .map_err(|error| Error::usage("[sim]", error))?;
    let sim = Sim::start(config).await?;
    settings.agents.entry(SIMULATED.to_owned()).or_default().url =
        sim.agent_url(SIMULATED).and_then(|url| url.parse().ok());
    Ok(Some(sim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_wins_over_json() {
        let display = |quiet, json| DisplayArgs {
            quiet,
            verbose: false,
            json,
            no_color: false,
        };
        assert_eq!(mode(&display(true, true)), ProgressMode::Quiet);
        assert_eq!(mode(&display(false, true)), ProgressMode::Json);
    }
}
