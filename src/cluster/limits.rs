//! The limits of a sweep on a cluster, which hold in sum: an executor that has a part of the slots has that part of them.

use super::{ClusterError, Network};
use crate::config::{Cluster, Concurrency, Settings};

/// Refuses settings that make no sense on a cluster. Returns its slots, and how to reach it.
///
/// # Errors
/// They do not fit a cluster.
pub(super) fn slots(
    settings: &Settings,
    cluster: &Cluster,
) -> Result<(usize, Network), ClusterError> {
    if settings.shard.is_some() {
        return Err(ClusterError::Option {
            option: "--shard",
            remedy: "a cluster makes shards itself",
        });
    }
    if settings
        .output
        .as_ref()
        .is_some_and(|place| place.starts_with("memory:"))
    {
        return Err(ClusterError::Option {
            option: "--output memory://",
            remedy: "executors are other processes, which do not see it",
        });
    }
    let of_others = [
        ("--cluster-slots", settings.cluster_slots.is_some()),
        ("--cluster-tls", settings.cluster_tls.is_some()),
        ("--insecure-network", settings.insecure_network),
    ];
    match cluster {
        Cluster::Local(executors) => match of_others.into_iter().find(|(_, is_set)| *is_set) {
            Some((option, _)) => Err(ClusterError::Option {
                option,
                remedy: "the executors of local:N are on this machine, and have a slot each",
            }),
            None => Ok((*executors, Network::default())),
        },
        Cluster::At { host, .. } => {
            let network = Network::new(host, &settings.cluster_tls, settings.insecure_network)?;
            let slots = settings.cluster_slots.ok_or(ClusterError::Slots)?;
            Ok((slots as usize, network))
        }
    }
}

/// Returns the settings for all executors together: without what is the driver's to do.
///
/// # Errors
/// A slot would have less than one call.
pub(super) fn for_executors(settings: &Settings, slots: usize) -> Result<Settings, ClusterError> {
    let of_all = [(Some(settings.concurrency), "--concurrency ".to_owned())];
    let of_agents = settings.agents.iter();
    let of_agents =
        of_agents.map(|(name, own)| (own.concurrency, format!("--agent-concurrency {name}=")));
    for (limit, name) in of_all.into_iter().chain(of_agents) {
        if let Some(Concurrency::Fixed(calls)) = limit
            && calls < slots
        {
            return Err(ClusterError::Limit {
                what: format!("{name}{calls}"),
                slots,
            });
        }
    }
    Ok(Settings {
        state_dir: None,
        input: Vec::new(),
        prompt_config: None,
        queries: None,
        params: serde_json::Map::new(),
        resume: true,
        overwrite: false,
        extend: false,
        break_lock: false,
        split: None,
        cluster: None,
        retry_invalid_judge_responses: false,
        max_failures: None,
        max_error_rate: None,
        deadline: None,
        ..settings.clone()
    })
}

/// Returns the settings of an executor that has a part of the slots, above 0 and up to 1. `auto` is up to its calls.
pub(super) fn of_executor(settings: Settings, part: f64) -> Settings {
    let calls = |limit: Concurrency| match limit {
        // Rounded first: a third of 3 is not to be 0.
        Concurrency::Fixed(calls) => {
            Concurrency::Fixed(((calls as f64 * part + 1e-6) as usize).max(1))
        }
        Concurrency::Auto => Concurrency::Auto,
    };
    let rate = |limit: Option<f64>| limit.map(|limit| limit * part);
    let mut agents = settings.agents;
    for own in agents.values_mut() {
        own.concurrency = own.concurrency.map(calls);
        own.requests_per_second = rate(own.requests_per_second);
        own.tokens_per_minute = rate(own.tokens_per_minute);
    }
    Settings {
        concurrency: calls(settings.concurrency),
        requests_per_second: rate(settings.requests_per_second),
        tokens_per_minute: rate(settings.tokens_per_minute),
        agents,
        ..settings
    }
}
