//! Logs runs to experiment trackers, W&B and MLflow, as NeMo Gym's exporters do: progress, settings, metrics, rollouts.
//!
//! [`Trackers`] are those that the settings name. A `Tracker` is one service: `mlflow` talks to the server, `wandb` to
//! the service's Python package, without which `wandb_files` writes what the package would. Each has a task of its own,
//! `follow`, which no sweep waits for but at its end, and then for [`LAST`] at most. What a tracker did not take is noted
//! beside the run, and is sent by the next process that logs it. The command line uses it.

mod end;
mod error;
mod follow;
mod mlflow;
mod mlflow_names;
mod wandb;
mod wandb_files;
mod wandb_log;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::Settings;
use crate::progress::{Point, Progress};
use crate::store::RunStore;

use end::RolloutTable;
pub use error::TrackError;
use follow::Follower;

/// The longest time that a tracker has for the last metrics when a sweep has ended.
pub const LAST: Duration = Duration::from_secs(10);

/// A service that logs runs. Its run is opened before anything is logged.
#[async_trait]
trait Tracker: Send {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// The file of the run that notes what it has.
    fn file(&self) -> &'static str;

    /// Where it logs, to tell the runs of two places apart.
    fn place(&self) -> String;

    /// Whether its own environment switches it off.
    fn is_disabled(&self) -> bool {
        false
    }

    /// Opens its run: the one of this id, or a new one. `run_id` is that of ours, for a tracker whose runs can be named.
    async fn open(&mut self, id: Option<&str>, run_id: &str) -> Result<Opened, TrackError>;

    /// Logs the settings.
    async fn config(&mut self, config: &Value) -> Result<(), TrackError>;

    /// Logs points of the progress.
    async fn points(&mut self, points: &[Point]) -> Result<(), TrackError>;

    /// Logs metrics of the end.
    async fn metrics(&mut self, metrics: &Map<String, Value>) -> Result<(), TrackError>;

    /// Logs the rollouts.
    async fn rollouts(&mut self, table: &RolloutTable) -> Result<(), TrackError>;

    /// Closes its run.
    async fn close(&mut self, ended_well: bool) -> Result<(), TrackError>;
}

/// An open run of a tracker.
struct Opened {
    id: String,
    /// Where to see it, for people.
    shown: Option<String>,
}

/// What whoever collects says at the end.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// Whether the sweep came to its end by itself.
    pub ended_well: bool,
    /// Whether the metrics of the run are logged, and not only the progress.
    pub has_metrics: bool,
    /// Whether the rollouts are logged too.
    pub has_rollouts: bool,
}

/// The end of a sweep, and until when it may be logged.
#[derive(Debug, Clone, Copy)]
struct End {
    ending: Ending,
    until: Instant,
}

/// The trackers of a run, at work until [`Self::finish`], or until they are dropped.
pub struct Trackers {
    tasks: JoinSet<Vec<String>>,
    ends: watch::Sender<Option<End>>,
}

impl fmt::Debug for Trackers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Trackers")
    }
}

impl Trackers {
    /// Starts to log the run at `place` to the trackers that the settings name, from the moment at which the progress has
    /// begun. `tell` gets the addresses of the pages, and which trackers are switched off: of those, nothing is noted, so that
    /// an export can log the run later. Returns none if no tracker is named.
    ///
    /// # Errors
    /// The settings name a tracker in part, or its client cannot be set up.
    pub fn start(
        settings: &Settings,
        place: &RunStore,
        progress: &Arc<Progress>,
        tell: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<Option<Self>, TrackError> {
        let trackers = named(settings, place)?;
        if trackers.is_empty() {
            return Ok(None);
        }
        progress.keep_series();
        let (ends, announced) = watch::channel(None);
        let tell: Arc<dyn Fn(String) + Send + Sync> = Arc::new(tell);
        let mut tasks = JoinSet::new();
        for tracker in trackers {
            if tracker.is_disabled() {
                tell(format!("{} is disabled, and logs nothing", tracker.name()));
                continue;
            }
            let follower = Follower::new(tracker, place.clone(), progress, &tell);
            tasks.spawn(follower.run(announced.clone()));
        }
        Ok(Some(Self { tasks, ends }))
    }

    /// Logs the end, and returns warnings about what was not logged. It takes [`LAST`] at most, and longer only while a
    /// tracker takes the rollouts.
    pub async fn finish(mut self, ending: Ending) -> Vec<String> {
        let until = Instant::now() + LAST;
        self.ends.send_replace(Some(End { ending, until }));
        let mut warnings = Vec::new();
        while let Some(done) = self.tasks.join_next().await {
            // A task that panicked has nothing to say.
            warnings.extend(done.unwrap_or_default());
        }
        warnings
    }
}

/// Returns the trackers that the settings name.
fn named(settings: &Settings, place: &RunStore) -> Result<Vec<Box<dyn Tracker>>, TrackError> {
    let mut trackers: Vec<Box<dyn Tracker>> = Vec::new();
    let keys = [
        ("wandb_project", settings.wandb_project.as_ref()),
        ("wandb_name", settings.wandb_name.as_ref()),
    ];
    if let Some([project, name]) = all(keys)? {
        let key = settings.wandb_api_key.clone();
        let folder = place.local_path().map(Path::to_owned);
        let wandb = wandb::Wandb::new(project, name, key, folder);
        trackers.push(Box::new(wandb));
    }
    let keys = [
        (
            "mlflow_experiment_name",
            settings.mlflow_experiment_name.as_ref(),
        ),
        ("mlflow_run_name", settings.mlflow_run_name.as_ref()),
    ];
    if let Some([experiment, name]) = all(keys)? {
        let Some(url) = &settings.mlflow_tracking_uri else {
            return Err(TrackError::Partial {
                present: "mlflow_run_name",
                absent: "mlflow_tracking_uri (or the variable MLFLOW_TRACKING_URI) with the address of a server",
            });
        };
        let token = settings.mlflow_tracking_token.clone();
        let mlflow = mlflow::Mlflow::new(url, token, experiment, name)?;
        trackers.push(Box::new(mlflow));
    }
    Ok(trackers)
}

/// Returns both values, or none if none is set.
fn all(keys: [(&'static str, Option<&String>); 2]) -> Result<Option<[String; 2]>, TrackError> {
    match keys {
        [(_, Some(one)), (_, Some(other))] => Ok(Some([one.clone(), other.clone()])),
        [(_, None), (_, None)] => Ok(None),
        [(present, Some(_)), (absent, None)] | [(absent, None), (present, Some(_))] => {
            Err(TrackError::Partial { present, absent })
        }
    }
}
