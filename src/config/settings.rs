//! [`Settings`]: every option of a run, typed and documented.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fields::{
    count, headers, many_or_none, one_or_many, optional_count, optional_rate, optional_seconds,
    optional_share, optional_whole, or_default, run_location,
};
use super::{
    AgentSettings, Bytes, Concurrency, ConfigError, Limit, Repeats, RoutingMode, SeedField,
    ServerUrl, Shard, Span, VariableName,
};
use crate::gym::GymChoice;
use crate::retry::{Backoff, Budgets};

/// What a run was asked to do. It holds no secrets, only the names of environment variables that hold them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Task files: paths, globs or object-store URLs of JSONL files, read in this order.
    #[serde(deserialize_with = "one_or_many")]
    pub input: Vec<String>,
    /// The run: a directory or an object-store prefix. A `.jsonl` at its end is dropped.
    #[serde(deserialize_with = "run_location")]
    pub output: Option<String>,
    /// NeMo Gym's files of the run, which the sweep ends with: `NAME.jsonl` and its neighbours, on a local disk. Where no
    /// output is set, the run is at `NAME`.
    pub gym_output: Option<String>,
    /// The agent for tasks that name none; by the rules of NeMo Gym 0.7, for all tasks.
    pub agent: Option<String>,
    /// Agents that take the place of others: by the agent or the task source that a row names; `_default` for all others.
    #[serde(deserialize_with = "or_default")]
    pub agent_map: BTreeMap<String, String>,
    /// Agents that each get a row: by the agent or the task source that it names.
    #[serde(deserialize_with = "or_default")]
    pub fan_out: BTreeMap<String, Vec<String>>,
    /// How rows that are not of a taskset find their environment server.
    pub environment_routing_mode: RoutingMode,
    /// The environment server of all rows that are not of a taskset, in the mode `legacy`.
    pub environment_server_name: Option<String>,
    /// Environment servers by taskset.
    #[serde(deserialize_with = "or_default")]
    pub environment_server_routes: BTreeMap<String, String>,
    /// Whether an agent may work for a resources server that does not list its type.
    pub allow_unsupported_pairing: bool,
    /// The number of lines to take from the input; 0 or none takes all, a negative number takes none.
    #[serde(deserialize_with = "optional_whole")]
    pub limit: Option<i64>,
    /// Rollouts per task.
    pub num_repeats: Repeats,
    /// Whether the first rollouts of all tasks are sent before the second ones.
    pub interleave_repeats: bool,
    /// Whether each rollout's request carries its rollout index as a seed.
    pub num_repeats_add_seed: bool,
    /// Where in the request that seed goes.
    pub seed_field: SeedField,
    /// A YAML file with `user` and `system` templates that become the request's `input`.
    pub prompt_config: Option<PathBuf>,
    /// Fields that replace those of every task's `responses_create_params`, whole values at the first level.
    pub responses_create_params: Map<String, Value>,
    /// NeMo Gym's head server, which knows the addresses of all agents.
    pub head_server: Option<ServerUrl>,
    /// The version of NeMo Gym whose rules hold; `auto` takes 0.7's where the head server has environment servers.
    pub gym: GymChoice,
    /// Settings of single agents, by agent name.
    pub agents: BTreeMap<String, AgentSettings>,
    /// Calls in flight in all; `auto` finds out for each agent how many it takes well.
    pub concurrency: Concurrency,
    /// Requests that are sent to each agent in a second, at most.
    #[serde(deserialize_with = "optional_rate")]
    pub requests_per_second: Option<f64>,
    /// Tokens that each agent may use in a minute, at most, by the answers' `usage`.
    #[serde(deserialize_with = "optional_rate")]
    pub tokens_per_minute: Option<f64>,
    /// The longest time that a rollout may take, from its request to the end of its answer; 2 h unless it is set.
    pub rollout_timeout: Limit,
    /// The longest time from a request to the beginning of its answer.
    pub first_byte_timeout: Option<Span>,
    /// The longest time that opening a connection may take.
    pub connect_timeout: Span,
    /// The longest silence on a connection, also before the first byte of an answer.
    pub read_timeout: Span,
    /// The largest answer that is taken, in bytes after decompression.
    pub max_body: Bytes,
    /// Memory that the process plans with; half of the machine's if not set. One answer of `max_body` may come on top.
    pub memory: Option<Bytes>,
    /// Attempts at a rollout that may fail for the network's or the server's sake before it has failed; at least 1.
    #[serde(deserialize_with = "count")]
    pub infra_budget: u32,
    /// Attempts at a rollout that a rate limit may refuse before it has failed; at least 1.
    #[serde(deserialize_with = "count")]
    pub rate_limit_budget: u32,
    /// Attempts at a rollout whose request or answer may be bad before it has failed; at least 1.
    #[serde(deserialize_with = "count")]
    pub data_budget: u32,
    /// Attempts at a rollout that the agent may report as failed before it has failed; at least 1.
    #[serde(deserialize_with = "count")]
    pub max_attempts: u32,
    /// The longest pause before the second attempt; it doubles with each further one.
    pub retry_backoff: Span,
    /// What that pause doubles up to.
    pub retry_backoff_cap: Span,
    /// How long an agent that answers nothing any more is waited for before the rest of its rollouts stays pending;
    /// one that never answered, an eighth of that.
    pub agent_patience: Span,
    /// Failed rollouts at which the sweep is stopped.
    #[serde(deserialize_with = "optional_count")]
    pub max_failures: Option<u64>,
    /// Share of finished rollouts, from 0 to 1, that have failed, at which the sweep is stopped.
    #[serde(deserialize_with = "optional_share")]
    pub max_error_rate: Option<f64>,
    /// Seconds after which no rollout is sent any more. What is in flight ends, however long it takes; the rest is pending.
    #[serde(deserialize_with = "optional_seconds")]
    pub dispatch_budget_s: Option<f64>,
    /// Seconds of that budget that must be left for a rollout to be sent. Where this is not set, the time within which
    /// three quarters of the rollouts of this process ended, as soon as five have.
    #[serde(deserialize_with = "optional_seconds")]
    pub drain_margin_s: Option<f64>,
    /// Whether rollouts that took longest in earlier attempts are sent first, and those that nothing is known of last.
    pub dispatch_longest_first: bool,
    /// Whether a resume tries failures again that agents flag as terminal for what another attempt may mend: timeouts, and
    /// faults of the environment.
    pub retry_terminal_timeouts: bool,
    /// Whether a resume tries rollouts again whose judge gave no valid answer (`invalid_judge_response`).
    pub retry_invalid_judge_responses: bool,
    /// Whether a sweep ends with an error unless every rollout is done.
    pub require_complete: bool,
    /// Classes of failures (`_ng_failure_class`) that count as zero in the metrics at the end.
    #[serde(deserialize_with = "many_or_none")]
    pub count_failure_classes_as_zero: Vec<String>,
    /// Whether rollouts that left neither an answer nor a failure count as zero in the metrics at the end.
    pub count_missing_rollouts_as_zero: bool,
    /// The longest time that the sweep may take; then it is stopped.
    pub deadline: Option<Span>,
    /// How long a sweep that is stopped waits for the calls in flight.
    pub grace: Span,
    /// The environment variable that holds the bearer token sent to all agents.
    pub bearer_token_env: Option<VariableName>,
    /// Headers sent to all agents: header name to the environment variable that holds the value.
    #[serde(deserialize_with = "headers")]
    pub headers_env: BTreeMap<String, VariableName>,
    /// Whether an existing run is continued.
    pub resume: bool,
    /// Whether the run that is continued may get more tasks, or more rollouts per task.
    pub extend: bool,
    /// The share of the tasks that this process works on, where several work on one run.
    pub shard: Option<Shard>,
    /// Whether a lock that another process holds on the run is broken.
    pub break_lock: bool,
    /// How long this process may be silent before others may take the run over. Where this is not set, 1 minute, and 3
    /// on an object store.
    pub lease: Option<Span>,
    /// Whether an existing run is deleted first.
    pub overwrite: bool,
    /// The size at which a Parquet part is cut, in bytes.
    pub part_size: Bytes,
    /// How long an answer may be in the journal before it is in a Parquet part; in an object store, an eighth of the
    /// time that the sweep has taken, where that is longer.
    pub part_interval: Span,
    /// Partitions that the sweep works in at a time; 1 to 256. Where this is not set, one for each core, and fewer
    /// for a small sweep.
    #[serde(deserialize_with = "optional_count")]
    pub partitions: Option<usize>,
    /// How often the journal of a run whose output is not local is copied there.
    pub checkpoint_interval: Span,
    /// The local directory for journals of runs whose output is not local.
    pub state_dir: Option<PathBuf>,
    /// How many failures of each kind (agent, outcome and status) are shown as they happen.
    pub show_failures: u64,
    /// Whether metrics are computed at the end.
    pub aggregate: bool,
    /// Whether each agent's server is then asked for metrics of its own.
    pub agent_metrics: bool,
    /// Whether the health of rollouts is checked where the sweep ends with NeMo Gym's files.
    pub health_check: bool,
    /// Checks that are left out of that.
    #[serde(deserialize_with = "one_or_many")]
    pub health_check_ignored_checks: Vec<String>,
    /// A directory whose `.sql` files replace or add to the built-in metric queries.
    pub queries: Option<PathBuf>,
    /// Parameters of the metric queries, by name.
    pub params: Map<String, Value>,
    /// Settings of the simulated agent, not interpreted here.
    pub sim: Map<String, Value>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            input: Vec::new(),
            output: None,
            gym_output: None,
            agent: None,
            agent_map: BTreeMap::new(),
            fan_out: BTreeMap::new(),
            environment_routing_mode: RoutingMode::Agent,
            environment_server_name: None,
            environment_server_routes: BTreeMap::new(),
            allow_unsupported_pairing: false,
            limit: None,
            num_repeats: Repeats::default(),
            interleave_repeats: false,
            num_repeats_add_seed: false,
            seed_field: SeedField::default(),
            prompt_config: None,
            responses_create_params: Map::new(),
            head_server: None,
            gym: GymChoice::Auto,
            agents: BTreeMap::new(),
            concurrency: Concurrency::Fixed(256),
            requests_per_second: None,
            tokens_per_minute: None,
            rollout_timeout: Limit::ROLLOUT,
            first_byte_timeout: None,
            connect_timeout: Span::from_secs(10),
            read_timeout: Span::from_secs(6 * 60 * 60),
            max_body: Bytes::from_mib(256),
            memory: None,
            infra_budget: 5,
            rate_limit_budget: 50,
            data_budget: 2,
            max_attempts: 3,
            retry_backoff: Span::from_millis(500),
            retry_backoff_cap: Span::from_secs(60),
            agent_patience: Span::from_secs(2 * 60),
            max_failures: None,
            max_error_rate: None,
            dispatch_budget_s: None,
            drain_margin_s: None,
            dispatch_longest_first: false,
            retry_terminal_timeouts: false,
            retry_invalid_judge_responses: false,
            require_complete: false,
            count_failure_classes_as_zero: Vec::new(),
            count_missing_rollouts_as_zero: false,
            deadline: None,
            grace: Span::from_secs(30),
            bearer_token_env: None,
            headers_env: BTreeMap::new(),
            resume: false,
            extend: false,
            shard: None,
            break_lock: false,
            lease: None,
            overwrite: false,
            part_size: Bytes::from_mib(128),
            part_interval: Span::from_secs(5 * 60),
            partitions: None,
            checkpoint_interval: Span::from_secs(10),
            state_dir: None,
            show_failures: 1,
            aggregate: true,
            agent_metrics: true,
            health_check: true,
            health_check_ignored_checks: Vec::new(),
            queries: None,
            params: Map::new(),
            sim: Map::new(),
        }
    }
}

impl Settings {
    /// The same without what makes rows of task files, for a run that has its rows already.
    #[must_use]
    pub fn without_rows(self) -> Self {
        let default = Self::default();
        Self {
            input: default.input,
            limit: default.limit,
            agent: default.agent,
            agent_map: default.agent_map,
            fan_out: default.fan_out,
            environment_routing_mode: default.environment_routing_mode,
            environment_server_name: default.environment_server_name,
            environment_server_routes: default.environment_server_routes,
            num_repeats: default.num_repeats,
            interleave_repeats: default.interleave_repeats,
            num_repeats_add_seed: default.num_repeats_add_seed,
            seed_field: default.seed_field,
            prompt_config: default.prompt_config,
            responses_create_params: default.responses_create_params,
            ..self
        }
    }

    /// The task files, for commands that cannot do without.
    ///
    /// # Errors
    /// If there are none.
    pub fn required_input(&self) -> Result<&[String], ConfigError> {
        if self.input.is_empty() {
            return Err(ConfigError::Missing {
                what: "the input",
                remedy: "name a task file with --input tasks.jsonl",
            });
        }
        Ok(&self.input)
    }

    /// The run's place, for commands that cannot do without.
    ///
    /// # Errors
    /// If there is none.
    pub fn required_output(&self) -> Result<&str, ConfigError> {
        self.output.as_deref().ok_or(ConfigError::Missing {
            what: "the output",
            remedy: "name a directory or an object-store prefix for the run with --output runs/first",
        })
    }

    /// How attempts at a rollout, and the calls within them, back off.
    pub fn backoff(&self) -> Backoff {
        Backoff {
            base: self.retry_backoff.duration(),
            cap: self.retry_backoff_cap.duration(),
        }
    }
}

impl Settings {
    /// How many failed attempts a rollout of an agent may have.
    pub fn budgets(&self, agent: &str) -> Budgets {
        let own = self.agents.get(agent);
        let or = |own: Option<u32>, all: u32| own.unwrap_or(all);
        Budgets {
            infra: or(own.and_then(|own| own.infra_budget), self.infra_budget),
            rate_limit: or(
                own.and_then(|own| own.rate_limit_budget),
                self.rate_limit_budget,
            ),
            data: or(own.and_then(|own| own.data_budget), self.data_budget),
            attempts: or(own.and_then(|own| own.max_attempts), self.max_attempts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str) -> Result<Settings, String> {
        serde_yaml_ng::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_survive_being_written_and_read() {
        let settings = read(
            "{input: a.jsonl, output: runs/a.jsonl, num_repeats: {a: 2}, concurrency: 8, max_body: 1GB,
              agents: {a: {url: 'http://h:1/', concurrency: 2, headers_env: {X-Key: KEY}}}}",
        )
        .unwrap();
        assert_eq!(settings.input, ["a.jsonl"]);
        assert_eq!(settings.output.as_deref(), Some("runs/a"));
        assert_eq!(
            settings.agents["a"].concurrency,
            Some(Concurrency::Fixed(2))
        );
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }

    #[test]
    fn senseless_values_are_refused() {
        for (yaml, expected) in [
            ("concurrency: 0", "a whole number of at least 1"),
            ("limit: some", "\"some\" is not a whole number"),
            ("limit: 1.5", "1.5 is not a whole number"),
            ("concurrency: many", "a whole number of at least 1"),
            ("data_budget: 0", "a whole number of at least 1"),
            ("requests_per_second: 0", "a number greater than zero"),
            ("max_error_rate: 20", "a share from 0 to 1"),
            ("shard: 9/8", "is not a shard"),
            (
                "agents: {a: {concurrency: 0}}",
                "a whole number of at least 1",
            ),
            (
                "headers_env: {'X Key': K}",
                "not the name of an HTTP header",
            ),
            ("output: .jsonl", "names no directory"),
            ("output: runs/.jsonl", "names no directory"),
            ("output: ''", "names no directory"),
            ("input: 4", "a path or a list of paths"),
        ] {
            let message = read(yaml).unwrap_err();
            assert!(message.contains(expected), "{yaml}: {message}");
        }
    }

    #[test]
    fn what_a_collection_needs_is_asked_for() {
        let mut settings = Settings::default();
        assert!(
            settings
                .required_input()
                .unwrap_err()
                .to_string()
                .contains("--input")
        );
        assert!(
            settings
                .required_output()
                .unwrap_err()
                .to_string()
                .contains("--output")
        );
        settings.input.push("a".into());
        settings.output = Some("b".into());
        assert_eq!(settings.required_input().unwrap(), ["a"]);
        assert_eq!(settings.required_output().unwrap(), "b");
    }
}
