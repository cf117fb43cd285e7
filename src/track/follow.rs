//! [`Follower`]: the task that keeps one tracker at the state of a sweep.

use std::future::pending;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::end;
use super::{End, Ending, LAST, TrackError, Tracker};
use crate::progress::{Point, Progress};
use crate::retry::Backoff;
use crate::store::{RunRecord, RunStore};

/// The time between two looks at the progress.
const EVERY: Duration = Duration::from_secs(1);

/// The pauses after a failure.
const BACKOFF: Backoff = Backoff {
    base: EVERY,
    cap: Duration::from_secs(30),
};

/// How often the end is tried.
const TRIES: u32 = 4;

/// What a tracker has of a run: `tracker_NAME.json` beside `run.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Sent {
    /// Where the tracker logs.
    place: String,
    /// The id of its run there, once it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default)]
    has_config: bool,
    /// The end of the run whose metrics it has, as in `run.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metrics_of: Option<String>,
    /// The end of the run whose rollouts it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rollouts_of: Option<String>,
    /// Points that it did not take: about one for each percent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<Point>,
}

/// Logs a run to one tracker while it is collected, and its end.
pub(super) struct Follower {
    tracker: Box<dyn Tracker>,
    place: RunStore,
    progress: Arc<Progress>,
    tell: Arc<dyn Fn(String) + Send + Sync>,
    sent: Sent,
    /// Whether `sent` is what an earlier process has noted. The sweep may replace the run until the progress has begun.
    is_loaded: bool,
    is_open: bool,
    /// Points that were taken from the progress.
    taken: usize,
    has_warned: bool,
}

impl Follower {
    pub(super) fn new(
        tracker: Box<dyn Tracker>,
        place: RunStore,
        progress: &Arc<Progress>,
        tell: &Arc<dyn Fn(String) + Send + Sync>,
    ) -> Self {
        Self {
            tracker,
            place,
            progress: Arc::clone(progress),
            tell: Arc::clone(tell),
            sent: Sent::default(),
            is_loaded: false,
            is_open: false,
            taken: 0,
            has_warned: false,
        }
    }

    /// Follows the progress to its end, and returns warnings about what was not logged.
    pub(super) async fn run(mut self, mut ends: watch::Receiver<Option<End>>) -> Vec<String> {
        let mut announced = ends.clone();
        let late = async {
            let end = announced.wait_for(Option::is_some).await;
            match end.ok().and_then(|end| *end) {
                Some(end) => sleep_until(end.until).await,
                // Its owner has gone, and soon so has it.
                None => pending().await,
            }
        };
        let end = tokio::select! {
            end = self.follow(&mut ends) => Ok(end),
            () = late => Err(TrackError::Late(LAST)),
        };
        let done = match end {
            // Nothing of this run was ever there, or nobody waits for its end.
            _ if !self.progress.has_begun() => return Vec::new(),
            Ok(None) => return Vec::new(),
            Ok(Some(end)) => self.end(end).await,
            Err(late) => Err(late),
        };
        let mut warnings = Vec::new();
        if let Err(error) = done {
            warnings.extend(self.warning(&error));
        }
        match tokio::time::timeout(LAST, self.save()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warnings.push(self.not_noted(&error)),
            Err(_) => warnings.push(self.not_noted(&TrackError::Late(LAST))),
        }
        warnings
    }

    fn not_noted(&self, error: &TrackError) -> String {
        format!("cannot note what {} has: {error}", self.tracker.name())
    }

    /// Logs the progress until the end is announced; none if its owner has gone.
    async fn follow(&mut self, ends: &mut watch::Receiver<Option<End>>) -> Option<End> {
        let mut failures = 0;
        loop {
            let pause = match failures {
                0 => EVERY,
                _ => BACKOFF.jittered(failures, fastrand::f64()).max(EVERY),
            };
            tokio::select! {
                end = ends.wait_for(Option::is_some) => return end.ok().and_then(|end| *end),
                () = sleep(pause) => {}
            }
            if !self.progress.has_begun() {
                continue;
            }
            match self.advance().await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    if let Some(warning) = self.warning(&error) {
                        self.progress.notice(warning);
                    }
                }
            }
        }
    }

    /// Returns a warning the first time that something is not logged.
    fn warning(&mut self, error: &TrackError) -> Option<String> {
        let is_first = !replace(&mut self.has_warned, true);
        let (name, place) = (self.tracker.name(), self.place.display(""));
        is_first.then(|| {
            format!(
                "{name} does not have all of the run: {error}. The run itself lacks nothing, and \
                 `rollstream export {place}` logs the rest later"
            )
        })
    }

    /// Opens the tracker's run if it is not open, and logs what is new.
    async fn advance(&mut self) -> Result<(), TrackError> {
        self.take_points().await?;
        if !self.is_open || !self.sent.has_config {
            let record = record(&self.place).await?;
            if !self.is_open {
                let id = self.sent.id.as_deref();
                let opened = self.tracker.open(id, &record.run_id).await?;
                self.sent.id = Some(opened.id);
                self.is_open = true;
                if let Some(shown) = opened.shown {
                    (self.tell)(format!("{}: {shown}", self.tracker.name()));
                }
                // A process that is killed now must not leave a run that nobody knows.
                self.save().await?;
            }
            if !self.sent.has_config {
                self.tracker.config(&end::config(&record)).await?;
                self.sent.has_config = true;
            }
        }
        if !self.sent.waiting.is_empty() {
            self.tracker.points(&self.sent.waiting).await?;
            self.sent.waiting.clear();
        }
        Ok(())
    }

    /// Adds new points to those that wait.
    async fn take_points(&mut self) -> Result<(), TrackError> {
        if !self.is_loaded {
            let place = self.tracker.place();
            let kept = self.place.get(self.tracker.file()).await?;
            let kept = kept.and_then(|kept| serde_json::from_slice::<Sent>(&kept).ok());
            let kept = kept.filter(|kept| kept.place == place);
            self.sent = kept.unwrap_or_default();
            self.sent.place = place;
            self.is_loaded = true;
        }
        let new = self.progress.points(self.taken);
        self.taken += new.len();
        self.sent.waiting.extend(new);
        Ok(())
    }

    /// Logs the end in time; only the rollouts may take longer.
    async fn end(&mut self, end: End) -> Result<(), TrackError> {
        let mut failures = 0;
        let record = loop {
            let error = match timeout_at(end.until, self.end_metrics(end.ending)).await {
                Ok(Ok(record)) => break record,
                Ok(Err(error)) => error,
                Err(_) => return Err(TrackError::Late(LAST)),
            };
            failures += 1;
            let again = Instant::now() + BACKOFF.jittered(failures, fastrand::f64());
            if !error.is_transient() || failures == TRIES || again >= end.until {
                return Err(error);
            }
            sleep_until(again).await;
        };
        if end.ending.has_rollouts {
            self.rollouts(&record).await?;
        }
        let close = self.tracker.close(end.ending.ended_well);
        let closed = timeout(LAST, close).await;
        closed.map_err(|_| TrackError::Late(LAST))?
    }

    async fn end_metrics(&mut self, ending: Ending) -> Result<RunRecord, TrackError> {
        self.advance().await?;
        let record = record(&self.place).await?;
        if ending.has_metrics && self.sent.metrics_of != record.finished_at {
            for metrics in end::metrics(&self.place, &record).await? {
                if !metrics.is_empty() {
                    self.tracker.metrics(&metrics).await?;
                }
            }
            self.sent.metrics_of.clone_from(&record.finished_at);
        }
        Ok(record)
    }

    async fn rollouts(&mut self, record: &RunRecord) -> Result<(), TrackError> {
        if self.sent.rollouts_of == record.finished_at {
            return Ok(());
        }
        let file = end::rollouts(&self.place, record).await?;
        let limit = file.time_to_send();
        let done = timeout(limit, self.tracker.rollouts(&file)).await;
        done.map_err(|_| TrackError::Late(limit))??;
        self.sent.rollouts_of.clone_from(&record.finished_at);
        Ok(())
    }

    /// Notes what the tracker has.
    async fn save(&mut self) -> Result<(), TrackError> {
        self.take_points().await?;
        let text = self.place.json(self.tracker.file(), &self.sent)?;
        Ok(self.place.put(self.tracker.file(), text).await?)
    }
}

async fn record(place: &RunStore) -> Result<RunRecord, TrackError> {
    let record = RunRecord::load(place).await?;
    record.ok_or_else(|| TrackError::NoRun(place.display("")))
}
