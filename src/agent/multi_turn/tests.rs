//! Tests of whole rollouts with a scripted model and a scripted environment.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::future::join_all;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Environments, Limits, MultiTurnAgent, MultiTurnOptions};
use crate::agent::{Agent, RolloutRequest};
use crate::call::{CallLog, RolloutKey};
use crate::config::{Driver, GroupFailure, Rules};
use crate::environment::{Environment, Sample, StepResult, Stepped};
use crate::group::{LegacyForm, SampleFacts, batch_metrics_legacy, group_metrics};
use crate::model::{Generation, GenerationRequest, Message, Policy, WhitespaceTokenizer};
use crate::retry::{Failure, FailureClass};

/// A turn of a script.
#[derive(Debug, Clone, Deserialize)]
struct Turn {
    generate: Generate,
    env: Observe,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Generate {
    text: String,
    truncated: bool,
    worker: Option<String>,
    error: Option<String>,
    /// Whether the model never answers.
    hangs: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct Observe {
    role: String,
    content: String,
    reward: f64,
    terminated: bool,
    next_stop_strings: Option<Vec<String>>,
    metadata: Value,
}

/// The turns of each rollout.
type Script = Arc<Vec<Vec<Turn>>>;

fn turn<'a>(script: &'a Script, log: &CallLog, turn: u32) -> &'a Turn {
    &script[log.key().rollout_index as usize][turn as usize - 1]
}

#[derive(Debug, Default)]
pub struct ScriptedPolicy {
    script: Script,
    /// Rollout and stop strings of every request.
    seen: Mutex<Vec<(i64, Option<Vec<String>>)>>,
    /// Notified when a request hangs.
    hanging: Notify,
}

#[async_trait]
impl Policy for ScriptedPolicy {
    async fn generate(
        &self,
        request: GenerationRequest<'_>,
        log: &CallLog,
    ) -> Result<Generation, Failure> {
        let stop = request.stop_strings.map(<[String]>::to_vec);
        let key = log.key().rollout_index;
        self.seen.lock().unwrap().push((key, stop));
        let generate = &turn(&self.script, log, request.turn).generate;
        if generate.hangs {
            self.hanging.notify_one();
            return std::future::pending().await;
        }
        if let Some(error) = &generate.error {
            let class = if error.starts_with("infra") {
                FailureClass::Infra
            } else {
                FailureClass::Data
            };
            return Err(Failure::new(class, error.as_str()));
        }
        Ok(Generation {
            text: generate.text.clone(),
            truncated: generate.truncated,
            worker: generate.worker.clone(),
            ..Generation::default()
        })
    }

    fn address(&self) -> String {
        "scripted model".into()
    }
}

#[derive(Debug, Default)]
pub struct ScriptedEnvironment {
    script: Script,
    /// The rollouts and the metadata that the environment got, for every step.
    seen: Mutex<Vec<Vec<(i64, Value)>>>,
}

#[async_trait]
impl Environment for ScriptedEnvironment {
    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped {
        let told = samples
            .iter()
            .map(|sample| (sample.log.key().rollout_index, sample.step.metadata.clone()));
        self.seen.lock().unwrap().push(told.collect());
        let results = samples.iter().map(|sample| {
            let env = &turn(&self.script, sample.log, sample.step.turn).env;
            StepResult {
                observation: Message::text(&*env.role, &*env.content),
                metadata: env.metadata.clone(),
                next_stop_strings: env.next_stop_strings.clone(),
                reward: env.reward,
                terminated: env.terminated,
                truncated: false,
                answer: None,
            }
        });
        Ok(results.map(Ok).collect())
    }

    fn address(&self) -> String {
        "scripted environment".into()
    }
}

/// An agent with its model and environment.
struct Played {
    agent: MultiTurnAgent,
    policy: Arc<ScriptedPolicy>,
    environment: Arc<ScriptedEnvironment>,
    prompt: Value,
}

impl Played {
    fn new(script: Vec<Vec<Turn>>, limits: (u32, u64), rules: Rules, driver: Driver) -> Self {
        Self::with(script, limits, |options| {
            options.rules = rules;
            options.driver = driver;
        })
    }

    fn with(
        script: Vec<Vec<Turn>>,
        (max_turns, max_seq_len): (u32, u64),
        change: impl FnOnce(&mut MultiTurnOptions),
    ) -> Self {
        let batch_size = NonZeroUsize::new(script.len());
        let script = Arc::new(script);
        let policy = Arc::new(ScriptedPolicy {
            script: Arc::clone(&script),
            ..ScriptedPolicy::default()
        });
        let environment = Arc::new(ScriptedEnvironment {
            script,
            ..ScriptedEnvironment::default()
        });
        let mut options = MultiTurnOptions {
            policy: Arc::clone(&policy) as Arc<dyn Policy>,
            environments: Environments::new([(
                "scripted".to_owned(),
                Arc::clone(&environment) as Arc<dyn Environment>,
            )]),
            tokenizer: Arc::new(WhitespaceTokenizer),
            rules: Rules::PerSample,
            limits: Limits {
                max_turns,
                max_seq_len,
            },
            max_new_tokens: None,
            driver: Driver::PerSample,
            batch_size,
            group: GroupFailure::Each,
            group_timeout: None,
        };
        change(&mut options);
        Self {
            agent: MultiTurnAgent::new(options),
            policy,
            environment,
            prompt: json!({"idx": 7, "message_log": [{"role": "user", "content": "p0 p1"}]}),
        }
    }

    fn request(&self, rollout_index: i64) -> RolloutRequest {
        let key = RolloutKey::new(7, rollout_index, 0);
        RolloutRequest {
            body: serde_json::to_vec(&self.prompt).unwrap().into(),
            calls: CallLog::new(key, None),
            as_given: false,
        }
    }

    async fn one(&self, rollout_index: i64) -> Result<Value, Failure> {
        let reply = self.agent.run(self.request(rollout_index)).await;
        let answer = reply.result?;
        Ok(serde_json::from_slice(&answer.body).unwrap())
    }

    async fn all(&self) -> Vec<Result<Value, Failure>> {
        let count = self.policy.script.len() as i64;
        join_all((0..count).map(|index| self.one(index))).await
    }

    /// Returns what the model and the environment saw of a rollout.
    fn calls(&self, rollout_index: i64) -> Vec<(Option<Vec<String>>, Value)> {
        let seen = self.policy.seen.lock().unwrap();
        let stops = seen.iter().filter(|(key, _)| *key == rollout_index);
        let steps = self.environment.seen.lock().unwrap();
        let told = steps
            .iter()
            .flatten()
            .filter(|(key, _)| *key == rollout_index);
        let calls = stops.zip(told);
        calls
            .map(|((_, stop), (_, told))| (stop.clone(), told.clone()))
            .collect()
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

fn say(text: &str) -> Turn {
    Turn {
        generate: Generate {
            text: text.into(),
            ..Generate::default()
        },
        env: Observe {
            role: "environment".into(),
            content: "o".into(),
            reward: 1.0,
            terminated: false,
            next_stop_strings: None,
            metadata: Value::Null,
        },
    }
}

fn last(text: &str) -> Turn {
    let mut turn = say(text);
    turn.env.terminated = true;
    turn
}

fn fails(error: &str) -> Turn {
    let mut turn = say("");
    turn.generate.error = Some(error.into());
    turn
}

fn hangs() -> Turn {
    let mut turn = say("");
    turn.generate.hangs = true;
    turn
}

const FORMS: [(Rules, &str); 3] = [
    (Rules::PerSample, "expected/async.json"),
    (Rules::PerSampleLegacy, "expected_older_async/rollout.json"),
    (Rules::LockstepLegacy, "expected_older_sync/rollout.json"),
];

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the fields of an answer that an expected sample has, under its names.
fn as_expected(
    answer: &Value,
    calls: Vec<(Option<Vec<String>>, Value)>,
    expected: &Value,
) -> Value {
    let inputs = answer["turn_input_tokens"].as_array().unwrap();
    let calls = inputs.iter().zip(calls);
    let calls = calls.map(|(input, (stop_strings, env_info))| {
        json!({"input_tokens": input, "stop_strings": stop_strings, "env_info": env_info})
    });
    let calls: Value = calls.collect();
    let fields = expected.as_object().unwrap().keys();
    let fields = fields.map(|name| {
        let value = match name.as_str() {
            "total_reward" => answer["reward"].clone(),
            "final_env_info" => answer["env_extras"].clone(),
            "calls" => calls.clone(),
            _ => answer[name].clone(),
        };
        (name.clone(), value)
    });
    fields.collect()
}

#[test]
fn all_forms_do_what_the_suite_expects_with_both_drivers() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/multi_turn");
    let mut count = 0;
    for entry in fs::read_dir(&suite).unwrap() {
        let directory = entry.unwrap().path();
        let case = read(&directory.join("case.json"));
        if case["expect"] == "error" {
            continue;
        }
        let script = read(&directory.join("script.json"));
        let samples = script["samples"].as_array().unwrap().iter();
        let turns: Vec<Vec<Turn>> = samples
            .map(|sample| Deserialize::deserialize(&sample["turns"]).unwrap())
            .collect();
        let option = |name: &str| case["options"][name].as_u64().unwrap();
        let limits = (option("max_rollout_turns") as u32, option("max_seq_len"));
        for (rules, file) in FORMS {
            for driver in [Driver::PerSample, Driver::Lockstep] {
                let mut played = Played::new(turns.clone(), limits, rules, driver);
                played.prompt = script["prompt"].clone();
                let answers = block_on(played.all());
                let expected = read(&directory.join(file));
                let mut facts = Vec::new();
                for (index, expected) in expected["samples"].as_array().unwrap().iter().enumerate()
                {
                    let answer = answers[index].as_ref().unwrap();
                    let got = as_expected(answer, played.calls(index as i64), expected);
                    assert_eq!(
                        got,
                        *expected,
                        "{} {rules:?} {driver:?}",
                        directory.display()
                    );
                    facts.push(SampleFacts::of(answer).unwrap());
                }
                let (name, metrics) = match rules {
                    Rules::PerSample => ("group_metrics", group_metrics(&facts)),
                    Rules::PerSampleLegacy => {
                        let form = LegacyForm::PerSample;
                        ("batch_metrics", batch_metrics_legacy(&facts, form))
                    }
                    Rules::Lockstep | Rules::LockstepLegacy => {
                        let form = LegacyForm::Lockstep;
                        ("batch_metrics", batch_metrics_legacy(&facts, form))
                    }
                };
                // Compared as texts, because the order of the keys counts. The cases leave out what is only drawn.
                let metrics = metrics
                    .into_iter()
                    .filter(|(name, _)| !name.ends_with("/histogram"));
                let metrics = Value::Object(metrics.collect()).to_string();
                assert_eq!(
                    metrics,
                    expected[name].to_string(),
                    "{}",
                    directory.display()
                );
                count += 1;
            }
        }
    }
    assert_eq!(count, 14 * 3 * 2);
}

#[test]
fn lockstep_takes_one_step_a_turn_for_all_in_order() {
    let script = vec![
        vec![say("a"), last("b")],
        vec![last("a")],
        vec![say("a"), say("b"), last("c")],
    ];
    let played = Played::new(script, (5, 100), Rules::PerSample, Driver::Lockstep);
    let answers = block_on(played.all());
    let turns: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap()["turn_count"].clone())
        .collect();
    assert_eq!(turns, [2, 1, 3]);
    let steps = played.environment.seen.lock().unwrap();
    let steps: Vec<Vec<i64>> = steps
        .iter()
        .map(|step| step.iter().map(|(key, _)| *key).collect())
        .collect();
    assert_eq!(steps, [vec![0, 1, 2], vec![0, 2], vec![2]]);
}

#[test]
fn a_failed_generation_is_a_failure_that_names_the_sample() {
    for driver in [Driver::PerSample, Driver::Lockstep] {
        let script = vec![
            vec![say("a"), fails("ValueError: bad")],
            vec![last("a")],
            vec![say("a"), fails("infra: reset")],
            vec![say("a"), last("b")],
        ];
        let played = Played::new(script, (5, 100), Rules::PerSample, driver);
        let answers = block_on(played.all());
        let failure = answers[0].as_ref().unwrap_err();
        assert_eq!(failure.class, FailureClass::Data);
        assert_eq!(
            failure.message,
            "generation failed for prompt_idx=7 traj_idx=0: ValueError: bad"
        );
        let failure = answers[2].as_ref().unwrap_err();
        assert_eq!(failure.class, FailureClass::Infra);
        assert_eq!(
            failure.message,
            "generation unavailable for prompt_idx=7 traj_idx=2: infra: reset"
        );
        assert_eq!(answers[1].as_ref().unwrap()["turn_count"], 1);
        assert_eq!(answers[3].as_ref().unwrap()["turn_count"], 2);
    }
}

#[test]
fn the_older_forms_keep_the_sample_or_fail_the_batch() {
    let script = || vec![vec![say("a b"), fails("ValueError: bad")], vec![last("a")]];
    for driver in [Driver::PerSample, Driver::Lockstep] {
        let played = Played::new(script(), (2, 100), Rules::PerSampleLegacy, driver);
        let answers = block_on(played.all());
        let kept = answers[0].as_ref().unwrap();
        assert_eq!(kept["turn_count"], 2);
        assert_eq!(kept["message_log"].as_array().unwrap().len(), 3);
        assert_eq!(kept["max_turns_reached"], true);
        assert_eq!(
            (&kept["reward"], &kept["terminated"]),
            (&json!(1.0), &json!(false))
        );
    }
    let played = Played::new(script(), (2, 100), Rules::LockstepLegacy, Driver::Lockstep);
    for answer in block_on(played.all()) {
        let message = answer.unwrap_err().message;
        let expected = "generation failed for prompt_idx=7 traj_idx=0: ValueError: bad";
        assert_eq!(message, expected);
    }
}

#[test]
fn an_overfull_log_is_a_failure_in_the_older_batch_form_only() {
    let script = || vec![vec![last("a b c d e f g h")]];
    let played = Played::new(script(), (2, 5), Rules::LockstepLegacy, Driver::Lockstep);
    let failure = block_on(played.one(0)).unwrap_err();
    assert_eq!(failure.class, FailureClass::Data);
    assert!(
        failure.message.starts_with(
            "tokens_left_for_obs=-5 should not be negative. This should not happen if the inference engine \
             respects the max sequence length."
        ),
        "{failure:?}"
    );
    let played = Played::new(script(), (2, 5), Rules::PerSample, Driver::PerSample);
    assert_eq!(block_on(played.one(0)).unwrap()["env_tokens"], 0);
}

#[test]
fn whoever_goes_away_leaves_the_batch_to_the_others() {
    block_on(async {
        let script = vec![vec![hangs()], vec![say("a"), last("b")]];
        let played = Played::new(script, (5, 100), Rules::LockstepLegacy, Driver::Lockstep);
        let leaving = async {
            tokio::select! {
                _ = played.one(0) => panic!("a rollout whose model hangs has an answer"),
                () = played.policy.hanging.notified() => {}
            }
        };
        let ((), answer) = tokio::join!(leaving, played.one(1));
        assert_eq!(answer.unwrap()["turn_count"], 2);
    });
}

#[test]
fn a_batch_that_is_not_full_begins_too() {
    let played = Played::with(
        vec![vec![last("a")], vec![last("b")]],
        (5, 100),
        |options| {
            options.driver = Driver::Lockstep;
        },
    );
    assert_eq!(block_on(played.one(1)).unwrap()["turn_count"], 1);
}

#[test]
fn a_sibling_takes_all_with_it_only_if_told_to() {
    for driver in [Driver::PerSample, Driver::Lockstep] {
        let played = Played::with(
            vec![vec![fails("infra: reset")], vec![hangs()]],
            (5, 100),
            |options| {
                options.driver = driver;
                options.group = GroupFailure::All;
                // Each has a batch of its own, so that one can fail while the other hangs.
                options.batch_size = NonZeroUsize::new(1);
            },
        );
        let failed = block_on(async {
            let taken_along = played.one(1);
            let first = async {
                played.policy.hanging.notified().await;
                played.one(0).await
            };
            tokio::join!(first, taken_along)
        });
        assert!(
            failed
                .0
                .unwrap_err()
                .message
                .starts_with("generation unavailable")
        );
        let failure = failed.1.unwrap_err();
        assert_eq!(failure.class, FailureClass::Infra);
        let expected = "rollout 0 of task 7 failed (group = all): generation unavailable";
        assert!(failure.message.starts_with(expected), "{failure:?}");
    }
}

#[test]
fn siblings_share_a_deadline() {
    let played = Played::with(vec![vec![hangs()], vec![hangs()]], (5, 100), |options| {
        options.group_timeout = Some(std::time::Duration::from_millis(1));
    });
    for answer in block_on(played.all()) {
        let failure = answer.unwrap_err();
        assert_eq!(failure.class, FailureClass::Timeout);
        let expected = "the rollouts of task 7 were not done within 1ms (group_timeout)";
        assert_eq!(failure.message, expected);
    }
}

#[test]
fn no_turns_at_all_ask_nobody() {
    for driver in [Driver::PerSample, Driver::Lockstep] {
        let played = Played::new(vec![vec![]], (0, 100), Rules::PerSample, driver);
        let answer = block_on(played.one(0)).unwrap();
        assert_eq!(
            (&answer["turn_count"], &answer["max_turns_reached"]),
            (&json!(0), &json!(true))
        );
        assert!(played.policy.seen.lock().unwrap().is_empty());
    }
}

#[test]
fn an_unknown_task_name_is_refused_before_anything_is_sent() {
    let mut played = Played::new(
        vec![vec![last("a")]],
        (2, 100),
        Rules::PerSample,
        Driver::PerSample,
    );
    played.prompt["task_name"] = "chess".into();
    let failure = block_on(played.one(0)).unwrap_err();
    assert_eq!(failure.class, FailureClass::Data);
    assert!(
        failure
            .message
            .starts_with("task 7, rollout 0: no environment serves task_name 'chess'")
    );
    assert!(played.policy.seen.lock().unwrap().is_empty());
}

#[test]
fn a_sample_whose_step_fails_leaves_the_others_alone() {
    #[derive(Debug)]
    struct Picky;
    #[async_trait]
    impl Environment for Picky {
        async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped {
            let results = samples
                .iter()
                .map(|sample| match sample.log.key().rollout_index {
                    0 => Err(Failure::new(FailureClass::Infra, "broken")),
                    _ => Ok(StepResult {
                        observation: Message::text("environment", ""),
                        metadata: Value::Null,
                        next_stop_strings: None,
                        reward: 1.0,
                        terminated: true,
                        truncated: false,
                        answer: None,
                    }),
                });
            Ok(results.collect())
        }

        fn address(&self) -> String {
            "picky".into()
        }
    }
    for driver in [Driver::PerSample, Driver::Lockstep] {
        let played = Played::with(
            vec![vec![last("a")], vec![last("a")]],
            (2, 100),
            |options| {
                options.driver = driver;
                options.environments =
                    Environments::new([("picky".to_owned(), Arc::new(Picky) as _)]);
            },
        );
        let answers = block_on(played.all());
        let failure = answers[0].as_ref().unwrap_err();
        assert_eq!(failure.class, FailureClass::Infra, "{driver:?}");
        assert!(failure.message.contains("broken"), "{failure:?}");
        assert!(answers[1].is_ok(), "{driver:?}");
    }
}

#[test]
fn a_step_with_too_few_results_is_a_failure_of_all_its_samples() {
    #[derive(Debug)]
    struct Silent;
    #[async_trait]
    impl Environment for Silent {
        async fn step(&self, _: &mut [Sample<'_>]) -> Stepped {
            Ok(Vec::new())
        }

        fn address(&self) -> String {
            "silent".into()
        }
    }
    for driver in [Driver::PerSample, Driver::Lockstep] {
        let played = Played::with(
            vec![vec![last("a")], vec![last("a")]],
            (2, 100),
            |options| {
                options.driver = driver;
                options.environments =
                    Environments::new([("silent".to_owned(), Arc::new(Silent) as _)]);
            },
        );
        for answer in block_on(played.all()) {
            let failure = answer.unwrap_err();
            assert_eq!(failure.class, FailureClass::Data);
            assert!(
                failure
                    .message
                    .contains("(step of environment 'silent', rollout "),
                "{failure:?}"
            );
        }
    }
}

fn some_turn() -> impl Strategy<Value = Turn> {
    let generate = (
        0..6_usize,
        prop::bool::weighted(0.1),
        prop::option::of(0..3_u8),
        0..20_u8,
    );
    let env = (
        0..5_usize,
        -1.0..1.0_f64,
        0..4_u8,
        prop::option::of(0..3_usize),
        prop::option::of(0..9_i32),
    );
    (generate, env).prop_map(
        |((words, truncated, worker, error), (said, reward, end, stops, told))| {
            let repeat = |count: usize| vec!["w"; count].join(" ");
            Turn {
                generate: Generate {
                    text: repeat(words),
                    truncated,
                    worker: worker.map(|worker| worker.to_string()),
                    error: (error == 0).then(|| "bad".to_owned()),
                    hangs: false,
                },
                env: Observe {
                    role: "environment".into(),
                    content: repeat(said),
                    reward,
                    terminated: end == 0,
                    next_stop_strings: stops.map(|count| vec!["s".to_owned(); count]),
                    metadata: told.map_or(Value::Null, Value::from),
                },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn both_drivers_give_the_same_samples(
        script in prop::collection::vec(prop::collection::vec(some_turn(), 6), 1..5),
        max_turns in 0..6_u32,
        max_seq_len in 3..40_u64,
        is_legacy in any::<bool>(),
    ) {
        let rules = if is_legacy { Rules::PerSampleLegacy } else { Rules::PerSample };
        let limits = (max_turns, max_seq_len);
        let apart = Played::new(script.clone(), limits, rules, Driver::PerSample);
        let together = Played::new(script, limits, rules, Driver::Lockstep);
        let (one, other) = block_on(async { (apart.all().await, together.all().await) });
        prop_assert_eq!(one, other);
        for index in 0..apart.policy.script.len() as i64 {
            prop_assert_eq!(apart.calls(index), together.calls(index));
        }
    }
}

fn environments(names: &[&str]) -> Environments {
    let scripted = || Arc::new(ScriptedEnvironment::default()) as Arc<dyn Environment>;
    Environments::new(names.iter().map(|name| ((*name).to_owned(), scripted())))
}

#[test]
fn a_row_without_a_name_gets_the_only_one() {
    let one = environments(&["math"]);
    assert_eq!(&*one.find(None).unwrap().0, "math");
    let error = environments(&["math", "code"]).find(None).unwrap_err();
    assert!(
        error.to_string().ends_with("There are: code, math"),
        "{error}"
    );
    let error = environments(&[]).find(None).unwrap_err();
    assert!(error.to_string().ends_with("There are: none"), "{error}");
}

#[test]
fn an_unknown_name_is_an_error_even_if_there_is_one() {
    let error = environments(&["math"]).find(Some("chess")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("'chess'") && text.contains("There are: math"),
        "{text}"
    );
}
