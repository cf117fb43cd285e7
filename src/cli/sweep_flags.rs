//! The flags that become settings, one row each, and what is checked of their texts at once.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::str::FromStr;

use crate::config::{Bytes, Concurrency, KeyPath, Limit, Repeats, SeedField, Shard, Span};
use crate::gym::GymChoice;

/// What a flag does with its text.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// Gives the setting its value.
    Setting(&'static str),
    /// Gives the setting a list; every use of the flag adds one item.
    Items(&'static str),
    /// Sets the setting to a truth value, without a text.
    Switch(&'static str, bool),
    /// `NAME=VALUE`: gives a value to `first.NAME` or `first.NAME.last`.
    Named(&'static str, Option<&'static str>),
    /// `responses_create_params.KEY=VALUE`.
    Parameter,
}

/// The heading of `--help`, the flag, its short form, the name of its value, its help, its target, and the check
/// that it gets at once. What may hold a secret is only checked when the settings are resolved: clap's errors
/// repeat the value.
pub(super) type Row = (
    &'static str,
    &'static str,
    Option<char>,
    &'static str,
    &'static str,
    Target,
    Check,
);
pub(super) type Check = fn(&str) -> Result<String, String>;

const TASKS: &str = "Tasks";
const AGENTS: &str = "Agents";
const CALLS: &str = "Calls";
const FAILURES: &str = "Failures";
pub(super) const RUN: &str = "Run";

#[rustfmt::skip]
pub(super) const FLAGS: &[Row] = &[
    (TASKS, "input", Some('i'), "PATH", "Task file (JSONL, also .gz and .zst): path, glob or object-store URL; repeatable", Target::Items("input"), any),
    (TASKS, "limit", None, "N", "Take the first N lines (0: all)", Target::Setting("limit"), parses::<i64>),
    (TASKS, "num-repeats", None, "N|AGENT=N,...", "Rollouts per task [default: 1]; per agent: a=32,b=1,_default=4", Target::Setting("num_repeats"), parses::<Repeats>),
    (TASKS, "interleave-repeats", None, "", "Send the first rollouts of all tasks before the second ones", Target::Switch("interleave_repeats", true), any),
    (TASKS, "num-repeats-add-seed", None, "", "Give every rollout its index as the seed", Target::Switch("num_repeats_add_seed", true), any),
    (TASKS, "seed-field", None, "FIELD", "Where the seed goes: metadata.extra_body [default] or responses_create_params.seed", Target::Setting("seed_field"), parses::<SeedField>),
    (TASKS, "prompt-config", None, "FILE", "YAML file with `user` and `system` templates for the prompt", Target::Setting("prompt_config"), any),
    (TASKS, "set", None, "responses_create_params.KEY=VALUE", "Replace a request parameter of every task (VALUE is YAML); repeatable", Target::Parameter, parameter),
    (TASKS, "temperature", None, "X", "Short for --set responses_create_params.temperature=X", Target::Setting("responses_create_params.temperature"), parses::<f64>),
    (TASKS, "top-p", None, "X", "Short for --set responses_create_params.top_p=X", Target::Setting("responses_create_params.top_p"), parses::<f64>),
    (TASKS, "max-output-tokens", None, "N", "Short for --set responses_create_params.max_output_tokens=N", Target::Setting("responses_create_params.max_output_tokens"), parses::<u64>),

    (AGENTS, "agent", Some('a'), "NAME", "Agent for tasks that name none (sim: the built-in one); by the rules of NeMo Gym 0.7, for all tasks", Target::Setting("agent"), any),
    (AGENTS, "agent-map", None, "NAME=AGENT", "Agent for rows that name this agent or task source, or _default; repeatable", Target::Named("agent_map", None), named),
    (AGENTS, "fan-out", None, "NAME=[AGENT,...]", "Agents that each get the rows that name this agent or task source; repeatable", Target::Named("fan_out", None), named),
    (AGENTS, "allow-unsupported-pairing", None, "", "Let agents work for resources servers that do not list their type", Target::Switch("allow_unsupported_pairing", true), any),
    (AGENTS, "head-server", None, "URL", "NeMo Gym head server, which knows the addresses of all agents", Target::Setting("head_server"), any),
    (AGENTS, "gym", None, "VERSION", "Version of NeMo Gym whose rules hold: 0.5, 0.7, or auto, which takes 0.7 where the head server has environment servers [default: auto]", Target::Setting("gym"), parses::<GymChoice>),
    (AGENTS, "agent-url", None, "NAME=URL", "Address of an agent; repeatable", Target::Named("agents", Some("url")), any),
    (AGENTS, "agent-concurrency", None, "NAME=N", "Calls in flight to one agent, or auto; repeatable", Target::Named("agents", Some("concurrency")), named_concurrency),
    (AGENTS, "agent-requests-per-second", None, "NAME=X", "Requests to one agent per second; repeatable", Target::Named("agents", Some("requests_per_second")), any),
    (AGENTS, "agent-tokens-per-minute", None, "NAME=X", "Tokens of one agent per minute; repeatable", Target::Named("agents", Some("tokens_per_minute")), any),
    (AGENTS, "agent-patience", None, "TIME", "Wait so long for an agent that answers nothing, then leave its rest pending [default: 2m]", Target::Setting("agent_patience"), parses::<Span>),
    (AGENTS, "bearer-token-env", None, "VAR", "Environment variable that holds the bearer token [default: ROLLSTREAM_BEARER_TOKEN]", Target::Setting("bearer_token_env"), any),
    (AGENTS, "header-env", None, "HEADER=VAR", "Send a header whose value is in an environment variable; repeatable", Target::Named("headers_env", None), any),

    (CALLS, "concurrency", None, "N|auto", "Calls in flight in all [default: 256]; auto finds what each agent takes well", Target::Setting("concurrency"), parses::<Concurrency>),
    (CALLS, "dispatch-longest-first", None, "", "Send the rollouts first that took longest in earlier attempts", Target::Switch("dispatch_longest_first", true), any),
    (CALLS, "requests-per-second", None, "X", "Requests to each agent per second, at most", Target::Setting("requests_per_second"), parses::<f64>),
    (CALLS, "tokens-per-minute", None, "X", "Tokens of each agent per minute, at most, by the answers' usage", Target::Setting("tokens_per_minute"), parses::<f64>),
    (CALLS, "rollout-timeout", None, "TIME", "Longest time for a rollout, from request to answer, or none [default: 2h]", Target::Setting("rollout_timeout"), parses::<Limit>),
    (CALLS, "first-byte-timeout", None, "TIME", "Longest time to the first byte of an answer [default: none]", Target::Setting("first_byte_timeout"), parses::<Span>),
    (CALLS, "connect-timeout", None, "TIME", "Longest time to open a connection [default: 10s]", Target::Setting("connect_timeout"), parses::<Span>),
    (CALLS, "read-timeout", None, "TIME", "Longest silence on a connection [default: 6h]", Target::Setting("read_timeout"), parses::<Span>),
    (CALLS, "max-body", None, "SIZE", "Largest answer [default: 256MiB]", Target::Setting("max_body"), parses::<Bytes>),
    (CALLS, "memory", None, "SIZE", "Memory for calls, answers and all else; with less, fewer calls are in flight [default: half of the machine's]", Target::Setting("memory"), parses::<Bytes>),

    (FAILURES, "infra-budget", None, "N", "Failures of network or server before a rollout has failed [default: 5]", Target::Setting("infra_budget"), count),
    (FAILURES, "rate-limit-budget", None, "N", "Refusals (429) before a rollout has failed [default: 50]", Target::Setting("rate_limit_budget"), count),
    (FAILURES, "data-budget", None, "N", "Bad requests or answers before a rollout has failed [default: 2]", Target::Setting("data_budget"), count),
    (FAILURES, "max-attempts", None, "N", "Failures that the agent reports before a rollout has failed, over all runs [default: 3]", Target::Setting("max_attempts"), count),
    (FAILURES, "retry-backoff", None, "TIME", "Longest pause before the second attempt, doubled with each [default: 500ms]", Target::Setting("retry_backoff"), parses::<Span>),
    (FAILURES, "retry-backoff-cap", None, "TIME", "What that pause doubles up to [default: 1m]", Target::Setting("retry_backoff_cap"), parses::<Span>),
    (FAILURES, "max-failures", None, "N", "Stop when so many rollouts have failed", Target::Setting("max_failures"), count),
    (FAILURES, "max-error-rate", None, "X", "Stop when this share of the rollouts (0 to 1) has failed", Target::Setting("max_error_rate"), parses::<f64>),
    (FAILURES, "show-failures", None, "N", "Show so many failures of each agent, outcome and status as they happen [default: 1]", Target::Setting("show_failures"), parses::<u64>),
    (FAILURES, "retry-terminal-timeouts", None, "", "With --resume, try failures again that agents call terminal: timeouts, and faults of the environment", Target::Switch("retry_terminal_timeouts", true), any),
    (FAILURES, "retry-invalid-judge-responses", None, "", "With --resume, try rollouts again whose judge gave no valid answer (invalid_judge_response)", Target::Switch("retry_invalid_judge_responses", true), any),
    (FAILURES, "require-complete", None, "", "End with an error unless every rollout is done", Target::Switch("require_complete", true), any),
    (FAILURES, "dispatch-budget-s", None, "SECONDS", "Send nothing more after so many seconds; what is in flight ends, the rest stays pending", Target::Setting("dispatch_budget_s"), parses::<f64>),
    (FAILURES, "drain-margin-s", None, "SECONDS", "Send a rollout only while so much of --dispatch-budget-s is left [default: what three quarters of the rollouts took]", Target::Setting("drain_margin_s"), parses::<f64>),
    (FAILURES, "deadline", None, "TIME", "Stop the sweep after this time", Target::Setting("deadline"), parses::<Span>),
    (FAILURES, "grace", None, "TIME", "Wait so long for the calls in flight when stopping [default: 30s]", Target::Setting("grace"), parses::<Span>),

    (RUN, "output", Some('o'), "RUN", "The run: a directory or an object-store URL; a .jsonl at its end is dropped", Target::Setting("output"), any),
    (RUN, "gym-output", None, "NAME.jsonl", "End with NeMo Gym's files: NAME.jsonl and what stands beside it; without --output the run is NAME", Target::Setting("gym_output"), gym_output),
    (RUN, "resume", None, "", "Continue an existing run", Target::Switch("resume", true), any),
    (RUN, "extend", None, "", "Let a run that is continued get more tasks or more rollouts per task", Target::Switch("extend", true), any),
    (RUN, "shard", None, "I/N", "Work on one of N shares of the tasks, beside other processes, in the same run", Target::Setting("shard"), parses::<Shard>),
    (RUN, "break-lock", None, "", "Take the run over from another process that holds its lock", Target::Switch("break_lock", true), any),
    (RUN, "lease", None, "TIME", "After so long a silence of this process, others may take the run over [default: 1m, on an object store 3m]", Target::Setting("lease"), parses::<Span>),
    (RUN, "overwrite", None, "", "Delete an existing run first", Target::Switch("overwrite", true), any),
    (RUN, "part-size", None, "SIZE", "Size at which a Parquet part is cut [default: 128MiB]", Target::Setting("part_size"), parses::<Bytes>),
    (RUN, "part-interval", None, "TIME", "Cut a part that is not full after this time, so that it can be read [default: 5m]", Target::Setting("part_interval"), parses::<Span>),
    (RUN, "partitions", None, "N", "Work in so many partitions at a time [default: one for each core; a small sweep has one]", Target::Setting("partitions"), count),
    (RUN, "checkpoint-interval", None, "TIME", "Copy the journal to the output so often, where that is not local [default: 10s]", Target::Setting("checkpoint_interval"), parses::<Span>),
    (RUN, "state-dir", None, "DIR", "Local directory for the journal where the output is not local", Target::Setting("state_dir"), any),
    (RUN, "disable-aggregation", None, "", "Compute no metrics at the end", Target::Switch("aggregate", false), any),
    (RUN, "no-agent-metrics", None, "", "Do not ask the agents' servers for metrics of their own at the end (POST /aggregate_metrics)", Target::Switch("agent_metrics", false), any),
    (RUN, "no-health-check", None, "", "With --gym-output: do not check the health of rollouts at the end", Target::Switch("health_check", false), any),
    (RUN, "health-check-ignore", None, "CHECK,...", "Checks of the health of rollouts that are left out", Target::Setting("health_check_ignored_checks"), any),
    (RUN, "count-failure-classes-as-zero", None, "CLASS", "Count rollouts whose last failure is of this class as zero; repeatable", Target::Items("count_failure_classes_as_zero"), any),
    (RUN, "count-missing-rollouts-as-zero", None, "", "Count rollouts that left neither an answer nor a failure as zero", Target::Switch("count_missing_rollouts_as_zero", true), any),
    (RUN, "queries", None, "DIR", "Directory of .sql files that replace or add metrics", Target::Setting("queries"), any),
    (RUN, "param", None, "NAME=VALUE", "A parameter of the metrics (`rollstream metrics` lists them); repeatable", Target::Named("params", None), named),
];

pub(super) fn dotted(key: &str) -> Result<KeyPath, String> {
    KeyPath::parse(key).ok_or_else(|| format!("`{key}` has an empty part"))
}

pub(super) fn name_and_value(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name, value)),
        _ => Err(String::from("expected NAME=VALUE")),
    }
}

pub(super) fn parameter_and_value(text: &str) -> Result<(KeyPath, &str), String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(String::from("write responses_create_params.KEY=VALUE"));
    };
    let path = dotted(key)?;
    match path.keys() {
        [root, _, ..] if root == "responses_create_params" => Ok((path, value)),
        _ => Err(format!(
            "only request parameters can be set: write responses_create_params.KEY=VALUE; for other settings use \
             their flag or +{key}=..."
        )),
    }
}

fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

/// A file beside which NeMo Gym's other files stand.
pub(super) fn gym_output(text: &str) -> Result<String, String> {
    let stem = text
        .strip_suffix(".jsonl")
        .filter(|_| !text.contains("://"));
    match stem.is_some_and(|stem| !stem.is_empty() && !stem.ends_with('/')) {
        true => Ok(text.to_owned()),
        false => Err(String::from(
            "write a path on a local disk such as results/rollouts.jsonl",
        )),
    }
}

fn parses<T: FromStr<Err: Display>>(text: &str) -> Result<String, String> {
    match text.parse::<T>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn count(text: &str) -> Result<String, String> {
    match text.parse::<NonZeroUsize>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(String::from("expected a whole number of at least 1")),
    }
}

fn named(text: &str) -> Result<String, String> {
    name_and_value(text).map(|_| text.to_owned())
}

fn named_concurrency(text: &str) -> Result<String, String> {
    parses::<Concurrency>(name_and_value(text)?.1).map(|_| text.to_owned())
}

fn parameter(text: &str) -> Result<String, String> {
    parameter_and_value(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn the_defaults_in_the_help_are_those_of_the_settings() {
        let settings = serde_json::to_value(Settings::default()).unwrap();
        let mut checked = 0;
        for (_, name, _, _, help, target, _) in FLAGS {
            let Target::Setting(key) = target else {
                continue;
            };
            let default = settings[*key].to_string();
            if let Some((_, shown)) = help.split_once("[default: ")
                && !settings[*key].is_null()
            {
                assert!(
                    shown.starts_with(&format!("{}]", default.trim_matches('"'))),
                    "--{name}"
                );
                checked += 1;
            }
        }
        assert_eq!(checked, 19);
    }
}
