//! [`Series`]: how a sweep stood at each percent of its rollouts, as NeMo Gym logs it to trackers.

use std::collections::BTreeMap;
use std::time::Instant;

use chrono::Utc;
use serde::{Deserialize, Serialize};

use super::AgentProgress;

/// How a sweep stood at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Rollouts that had ended, in whole percent.
    pub step: u64,
    /// The time, in milliseconds since 1970.
    pub at: i64,
    /// Each metric by its name.
    pub metrics: BTreeMap<String, f64>,
}

/// The points so far, about one for each percent.
#[derive(Debug)]
pub(super) struct Series {
    began: Instant,
    planned: u64,
    /// Rollouts that have ended, and those of them that earlier processes left.
    ended: u64,
    earlier: u64,
    /// The number of the share at which the next point is due.
    next: u32,
    pub(super) points: Vec<Point>,
}

/// Returns the share at which a point is due, in percent; none after the last.
fn share(number: u32) -> Option<f64> {
    match number {
        0..=98 => Some(f64::from(number + 1)),
        99 => Some(99.5),
        100 => Some(100.0),
        _ => None,
    }
}

impl Series {
    /// Begins with these counts.
    pub(super) fn new<'a>(agents: impl IntoIterator<Item = &'a AgentProgress>) -> Self {
        let (mut planned, mut ended) = (0, 0);
        for agent in agents {
            planned += agent.planned;
            ended += agent.num_ended();
        }
        let mut series = Self {
            began: Instant::now(),
            planned,
            ended,
            earlier: ended,
            next: 0,
            points: Vec::new(),
        };
        series.pass();
        series
    }

    /// Counts rollouts that ended, and adds a point if one is due.
    pub(super) fn count(&mut self, ended: u64, agents: &BTreeMap<String, AgentProgress>) {
        self.ended += ended;
        if self.pass() {
            self.add(agents);
        }
    }

    /// Goes on to the next share that is not reached; returns whether one was reached.
    fn pass(&mut self) -> bool {
        let before = self.next;
        let percent = 100.0 * self.ended as f64 / self.planned.max(1) as f64;
        while share(self.next).is_some_and(|share| percent >= share) {
            self.next += 1;
        }
        self.next > before
    }

    fn add(&mut self, agents: &BTreeMap<String, AgentProgress>) {
        let minutes = self.began.elapsed().as_secs_f64() / 60.0;
        let rate = (self.ended - self.earlier) as f64 / minutes;
        let mut metrics = BTreeMap::from([("progress/total/rollouts_per_min".to_owned(), rate)]);
        for (name, agent) in agents {
            let unscored = &agent.unscored;
            let mut all = agent.rewards;
            all.add(unscored.rewards);
            let mut put = |metric: &str, value: f64| {
                metrics.insert(format!("progress/{name}/{metric}"), value);
            };
            if all.count > 0 {
                let left = agent.pending().saturating_sub(unscored.omitted);
                put("reward", hundredths(all.sum, all.count));
                put("reward_lower_bound", hundredths(all.sum, left + all.count));
            }
            let failed = agent.num_failed();
            if unscored.num_masked + unscored.omitted + failed == 0 {
                continue;
            }
            if unscored.num_masked > 0 {
                let stored = unscored.num_masked + agent.rewards.count;
                put("masked_pct", hundredths(unscored.num_masked as f64, stored));
            }
            if agent.rewards.count > 0 {
                let mean = hundredths(agent.rewards.sum, agent.rewards.count);
                put("reward_unmasked", mean);
            }
            for (metric, count) in [("failed", failed), ("omitted", unscored.omitted)] {
                if count > 0 {
                    put(metric, count as f64);
                }
            }
        }
        self.points.push(Point {
            step: 100 * self.ended / self.planned.max(1),
            at: Utc::now().timestamp_millis(),
            metrics,
        });
    }
}

/// Returns `sum / count` in percent with two decimals, rounded as Python does.
fn hundredths(sum: f64, count: u64) -> f64 {
    let percent = 100.0 * sum / count as f64;
    format!("{percent:.2}").parse().unwrap_or(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_goes_to_the_even_digit_as_in_python() {
        let rounded = [1.0, 3.0, 5.0, 7.0].map(|sum| hundredths(sum, 32));
        assert_eq!(rounded, [3.12, 9.38, 15.62, 21.88]);
    }

    #[test]
    fn points_are_due_at_each_percent_that_was_not_reached_before() {
        let agent = AgentProgress::before(400, 6, BTreeMap::new());
        let agents = BTreeMap::from([("a".to_owned(), agent)]);
        let mut series = Series::new(agents.values());
        for _ in 6..400 {
            series.count(1, &agents);
        }
        let steps: Vec<u64> = series.points.iter().map(|point| point.step).collect();
        let expected: Vec<u64> = (2..=99).chain([99, 100]).collect();
        assert_eq!(steps, expected);
    }
}
