use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};

/// How far a rate looks back.
const SPAN: Duration = Duration::from_secs(60);

/// The stretch of time over which rates are taken.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RateWindow {
    /// Its beginning.
    #[serde(serialize_with = "rfc3339")]
    pub since: DateTime<Utc>,
    /// Its end: now where somebody is at work, else when the last attempt finished.
    #[serde(serialize_with = "rfc3339")]
    pub until: DateTime<Utc>,
    /// Its length.
    pub seconds: f64,
    /// It ends now.
    pub is_current: bool,
}

impl RateWindow {
    /// The last minute before `now`, or since the oldest of those at work began.
    pub(super) fn current(now: DateTime<Utc>, began: Option<DateTime<Utc>>) -> Option<Self> {
        Self::new(began, now, true)
    }

    /// The last minute of a run that is over.
    pub(super) fn last(
        first_dispatched: Option<DateTime<Utc>>,
        last_finished: Option<DateTime<Utc>>,
    ) -> Option<Self> {
        Self::new(first_dispatched, last_finished?, false)
    }

    fn new(began: Option<DateTime<Utc>>, until: DateTime<Utc>, is_current: bool) -> Option<Self> {
        let since = (until - SPAN).max(began.unwrap_or(DateTime::<Utc>::MIN_UTC));
        // None too if another machine's clock is ahead of ours.
        let seconds = (until - since).to_std().ok()?.as_secs_f64();
        (seconds > 0.0).then_some(Self {
            since,
            until,
            seconds,
            is_current,
        })
    }

    pub(super) fn rate(&self, num_done: u64) -> f64 {
        num_done as f64 / self.seconds
    }
}

pub(super) fn rfc3339<S: Serializer>(
    time: &DateTime<Utc>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::Micros, true))
}

pub(super) fn optional_rfc3339<S: Serializer>(
    time: &Option<DateTime<Utc>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => rfc3339(time, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn a_live_run_is_looked_at_over_a_minute_or_since_it_began() {
        let window = RateWindow::current(at(600), Some(at(0))).unwrap();
        assert_eq!((window.since, window.until), (at(540), at(600)));
        let window = RateWindow::current(at(600), Some(at(590))).unwrap();
        assert_eq!((window.seconds, window.rate(25)), (10.0, 2.5));
        assert_eq!(RateWindow::current(at(600), Some(at(601))), None);
    }

    #[test]
    fn a_run_that_is_over_is_looked_at_where_it_ended() {
        let window = RateWindow::last(Some(at(0)), Some(at(30))).unwrap();
        assert_eq!((window.since, window.seconds), (at(0), 30.0));
        let window = RateWindow::last(Some(at(0)), Some(at(300))).unwrap();
        assert_eq!((window.since, window.is_current), (at(240), false));
        assert_eq!(RateWindow::last(Some(at(0)), None), None);
    }
}
