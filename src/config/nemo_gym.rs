//! NeMo Gym's option names, and what each means to a collector.

/// What one of NeMo Gym's options is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The setting of this name, with the same values.
    Setting(&'static str),
    /// The opposite of the setting of this name.
    Opposite(&'static str),
    /// Host and port, which become one address.
    HeadServer,
    /// Only one value can be granted, since it is what happens anyway: that value in JSON, and why no other can be.
    Only(&'static str, &'static str),
    /// Whatever it is set to, nothing changes, for this reason.
    Anyway(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

const SERVERS: &str = "it starts or configures NeMo Gym's servers, which rollstream only talks to; start them with NeMo Gym, \
     then give --head-server http://127.0.0.1:11000 (or --agent-url NAME=URL)";
const MODEL: &str =
    "the model is the agent's own setting; give it to NeMo Gym when its servers are started";
const SHARDS: &str = "there are no shards to merge: the runs stay as they are, and \
     `rollstream sql RUN... -c 'select ...'` asks questions of any number of them";
const PROFILE: &str = "a run is profiled by `rollstream collect` itself, and a partial one too; see the run's metrics/ \
     or ask `rollstream sql RUN`";
const UPLOAD: &str = "nothing is uploaded to trackers; send the run to an object store with --output s3://bucket/run, \
     or leave this option out";
const DATASET: &str = "datasets are not prepared here; prepare them with NeMo Gym and give the task file with --input";

const NAMES: &[(&str, Meaning)] = &[
    ("agent_name", Meaning::Setting("agent")),
    ("input_jsonl_fpath", Meaning::Setting("input")),
    ("output_jsonl_fpath", Meaning::Setting("gym_output")),
    ("num_samples_in_parallel", Meaning::Setting("concurrency")),
    ("resume_from_cache", Meaning::Setting("resume")),
    ("disable_aggregation", Meaning::Opposite("aggregate")),
    ("head_server", Meaning::HeadServer),
    ("upload_rollouts", Meaning::Only("false", UPLOAD)),
    ("upload_rollouts_to_wandb", Meaning::Only("false", UPLOAD)),
    ("agent_type", Meaning::Only("null", SERVERS)),
    (
        "route_failures_to_sidecar",
        Meaning::Anyway(
            "a failure never ends a sweep: it is a row of `attempts`, and `rollstream export` writes NeMo Gym's \
             _failures.jsonl",
        ),
    ),
    (
        "max_resident_rollout_tasks",
        Meaning::Anyway("what waits for its turn is read as it is needed, within --memory"),
    ),
    (
        "retain_results_in_memory",
        Meaning::Anyway("answers go to disk as they come and are not kept in memory"),
    ),
    (
        "global_aiohttp_client_request_debug",
        Meaning::Anyway(
            "the first failures of each kind are shown as they happen, as many as --show-failures says",
        ),
    ),
    ("disable_health_check", Meaning::Opposite("health_check")),
    (
        "health_check_workers",
        Meaning::Anyway("health checks are queries and need no processes of their own"),
    ),
    ("config_paths", Meaning::Nothing(SERVERS)),
    ("default_host", Meaning::Nothing(SERVERS)),
    ("error_on_almost_servers", Meaning::Nothing(SERVERS)),
    ("skip_verification", Meaning::Nothing(SERVERS)),
    ("policy_base_url", Meaning::Nothing(MODEL)),
    ("policy_api_key", Meaning::Nothing(MODEL)),
    ("policy_model_name", Meaning::Nothing(MODEL)),
    ("input_glob", Meaning::Nothing(SHARDS)),
    ("merge_shards", Meaning::Nothing(SHARDS)),
    ("materialized_inputs_jsonl_fpath", Meaning::Nothing(PROFILE)),
    ("rollouts_jsonl_fpath", Meaning::Nothing(PROFILE)),
    ("allow_partial_rollouts", Meaning::Nothing(PROFILE)),
    ("pass_threshold", Meaning::Nothing(PROFILE)),
    ("split", Meaning::Nothing(DATASET)),
    ("reuse_existing_data_preparation", Meaning::Nothing(DATASET)),
    ("wandb_project", Meaning::Nothing(UPLOAD)),
    ("wandb_name", Meaning::Nothing(UPLOAD)),
    ("wandb_api_key", Meaning::Nothing(UPLOAD)),
    (
        "skills",
        Meaning::Nothing(
            "skill directories are handed out by NeMo Gym's own collector only; \
             put `skills_ref` into the task rows where the agent reads it",
        ),
    ),
    (
        "rollout_collection_driver",
        Meaning::Nothing(
            "a driver is Python code that replaces NeMo Gym's collector, and this is another collector",
        ),
    ),
    (
        "dry_run",
        Meaning::Nothing(
            "use `rollstream plan` with the same options: it prints the plan and sends nothing",
        ),
    ),
    ("h", Meaning::Nothing("use --help")),
    ("help", Meaning::Nothing("use --help")),
];

/// What the option of this name means; `None` for names that are not only NeMo Gym's.
pub(super) fn meaning(name: &str) -> Option<Meaning> {
    NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, meaning)| *meaning)
}

/// All names that have a meaning of their own.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;
    use super::*;

    #[test]
    fn every_translation_leads_to_a_setting() {
        let setting = |name: &str| KEYS.iter().any(|(key, _)| *key == name);
        for name in names() {
            match meaning(name) {
                Some(Meaning::Setting(target) | Meaning::Opposite(target)) => {
                    assert!(setting(target) && !setting(name), "{name}");
                }
                Some(Meaning::HeadServer) => assert!(setting(name)),
                Some(Meaning::Only(value, reason)) => {
                    let value = serde_json::from_str::<serde_json::Value>(value);
                    assert!(
                        !setting(name) && !reason.is_empty() && value.is_ok(),
                        "{name}"
                    );
                }
                Some(Meaning::Anyway(reason) | Meaning::Nothing(reason)) => {
                    assert!(!setting(name) && !reason.is_empty(), "{name}");
                }
                None => panic!("{name}"),
            }
        }
    }

    #[test]
    fn every_documented_name_is_known() {
        let same = [
            "limit",
            "num_repeats",
            "num_repeats_add_seed",
            "responses_create_params",
            "prompt_config",
            "agent_map",
            "fan_out",
            "interleave_repeats",
            "environment_routing_mode",
            "environment_server_name",
            "environment_server_routes",
            "allow_unsupported_pairing",
            "health_check_ignored_checks",
            "require_complete",
            "count_failure_classes_as_zero",
            "count_missing_rollouts_as_zero",
            "dispatch_budget_s",
            "drain_margin_s",
            "dispatch_longest_first",
            "retry_terminal_timeouts",
            "retry_invalid_judge_responses",
        ];
        for name in same {
            assert!(meaning(name).is_none() && KEYS.iter().any(|(key, _)| *key == name));
        }
        for name in "agent_name input_jsonl_fpath output_jsonl_fpath num_samples_in_parallel resume_from_cache \
                     disable_aggregation upload_rollouts input_glob merge_shards materialized_inputs_jsonl_fpath \
                     rollouts_jsonl_fpath allow_partial_rollouts config_paths split head_server max_resident_rollout_tasks retain_results_in_memory \
                     disable_health_check health_check_workers \
                     route_failures_to_sidecar agent_type"
            .split_whitespace()
        {
            assert!(meaning(name).is_some(), "{name}");
        }
    }
}
