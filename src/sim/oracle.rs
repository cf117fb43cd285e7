//! What will happen, before it happens: [`Key`] names a request, and [`Profile::plan`] answers with
//! a [`Planned`]. Tests and benchmarks ask the oracle
//! what must come out of a sweep; the server itself does nothing else.

use std::time::Duration;

use super::config::SimConfig;
use super::draws::Draws;
use super::fault::{FaultAt, FaultKind};
use super::profile::Profile;

/// How far a row's own `difficulty` of `easy` or `hard` moves the log-odds of success. `medium`
/// does not move them.
pub const ROW_DIFFICULTY_SHIFT: f64 = 1.5;

/// A turn costs the model this many output tokens, so long answers have more turns.
const TOKENS_PER_TURN: u64 = 250;

/// The streams of draws: what a task has in all its rollouts, what a rollout has in all its
/// attempts, and what an attempt has to itself.
const OF_TASK: u64 = 1;
const OF_ROLLOUT: u64 = 2;
const OF_ATTEMPT: u64 = 3;

/// A request, as far as chance is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Index of the task.
    pub task: u64,
    /// Index of the rollout within the task.
    pub rollout: u64,
    /// Number of the attempt, from 0.
    pub attempt: u64,
}

/// How hard a row says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowDifficulty {
    /// `"difficulty": "easy"`.
    Easy,
    /// `"difficulty": "medium"`, or nothing that is known.
    Medium,
    /// `"difficulty": "hard"`.
    Hard,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// What goes wrong, if anything.
    pub fault: Option<FaultKind>,
    /// Time until the answer, with what a slow first byte adds; waiting for capacity comes on top.
    pub latency: Duration,
    /// The task's chance of success, from 0 to 1.
    pub success_probability: f64,
    /// The answer is right. The same for all attempts at a rollout.
    pub correct: bool,
    /// 1 if right, else 0.
    pub reward: f64,
    /// Tokens of the prompt. The same for all rollouts of a task.
    pub input_tokens: u64,
    /// Tokens that the model generates.
    pub output_tokens: u64,
    /// Turns of the episode.
    pub turns: u64,
    /// Chooses the wording and the way of being wrong.
    pub variation: u64,
    /// Names this very answer: other attempts have others.
    pub answer_id: u64,
}

impl Planned {
    /// The request gives a rollout: a whole answer that has a reward and no flag of failure.
    pub fn gives_rollout(&self) -> bool {
        self.fault.is_none_or(FaultKind::gives_rollout)
    }
}

impl Profile {
    /// What happens to the request `key`, whose row says that it is `difficulty`. A function of
    /// the settings and the arguments, and of nothing else: that an agent is down, or over capacity
    /// and refuses, is no part of it.
    pub fn plan(&self, key: Key, difficulty: RowDifficulty) -> Planned {
        let Key {
            task,
            rollout,
            attempt,
        } = key;
        let mut of_task = Draws::keyed(self.seed, &[OF_TASK, task]);
        let mut of_rollout = Draws::keyed(self.seed, &[OF_ROLLOUT, task, rollout]);
        let mut of_attempt = Draws::keyed(self.seed, &[OF_ATTEMPT, task, rollout, attempt]);

        let success_probability = self.success_probability(difficulty, of_task.normal());
        let input_tokens = tokens(self.input_tokens, of_task.normal());
        let correct = of_rollout.unit() < success_probability;
        let output_tokens = tokens(self.output_tokens, of_rollout.normal());
        let variation = of_rollout.next_u64();
        let fault = self.fault(key, attempt, of_attempt.unit());
        let answer_id = of_attempt.next_u64();
        let slow = fault == Some(FaultKind::SlowFirstByte);
        let extra = if slow {
            self.slow_first_byte
        } else {
            Duration::ZERO
        };
        Planned {
            fault,
            latency: self.latency.sample(&mut of_attempt).saturating_add(extra),
            success_probability,
            correct,
            reward: f64::from(u8::from(correct)),
            input_tokens,
            output_tokens,
            turns: 1 + output_tokens / TOKENS_PER_TURN,
            variation,
            answer_id,
        }
    }

    /// Logit-normal over tasks: `logistic(logit(1 - difficulty) + spread * z + shift)`.
    pub(super) fn success_probability(&self, difficulty: RowDifficulty, z: f64) -> f64 {
        let shift = match difficulty {
            RowDifficulty::Easy => ROW_DIFFICULTY_SHIFT,
            RowDifficulty::Medium => 0.0,
            RowDifficulty::Hard => -ROW_DIFFICULTY_SHIFT,
        };
        let logit = ((1.0 - self.difficulty) / self.difficulty).ln();
        1.0 / (1.0 + (-(logit + self.difficulty_spread * z + shift)).exp())
    }

    /// What goes wrong with a request that was tried `tries` times before.
    pub(super) fn fault(&self, key: Key, tries: u64, unit: f64) -> Option<FaultKind> {
        let exempt = self.fault_attempts.is_some_and(|limit| tries >= limit);
        let here = |at: &&FaultAt| {
            at.task == key.task
                && at.rollout.is_none_or(|rollout| rollout == key.rollout)
                && at.attempt.map_or(!exempt, |attempt| attempt == key.attempt)
        };
        let placed = self.fault_at.iter().find(here).map(|at| at.kind);
        placed.or_else(|| if exempt { None } else { self.faults.pick(unit) })
    }
}

/// A log-normal draw with the given mean and standard deviation, rounded; `z` is standard normal.
fn tokens((mean, spread): (f64, f64), z: f64) -> u64 {
    if mean <= 0.0 {
        return 0;
    }
    let variance = (1.0 + (spread / mean).powi(2)).ln();
    let drawn = (mean.ln() - variance / 2.0 + variance.sqrt() * z).exp();
    drawn.round().clamp(1.0, 1e15) as u64
}

/// What happens to a request at an agent whose settings are those for all, with a row that does
/// not say how hard it is.
pub fn oracle(config: &SimConfig, task: u64, rollout: u64, attempt: u64) -> Planned {
    let profile = Profile::new(
        &SimConfig {
            agents: Default::default(),
            ..config.clone()
        },
        "",
    );
    profile.plan(
        Key {
            task,
            rollout,
            attempt,
        },
        RowDifficulty::Medium,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(config: &SimConfig, tasks: u64, rollouts: u64) -> Vec<Planned> {
        let profile = Profile::new(config, "sim");
        let keys = (0..tasks).flat_map(|task| (0..rollouts).map(move |rollout| (task, rollout)));
        keys.map(|(task, rollout)| {
            profile.plan(
                Key {
                    task,
                    rollout,
                    attempt: 0,
                },
                RowDifficulty::Medium,
            )
        })
        .collect()
    }

    fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let n = values.len() as f64;
        values.sum::<f64>() / n
    }

    #[test]
    fn plans_depend_on_seed_task_rollout_and_attempt_alone() {
        let config = SimConfig::default();
        assert_eq!(oracle(&config, 3, 1, 0), oracle(&config, 3, 1, 0));
        let ids = [
            oracle(&config, 3, 1, 0),
            oracle(&config, 1, 3, 0),
            oracle(&config, 3, 1, 1),
            oracle(
                &SimConfig {
                    seed: 1,
                    ..config.clone()
                },
                3,
                1,
                0,
            ),
        ]
        .map(|plan| plan.answer_id);
        let distinct: std::collections::BTreeSet<u64> = ids.into_iter().collect();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn a_plan_is_the_same_in_every_version() {
        let plan = oracle(&SimConfig::default(), 3, 1, 2);
        assert_eq!(
            (
                plan.correct,
                plan.input_tokens,
                plan.output_tokens,
                plan.turns,
                plan.answer_id
            ),
            PINNED
        );
    }

    // Worked out by a second implementation, in another language.
    const PINNED: (bool, u64, u64, u64, u64) = (false, 278, 479, 2, 1_463_047_242_198_711_559);

    #[test]
    fn an_attempt_changes_neither_success_nor_tokens() {
        let config = SimConfig::default();
        let of = |attempt| {
            let plan = oracle(&config, 5, 2, attempt);
            (
                plan.correct,
                plan.input_tokens,
                plan.output_tokens,
                plan.variation,
            )
        };
        assert!((1..20).all(|attempt| of(attempt) == of(0)));
    }

    #[test]
    fn difficulty_and_spread_shape_the_tasks() {
        let of = |difficulty, difficulty_spread| {
            let config = SimConfig {
                difficulty,
                difficulty_spread,
                ..SimConfig::default()
            };
            let mut chances: Vec<f64> = plans(&config, 2001, 1)
                .iter()
                .map(|plan| plan.success_probability)
                .collect();
            chances.sort_by(f64::total_cmp);
            (chances[0], chances[1000], chances[2000])
        };
        let (low, median, high) = of(0.3, 0.0);
        assert!(
            [low, median, high]
                .iter()
                .all(|chance| (chance - 0.7).abs() < 1e-9)
        );
        let (low, median, high) = of(0.3, 2.0);
        assert!((median - 0.7).abs() < 0.05 && low < 0.05 && high > 0.99);
        assert_eq!(of(0.0, 1.0), (1.0, 1.0, 1.0));
        assert_eq!(of(1.0, 1.0), (0.0, 0.0, 0.0));
    }

    #[test]
    fn a_row_says_how_hard_it_is() {
        let profile = Profile::new(&SimConfig::default(), "sim");
        let chance = |difficulty| {
            profile
                .plan(
                    Key {
                        task: 1,
                        rollout: 0,
                        attempt: 0,
                    },
                    difficulty,
                )
                .success_probability
        };
        assert!(chance(RowDifficulty::Easy) > chance(RowDifficulty::Medium));
        assert!(chance(RowDifficulty::Medium) > chance(RowDifficulty::Hard));
    }

    #[test]
    fn successes_come_as_often_as_the_tasks_chance_says() {
        let plans = plans(&SimConfig::default(), 20, 2000);
        let expected = mean(plans.iter().map(|plan| plan.success_probability));
        assert!((mean(plans.iter().map(|plan| plan.reward)) - expected).abs() < 0.01);
    }

    #[test]
    fn tokens_have_their_mean_and_spread() {
        let plans = plans(&SimConfig::default(), 1, 50_000);
        let tokens = || plans.iter().map(|plan| plan.output_tokens as f64);
        let average = mean(tokens());
        let spread = mean(tokens().map(|n| (n - average).powi(2))).sqrt();
        assert!((average - 500.0).abs() < 5.0, "{average}");
        assert!((spread - 250.0).abs() < 10.0, "{spread}");
        assert!(
            plans
                .iter()
                .all(|plan| plan.input_tokens == plans[0].input_tokens)
        );
    }

    #[test]
    fn faults_come_at_their_rates() {
        let mut config = SimConfig::default();
        config.faults.0.insert(FaultKind::Reset, 0.1);
        config.faults.0.insert(FaultKind::NotJson, 0.2);
        let plans = plans(&config, 100, 200);
        let share = |fault| mean(plans.iter().map(|plan| f64::from(plan.fault == fault)));
        assert!((share(Some(FaultKind::Reset)) - 0.1).abs() < 0.01);
        assert!((share(Some(FaultKind::NotJson)) - 0.2).abs() < 0.01);
        assert!((share(None) - 0.7).abs() < 0.01);
    }

    #[test]
    fn places_come_before_rates_and_attempts_end_both() {
        let mut config = SimConfig {
            fault_attempts: Some(2),
            ..SimConfig::default()
        };
        config.faults.0.insert(FaultKind::Error500, 1.0);
        config.fault_at = ["4:1=hang", "4=reset", "5:0:7=not_json"]
            .map(|at| at.parse().unwrap())
            .to_vec();
        let fault = |task, rollout, attempt| oracle(&config, task, rollout, attempt).fault;
        assert_eq!(fault(4, 1, 0), Some(FaultKind::Hang));
        assert_eq!(fault(4, 0, 1), Some(FaultKind::Reset));
        assert_eq!(fault(4, 0, 2), None);
        assert_eq!(fault(5, 0, 0), Some(FaultKind::Error500));
        assert_eq!(fault(5, 0, 2), None);
        assert_eq!(fault(5, 0, 7), Some(FaultKind::NotJson));
    }

    #[test]
    fn an_answer_that_is_late_or_huge_gives_a_rollout_and_no_other_fault_does() {
        let gives = |at: &str| {
            let fault_at = vec![at.parse().unwrap()];
            let config = SimConfig {
                fault_at,
                ..SimConfig::default()
            };
            oracle(&config, 0, 0, 0).gives_rollout()
        };
        assert!(gives("1=reset"));
        for kind in FaultKind::ALL {
            let expected = ["slow_first_byte", "huge_answer"].contains(&kind.name());
            assert_eq!(gives(&format!("0={kind}")), expected, "{kind}");
        }
    }

    #[test]
    fn a_slow_first_byte_adds_to_the_latency() {
        let mut config = SimConfig::default();
        let usual = oracle(&config, 0, 0, 0).latency;
        config.fault_at = vec!["0=slow_first_byte".parse().unwrap()];
        assert_eq!(
            oracle(&config, 0, 0, 0).latency,
            usual + config.slow_first_byte
        );
    }
}
