//! [`Settings`]: every option of a run. To add an option, declare it here and use its field.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fields::{gym_output, parses};
use super::option_spec::Group::{Agents, Calls, Failures, GymServers, Run, Tasks};
use super::option_spec::Identity::{Content, Routing};
use super::option_spec::{Identity, OptionSpec, options};
use super::{
    AgentSettings, Bytes, Cluster, Concurrency, ConfigError, Limit, Repeats, RoutingMode, Secret,
    SeedField, ServerUrl, Shard, Span, Split, VariableName,
};
use crate::gym::GymChoice;
use crate::retry::{Backoff, Budgets};

options! {
    /// The options of a run. Secrets are given by the names of environment variables that hold them; the keys of trackers
    /// are masked wherever they are written.
    pub struct Settings {
        /// Task file (JSONL, also .gz and .zst): path, glob, object-store URL or - for stdin; repeatable
        #[serde(deserialize_with = "super::fields::one_or_many")]
        input: Vec<String>, flag(Tasks, "-i --input PATH"), gym("input_jsonl_fpath"), identity(Content);
        /// The run: a directory or an object-store URL; a final .jsonl is dropped
        #[serde(deserialize_with = "super::fields::run_location")]
        output: Option<String>, flag(Run, "-o --output RUN");
        /// Also write NeMo Gym's files: NAME.jsonl and those beside it; without --output the run is NAME
        gym_output: Option<String>,
            flag(Run, "--gym-output NAME.jsonl"), checked(gym_output), gym("output_jsonl_fpath");
        /// Agent for tasks that name none (sim: the built-in one); by the rules of NeMo Gym 0.7, for all tasks
        agent: Option<String>, flag(Agents, "-a --agent NAME"), gym("agent_name"), identity(Identity::Value);
        /// Agent for rows that name this agent or task source, or _default; repeatable
        #[serde(deserialize_with = "super::fields::or_default")]
        agent_map: BTreeMap<String, String>, flag(Agents, "--agent-map NAME=AGENT"), identity(Routing);
        /// Agents that each get the rows that name this agent or task source; repeatable
        #[serde(deserialize_with = "super::fields::or_default")]
        fan_out: BTreeMap<String, Vec<String>>, flag(Agents, "--fan-out NAME=[AGENT,...]"), identity(Routing);
        /// How rows that are not of a taskset find their environment server.
        environment_routing_mode: RoutingMode, identity(Routing);
        /// The environment server of all rows that are not of a taskset, in the mode `legacy`.
        environment_server_name: Option<String>, identity(Routing);
        /// Environment servers by taskset.
        #[serde(deserialize_with = "super::fields::or_default")]
        environment_server_routes: BTreeMap<String, String>, identity(Routing);
        /// Let agents work for resources servers that do not list their type
        allow_unsupported_pairing: bool,
            flag(Agents, "--allow-unsupported-pairing"),
            gym_variable("NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING", unless_no);
        /// Take the first N lines (0: all)
        ///
        /// A negative number takes none.
        #[serde(deserialize_with = "super::fields::optional_whole")]
        limit: Option<i64>, flag(Tasks, "--limit N"), identity(Identity::Value);
        /// Rollouts per task [default: {}]; per agent: a=32,b=1,_default=4
        num_repeats: Repeats, flag(Tasks, "--num-repeats N|AGENT=N,..."), identity(Identity::Value);
        /// Send the first rollouts of all tasks before the second ones
        interleave_repeats: bool, flag(Tasks, "--interleave-repeats"), identity(Routing);
        /// Give every rollout its index as the seed
        num_repeats_add_seed: bool, flag(Tasks, "--num-repeats-add-seed"), identity(Identity::Value);
        /// Where the seed goes: responses_create_params.seed or [default: metadata.extra_body]
        seed_field: SeedField, flag(Tasks, "--seed-field FIELD"), identity(Identity::Value);
        /// YAML file with `user` and `system` templates for the prompt
        prompt_config: Option<PathBuf>, flag(Tasks, "--prompt-config FILE"), identity(Content);
        /// Replace a request parameter of every task (VALUE is YAML); repeatable
        responses_create_params: Map<String, Value>,
            parameter_flag(Tasks, "--set responses_create_params.KEY=VALUE"),
            short_flag(Tasks, "--temperature X", 0_f64),
            short_flag(Tasks, "--top-p X", 0_f64),
            short_flag(Tasks, "--max-output-tokens N", 0_u64),
            identity(Identity::Value);
        /// NeMo Gym head server, which knows the addresses of all agents
        head_server: Option<ServerUrl>, flag(Agents, "--head-server URL");
        /// Start NeMo Gym's servers with this configuration file for the sweep; repeatable
        #[serde(deserialize_with = "super::fields::many_or_none")]
        config_paths: Vec<String>, flag(GymServers, "--gym-config FILE");
        /// Prepare this split of the data sets in --gym-config as the input: train, validation or benchmark
        split: Option<Split>, flag(GymServers, "--split SPLIT");
        /// Use data that was prepared for the same output before
        reuse_existing_data_preparation: bool, flag(GymServers, "--reuse-existing-data-preparation");
        /// NeMo Gym's program [default: gym in $VIRTUAL_ENV/bin, in .venv/bin here or above, or on the PATH]
        gym_program: Option<PathBuf>, flag(GymServers, "--gym-program PATH");
        /// Folder in which NeMo Gym looks for its components, before its own; repeatable
        #[serde(deserialize_with = "super::fields::many_or_none")]
        search_dirs: Vec<String>, flag(GymServers, "--search-dir DIR");
        /// Leave the servers of --gym-config running; the next sweep with the same configuration uses them
        keep_servers: bool, flag(GymServers, "--keep-servers");
        /// Overrides (`++key=value`) that NeMo Gym's programs get, without secrets.
        #[serde(deserialize_with = "super::fields::many_or_none")]
        gym_overrides: Vec<String>;
        /// Version of NeMo Gym whose rules hold: 0.5, 0.7, or auto, which takes 0.7 where the head server has environment
        /// servers
        gym: GymChoice, flag(Agents, "--gym VERSION");
        /// Settings of single agents, by agent name.
        agents: BTreeMap<String, AgentSettings>, identity(Content);
        /// Calls in flight over all agents [default: {}]; auto finds the best number for each agent
        concurrency: Concurrency = Concurrency::Fixed(256),
            flag(Calls, "--concurrency N|auto"), gym("num_samples_in_parallel");
        /// Most requests per second to each agent
        #[serde(deserialize_with = "super::fields::optional_rate")]
        requests_per_second: Option<f64>, flag(Calls, "--requests-per-second X");
        /// Most tokens per minute of each agent, by the usage that its answers report
        #[serde(deserialize_with = "super::fields::optional_rate")]
        tokens_per_minute: Option<f64>, flag(Calls, "--tokens-per-minute X");
        /// Longest time from the request of a rollout to its answer, or none
        rollout_timeout: Limit = Limit::ROLLOUT, flag(Calls, "--rollout-timeout TIME");
        /// Longest time to the first byte of an answer [default: none]
        first_byte_timeout: Option<Span>, flag(Calls, "--first-byte-timeout TIME");
        /// Longest time to open a connection
        connect_timeout: Span = Span::from_secs(10), flag(Calls, "--connect-timeout TIME");
        /// Longest silence on a connection; raise it for agents that answer later
        ///
        /// The time before the first byte of an answer counts too.
        read_timeout: Span = Span::from_secs(30 * 60), flag(Calls, "--read-timeout TIME");
        /// Largest answer
        ///
        /// In bytes after decompression.
        max_body: Bytes = Bytes::from_mib(256), flag(Calls, "--max-body SIZE");
        /// Memory for everything; with less, fewer calls are in flight [default: half of the machine's]
        ///
        /// One answer of `max_body` may come on top.
        memory: Option<Bytes>, flag(Calls, "--memory SIZE");
        /// Failures of network or server before a rollout has failed
        #[serde(deserialize_with = "super::fields::count")]
        infra_budget: u32 = 5, flag(Failures, "--infra-budget N");
        /// Refusals (429) before a rollout has failed
        #[serde(deserialize_with = "super::fields::count")]
        rate_limit_budget: u32 = 50, flag(Failures, "--rate-limit-budget N");
        /// Bad requests or answers before a rollout has failed
        #[serde(deserialize_with = "super::fields::count")]
        data_budget: u32 = 2, flag(Failures, "--data-budget N");
        /// Failures that the agent reports before a rollout has failed, over all runs
        #[serde(deserialize_with = "super::fields::count")]
        max_attempts: u32 = 3,
            flag(Failures, "--max-attempts N"), gym_variable("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", count);
        /// Longest pause before the second attempt; doubles with each further one
        retry_backoff: Span = Span::from_millis(500), flag(Failures, "--retry-backoff TIME");
        /// Longest pause before any attempt
        retry_backoff_cap: Span = Span::from_secs(60), flag(Failures, "--retry-backoff-cap TIME");
        /// Longest wait for an agent that does not answer; then its other rollouts stay pending
        ///
        /// The wait for an agent that has never answered well is an eighth of that.
        agent_patience: Span = Span::from_secs(2 * 60), flag(Agents, "--agent-patience TIME");
        /// Stop when this number of rollouts has failed
        #[serde(deserialize_with = "super::fields::optional_count")]
        max_failures: Option<u64>, flag(Failures, "--max-failures N");
        /// Stop when this share of the rollouts (0 to 1) has failed
        #[serde(deserialize_with = "super::fields::optional_share")]
        max_error_rate: Option<f64>, flag(Failures, "--max-error-rate X");
        /// Send nothing more after this many seconds; calls in flight end, other rollouts stay pending
        #[serde(deserialize_with = "super::fields::optional_seconds")]
        dispatch_budget_s: Option<f64>, flag(Failures, "--dispatch-budget-s SECONDS"), after("require-complete");
        /// Send a rollout only while this many seconds of --dispatch-budget-s are left [default: the time that three
        /// quarters of the rollouts took]
        ///
        /// The default applies once five rollouts of this process have ended.
        #[serde(deserialize_with = "super::fields::optional_seconds")]
        drain_margin_s: Option<f64>, flag(Failures, "--drain-margin-s SECONDS"), after("dispatch-budget-s");
        /// Send rollouts that took longest in earlier attempts first
        ///
        /// Rollouts without an earlier attempt come last.
        dispatch_longest_first: bool, flag(Calls, "--dispatch-longest-first"), after("concurrency");
        /// With --resume, retry failures that agents call terminal: timeouts, and faults of the environment
        retry_terminal_timeouts: bool, flag(Failures, "--retry-terminal-timeouts");
        /// With --resume, retry rollouts whose judge gave no valid answer (invalid_judge_response)
        retry_invalid_judge_responses: bool, flag(Failures, "--retry-invalid-judge-responses");
        /// End with an error unless every rollout is done
        require_complete: bool, flag(Failures, "--require-complete");
        /// Count rollouts whose last failure is of this class as zero; repeatable
        ///
        /// The class is that of `_ng_failure_class`. This holds for the metrics at the end.
        #[serde(deserialize_with = "super::fields::many_or_none")]
        count_failure_classes_as_zero: Vec<String>,
            flag(Run, "--count-failure-classes-as-zero CLASS"), after("health-check-ignore");
        /// Count rollouts that left neither an answer nor a failure as zero
        count_missing_rollouts_as_zero: bool,
            flag(Run, "--count-missing-rollouts-as-zero"), after("count-failure-classes-as-zero");
        /// Stop the sweep after this time
        deadline: Option<Span>, flag(Failures, "--deadline TIME");
        /// Longest wait for the calls in flight when stopping
        grace: Span = Span::from_secs(30), flag(Failures, "--grace TIME");
        /// Environment variable that holds the bearer token [default: ROLLSTREAM_BEARER_TOKEN]
        bearer_token_env: Option<VariableName>, flag(Agents, "--bearer-token-env VAR");
        /// Send a header whose value is in an environment variable; repeatable
        #[serde(deserialize_with = "super::fields::headers")]
        headers_env: BTreeMap<String, VariableName>, flag(Agents, "--header-env HEADER=VAR");
        /// Continue an existing run
        resume: bool, flag(Run, "--resume"), gym("resume_from_cache");
        /// Allow more tasks or more rollouts per task when continuing a run
        extend: bool, flag(Run, "--extend");
        /// Work on one of N shares of the tasks; other processes work on the others, in the same run
        shard: Option<Shard>, flag(Run, "--shard I/N");
        /// Run the sweep on a cluster: the address of its scheduler, or local:N for N executors on this machine
        cluster: Option<Cluster>, flag(Run, "--cluster grpc://HOST:PORT|local:N");
        /// The --slots of all executors of the cluster together; each slot gets its share of the limits of calls
        #[serde(deserialize_with = "super::fields::optional_count")]
        cluster_slots: Option<u32>, flag(Run, "--cluster-slots N");
        /// Directory with tls.crt, tls.key and ca.crt: the cluster's processes admit whoever has a certificate of that CA
        cluster_tls: Option<PathBuf>, flag(Run, "--cluster-tls DIR");
        /// Allow a scheduler on another machine, though its connections are neither encrypted nor authenticated
        insecure_network: bool, flag(Run, "--insecure-network");
        /// Take the run over from another process that holds its lock
        break_lock: bool, flag(Run, "--break-lock");
        /// Silence of this process after which others may take the run over [default: 1m, on an object store 3m]
        lease: Option<Span>, flag(Run, "--lease TIME");
        /// Delete an existing run first
        overwrite: bool, flag(Run, "--overwrite");
        /// Size at which a Parquet part is cut
        part_size: Bytes = Bytes::from_mib(128), flag(Run, "--part-size SIZE");
        /// Cut a part that is not full after this time, so that it can be read
        ///
        /// On an object store, after an eighth of the time that the sweep has taken, if that is longer.
        part_interval: Span = Span::from_secs(5 * 60), flag(Run, "--part-interval TIME");
        /// Partitions that work at a time [default: one for each core; a small sweep has one]
        ///
        /// From 1 to 256.
        #[serde(deserialize_with = "super::fields::optional_count")]
        partitions: Option<usize>, flag(Run, "--partitions N");
        /// Time between copies of the journal to an output that is not local
        checkpoint_interval: Span = Span::from_secs(10), flag(Run, "--checkpoint-interval TIME");
        /// Local directory for the journal of an output that is not local
        state_dir: Option<PathBuf>, flag(Run, "--state-dir DIR");
        /// Show the first N failures of each agent, outcome and status as they happen
        show_failures: u64 = 1,
            flag(Failures, "--show-failures N"), checked(parses::<u64>), after("max-error-rate");
        /// Compute metrics at the end.
        aggregate: bool = true,
            off_flag(Run, "--disable-aggregation", "Compute no metrics at the end"),
            gym("disable_aggregation");
        /// Ask the agents' servers for metrics of their own at the end.
        agent_metrics: bool = true,
            off_flag(
                Run,
                "--no-agent-metrics",
                "Do not ask the agents' servers for metrics of their own at the end (POST /aggregate_metrics)"
            );
        /// Check the health of rollouts where the sweep ends with NeMo Gym's files.
        health_check: bool = true,
            off_flag(Run, "--no-health-check", "With --gym-output: do not check the health of rollouts at the end"),
            gym("disable_health_check");
        /// Health checks that are left out
        #[serde(deserialize_with = "super::fields::one_or_many")]
        health_check_ignored_checks: Vec<String>, flag(Run, "--health-check-ignore CHECK,...");
        /// Directory of .sql files that replace or add metrics
        queries: Option<PathBuf>, flag(Run, "--queries DIR");
        /// A parameter of the metrics (`rollstream metrics` lists them); repeatable
        params: Map<String, Value>, flag(Run, "--param NAME=VALUE");
        /// The W&B project to log to, together with `wandb_name`.
        wandb_project: Option<String>;
        /// The name of the W&B run.
        wandb_name: Option<String>;
        /// The key for W&B; without it, the login of its Python package counts.
        #[serde(deserialize_with = "Secret::read")]
        wandb_api_key: Option<Secret>, gym_variable("WANDB_API_KEY", text);
        /// The MLflow server to log to, together with `mlflow_experiment_name` and `mlflow_run_name`.
        mlflow_tracking_uri: Option<ServerUrl>, gym_variable("MLFLOW_TRACKING_URI", server);
        /// The bearer token for MLflow.
        #[serde(deserialize_with = "Secret::read")]
        mlflow_tracking_token: Option<Secret>, gym_variable("MLFLOW_TRACKING_TOKEN", text);
        /// The experiment in MLflow, created if there is none of this name.
        mlflow_experiment_name: Option<String>;
        /// The name of the run in MLflow.
        mlflow_run_name: Option<String>;
        /// Send the rollouts to the trackers too.
        upload_rollouts: bool = true;
        /// Settings of the simulated agent, not interpreted here.
        sim: Map<String, Value>;
    }
}

/// Reads an environment variable of NeMo Gym that holds a number; a number below 1 is ignored.
fn count(value: &OsStr) -> Option<Value> {
    let count: u32 = value.to_str()?.trim().parse().ok()?;
    (count >= 1).then(|| count.into())
}

/// Reads an environment variable of a tracker.
fn text(value: &OsStr) -> Option<Value> {
    Some(value.to_str()?.into())
}

/// Reads the address of a server from an environment variable. MLflow takes other addresses too, such as those of files:
/// they are for other programs.
fn server(value: &OsStr) -> Option<Value> {
    let url: ServerUrl = value.to_str()?.parse().ok()?;
    Some(url.as_str().into())
}

/// Reads a switch of NeMo Gym's environment: every value but an empty text, `0` and `false` means yes.
fn unless_no(value: &OsStr) -> Option<Value> {
    let value = value.to_str()?.to_lowercase();
    (!matches!(value.as_str(), "" | "0" | "false")).then(|| true.into())
}

impl Settings {
    /// Resets every option that decides the rows to its default, for a run that already has its rows.
    #[must_use]
    pub fn without_rows(self) -> Self {
        self.take(Self::default(), |option| {
            option.identity != Identity::No && option.key != "agents"
        })
    }

    /// Takes every option that is set in `given`.
    #[must_use]
    pub fn with(self, given: Self) -> Self {
        let values = serde_json::to_value(&given).unwrap_or_default();
        self.take(given, |option| {
            values
                .get(option.key)
                .is_some_and(|value| *value != option.default)
        })
    }

    /// Returns the task files.
    ///
    /// # Errors
    /// There are no task files.
    pub fn required_input(&self) -> Result<&[String], ConfigError> {
        if self.input.is_empty() {
            return Err(ConfigError::Missing {
                what: "the input",
                remedy: "name a task file with --input tasks.jsonl",
            });
        }
        Ok(&self.input)
    }

    /// Returns the place of the run.
    ///
    /// # Errors
    /// No output is set.
    pub fn required_output(&self) -> Result<&str, ConfigError> {
        self.output.as_deref().ok_or(ConfigError::Missing {
            what: "the output",
            remedy: "name a directory or an object-store prefix for the run with --output runs/first",
        })
    }

    /// Returns the pauses between attempts at a rollout, and between the calls within them.
    pub fn backoff(&self) -> Backoff {
        Backoff {
            base: self.retry_backoff.duration(),
            cap: self.retry_backoff_cap.duration(),
        }
    }

    /// Returns the budgets of failed attempts at a rollout of an agent.
    pub fn budgets(&self, agent: &str) -> Budgets {
        let own = self.agents.get(agent);
        let or = |own: Option<Option<u32>>, all: u32| own.flatten().unwrap_or(all);
        Budgets {
            infra: or(own.map(|own| own.infra_budget), self.infra_budget),
            rate_limit: or(own.map(|own| own.rate_limit_budget), self.rate_limit_budget),
            data: or(own.map(|own| own.data_budget), self.data_budget),
            attempts: or(own.map(|own| own.max_attempts), self.max_attempts),
            all: u32::MAX,
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
            ("split: example", "give their file with --input"),
            ("split: test", "use train, validation or benchmark"),
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
