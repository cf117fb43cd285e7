//! What happens to a request, known before it happens: [`Profile`] holds the settings of one agent or server,
//! [`Profile::plan`] says what an agent does to the request [`Key`], and [`Profile::plan_call`] what another server does
//! to a call. Tests and benchmarks ask the same functions what a sweep must produce.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use super::config::{AgentConfig, SimConfig};
use super::draws::{Draws, digest};
use super::fault::{FaultAt, FaultKind};

/// How far a row's `difficulty` of `easy` or `hard` moves the log-odds of success. `medium` does not move them.
const ROW_DIFFICULTY_SHIFT: f64 = 1.5;

/// The model generates this many output tokens per turn, so long answers have more turns.
const TOKENS_PER_TURN: u64 = 250;

/// The streams of draws: one of a task for all its rollouts, one of a rollout for all its attempts, one of an attempt,
/// and one of a call to a server.
const OF_TASK: u64 = 1;
const OF_ROLLOUT: u64 = 2;
const OF_ATTEMPT: u64 = 3;
const OF_CALL: u64 = 4;

/// Names a request to an agent. All randomness depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// `"difficulty": "medium"`, another value, or none.
    Medium,
    /// `"difficulty": "hard"`.
    Hard,
}

/// What an agent does to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The fault, if any.
    pub fault: Option<FaultKind>,
    /// Time until the answer, with the delay of a slow first byte, without waiting for capacity.
    pub latency: Duration,
    /// The task's chance of success, from 0 to 1.
    pub success_probability: f64,
    /// Whether the answer is right. The same for all attempts at a rollout.
    pub correct: bool,
    /// 1 if right, else 0.
    pub reward: f64,
    /// Tokens of the prompt. The same for all rollouts of a task.
    pub input_tokens: u64,
    /// Tokens that the model generates.
    pub output_tokens: u64,
    /// Turns of the episode.
    pub turns: u64,
    /// Chooses the wording and the kind of mistake.
    pub variation: u64,
    /// Identifies the answer. Every attempt has a different one.
    pub answer_id: u64,
}

impl Planned {
    /// Whether the request gives a rollout: a whole answer with a reward and without flags of failure.
    pub fn gives_rollout(&self) -> bool {
        self.fault.is_none_or(FaultKind::gives_rollout)
    }
}

/// The identity of a call, from its `x-request-id`: `T-R-aA-cC`, with `-tN` at its N-th retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallId {
    /// Task, rollout and attempt.
    pub key: Key,
    /// How often this call has been made before.
    pub retry: u64,
}

impl CallId {
    /// Reads an id; none if it has another form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut number = |prefix: &str| parts.next()?.strip_prefix(prefix)?.parse().ok();
        let (task, rollout, attempt) = (number("")?, number("")?, number("a")?);
        let _call: u64 = number("c")?;
        let retry = match parts.next() {
            Some(part) => part.strip_prefix('t')?.parse().ok()?,
            None => 0,
        };
        let key = Key {
            task,
            rollout,
            attempt,
        };
        parts.next().is_none().then_some(Self { key, retry })
    }
}

/// The settings of one agent or server: its own if it has some, else those for all.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile(pub(super) SimConfig);

impl Deref for Profile {
    type Target = SimConfig;

    fn deref(&self) -> &SimConfig {
        &self.0
    }
}

impl Profile {
    /// Returns the settings of the agent `name`; those for all if it is not configured.
    pub fn new(config: &SimConfig, name: &str) -> Self {
        let own = config.agents.get(name).cloned().unwrap_or_default();
        Self::with(config, own)
    }

    /// Returns the settings of an agent or server with settings of its own.
    pub(super) fn with(config: &SimConfig, own: AgentConfig) -> Self {
        let all = SimConfig {
            agents: BTreeMap::new(),
            ..config.clone()
        };
        Self(SimConfig {
            latency: own.latency.unwrap_or(all.latency),
            difficulty: own.difficulty.unwrap_or(all.difficulty),
            faults: own.faults.unwrap_or(all.faults),
            fault_at: own.fault_at.unwrap_or(all.fault_at),
            fault_attempts: own.fault_attempts.or(all.fault_attempts),
            body_size: own.body_size.unwrap_or(all.body_size),
            capacity: own.capacity.or(all.capacity),
            over_capacity: own.over_capacity.unwrap_or(all.over_capacity),
            ..all
        })
    }

    /// Says what happens to the request `key`, whose row says that it is `difficulty`. A function of the settings and
    /// the arguments alone: whether the agent is down, or refuses for want of capacity, is not part of it.
    pub fn plan(&self, key: Key, difficulty: RowDifficulty) -> Planned {
        let (task, rollout) = (key.task, key.rollout);
        let mut of_task = Draws::keyed(self.seed, &[OF_TASK, task]);
        let mut of_rollout = Draws::keyed(self.seed, &[OF_ROLLOUT, task, rollout]);
        let mut of_attempt = Draws::keyed(self.seed, &[OF_ATTEMPT, task, rollout, key.attempt]);

        let success_probability = self.success_probability(difficulty, of_task.normal());
        let input_tokens = tokens(
            self.input_tokens,
            self.input_tokens_spread,
            of_task.normal(),
        );
        let correct = of_rollout.unit() < success_probability;
        let output_tokens = tokens(
            self.output_tokens,
            self.output_tokens_spread,
            of_rollout.normal(),
        );
        let variation = of_rollout.next_u64();
        let fault = self.fault(key, key.attempt, of_attempt.unit());
        let answer_id = of_attempt.next_u64();
        Planned {
            fault,
            latency: self.latency_of(fault, &mut of_attempt),
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

    /// Returns the fault and the latency of a call of `server`, without waiting for capacity. Both are drawn by the
    /// `x-request-id` and path of the call, so that a retry is drawn anew; without an id, by `number`, which is
    /// different for every call. For [`SimConfig::fault_attempts`], a retry counts as a further attempt.
    pub(super) fn plan_call(
        &self,
        server: &str,
        path: &str,
        id: Option<&str>,
        number: u64,
    ) -> (Option<FaultKind>, Duration) {
        let by = match id {
            Some(id) => digest(id.as_bytes()),
            None => digest(&number.to_le_bytes()),
        };
        let parts = [
            OF_CALL,
            digest(server.as_bytes()),
            digest(path.as_bytes()),
            by,
        ];
        let mut draws = Draws::keyed(self.seed, &parts);
        let unit = draws.unit();
        let fault = match id.and_then(CallId::parse) {
            Some(CallId { key, retry }) => self.fault(key, key.attempt.saturating_add(retry), unit),
            None => self.faults.pick(unit),
        };
        let fault = fault.filter(|kind| can_happen(*kind, path));
        (fault, self.latency_of(fault, &mut draws))
    }

    /// Returns the chance of success, logit-normal over tasks: `logistic(logit(1 - difficulty) + spread * z + shift)`.
    pub(super) fn success_probability(&self, difficulty: RowDifficulty, z: f64) -> f64 {
        let shift = match difficulty {
            RowDifficulty::Easy => ROW_DIFFICULTY_SHIFT,
            RowDifficulty::Medium => 0.0,
            RowDifficulty::Hard => -ROW_DIFFICULTY_SHIFT,
        };
        let logit = ((1.0 - self.difficulty) / self.difficulty).ln();
        1.0 / (1.0 + (-(logit + self.difficulty_spread * z + shift)).exp())
    }

    /// Returns the fault of a request that was tried `tries` times before.
    fn fault(&self, key: Key, tries: u64, unit: f64) -> Option<FaultKind> {
        let exempt = self.fault_attempts.is_some_and(|limit| tries >= limit);
        let here = |at: &&FaultAt| {
            at.task == key.task
                && at.rollout.is_none_or(|rollout| rollout == key.rollout)
                && at.attempt.map_or(!exempt, |attempt| attempt == key.attempt)
        };
        let placed = self.fault_at.iter().find(here).map(|at| at.kind);
        placed.or_else(|| self.faults.pick(unit).filter(|_| !exempt))
    }

    fn latency_of(&self, fault: Option<FaultKind>, draws: &mut Draws) -> Duration {
        let latency = self.latency.sample(draws);
        if fault == Some(FaultKind::SlowFirstByte) {
            latency.saturating_add(self.slow_first_byte)
        } else {
            latency
        }
    }
}

/// Whether a fault can happen: only some answers have a reward, and only a verify response has flags.
fn can_happen(kind: FaultKind, path: &str) -> bool {
    match kind {
        FaultKind::MissingReward | FaultKind::NotANumber => matches!(path, "/verify" | "/step"),
        FaultKind::NoPersist | FaultKind::FailureClass | FaultKind::FailureTerminal => {
            path == "/verify"
        }
        _ => true,
    }
}

/// Returns a log-normal draw with the given mean and standard deviation, rounded; `z` is standard normal.
fn tokens(mean: f64, spread: f64, z: f64) -> u64 {
    if mean <= 0.0 {
        return 0;
    }
    let variance = (1.0 + (spread / mean).powi(2)).ln();
    let drawn = (mean.ln() - variance / 2.0 + variance.sqrt() * z).exp();
    drawn.round().clamp(1.0, 1e15) as u64
}

/// Says what happens to a request to an agent without settings of its own, if the row does not say how hard it is.
pub fn oracle(config: &SimConfig, task: u64, rollout: u64, attempt: u64) -> Planned {
    let key = Key {
        task,
        rollout,
        attempt,
    };
    Profile::with(config, AgentConfig::default()).plan(key, RowDifficulty::Medium)
}

#[cfg(test)]
mod tests {
    use super::super::latency::Latency;
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

    #[test]
    fn an_agent_has_its_own_settings_over_those_for_all() {
        let mut config = SimConfig {
            capacity: Some(8),
            ..SimConfig::default()
        };
        let own = AgentConfig {
            latency: Some(Latency::Fixed(Duration::from_millis(7))),
            capacity: Some(1),
            ..AgentConfig::default()
        };
        config.agents.insert("own".into(), own);
        let plan = |agent| {
            Profile::new(&config, agent).plan(
                Key {
                    task: 0,
                    rollout: 0,
                    attempt: 0,
                },
                RowDifficulty::Medium,
            )
        };
        assert_eq!(plan("own").latency, Duration::from_millis(7));
        assert_eq!(plan("sim"), oracle(&config, 0, 0, 0));
        assert_eq!(Profile::new(&config, "own").capacity, Some(1));
        assert_eq!(Profile::new(&config, "sim").capacity, Some(8));
    }

    fn id(text: &str) -> Option<(u64, u64, u64, u64)> {
        let CallId { key, retry } = CallId::parse(text)?;
        Some((key.task, key.rollout, key.attempt, retry))
    }

    #[test]
    fn an_id_names_task_rollout_attempt_and_retry() {
        assert_eq!(id("3-1-a2-c7"), Some((3, 1, 2, 0)));
        assert_eq!(id("3-1-a2-c7-t4"), Some((3, 1, 2, 4)));
        for text in [
            "",
            "3",
            "3-1-a2",
            "3-1-2-7",
            "3-1-a2-c7-4",
            "3-1-a2-c7-t4-",
            "x-1-a2-c7",
        ] {
            assert_eq!(id(text), None, "{text}");
        }
    }

    fn profile(text: &str) -> Profile {
        let config: SimConfig = toml::from_str(text).unwrap();
        Profile::with(&config, Default::default())
    }

    #[test]
    fn a_retry_and_another_path_are_drawn_anew() {
        let profile = profile("faults = { error_500 = 0.5 }");
        let faults = |ids: &dyn Fn(u64) -> (String, String)| {
            let fault = |n| {
                let (path, id) = ids(n);
                profile.plan_call("m", &path, Some(&id), 0).0.is_some()
            };
            (0..400).filter(|n| fault(*n)).count()
        };
        let repeated = faults(&|n| ("/verify".into(), format!("1-1-a0-c0-t{n}")));
        assert!((150..250).contains(&repeated), "{repeated}");
        let paths = faults(&|n| (format!("/{n}"), "1-1-a0-c0".into()));
        assert!((150..250).contains(&paths), "{paths}");
        let same = faults(&|_| ("/verify".into(), "1-1-a0-c0".into()));
        assert!([0, 400].contains(&same), "{same}");
        let anonymous = (0..400).filter(|n| profile.plan_call("m", "/x", None, *n).0.is_some());
        assert!((150..250).contains(&anonymous.count()));
    }

    #[test]
    fn places_and_attempts_count_for_calls_too() {
        let profile = profile(
            "faults = { hang = 1.0 }\nfault_attempts = 2\nfault_at = [{ task = 3, kind = 'reset' }]",
        );
        let fault = |id: &str| profile.plan_call("m", "/x", Some(id), 0).0;
        assert_eq!(fault("3-0-a0-c0"), Some(FaultKind::Reset));
        assert_eq!(fault("4-0-a0-c0-t1"), Some(FaultKind::Hang));
        assert_eq!(fault("4-0-a0-c0-t2"), None);
        assert_eq!(fault("4-0-a1-c0-t1"), None);
    }

    #[test]
    fn what_has_no_reward_cannot_lose_it() {
        let profile = profile("faults = { missing_reward = 1.0 }");
        let fault = |path: &str| profile.plan_call("m", path, Some("1-0-a0-c0"), 0).0;
        assert_eq!(fault("/verify"), Some(FaultKind::MissingReward));
        assert_eq!(fault("/v1/responses"), None);
    }
}
