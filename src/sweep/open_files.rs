//! How many calls the system's limit of open files allows.

use rlimit::Resource;

use crate::config::Concurrency;

/// Files that a sweep has open beside its connections: inputs, the journal, parts, stores.
const OTHERS: u64 = 256;

/// Calls that may be in flight at a time: each is a connection, and a connection is an open file.
pub(super) fn most_calls() -> usize {
    let limit = Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(OTHERS).max(1)).unwrap_or(usize::MAX)
}

/// What to say if that is less than was asked for.
pub(super) fn warning(concurrency: Concurrency) -> Option<String> {
    let most = most_calls();
    let Concurrency::Fixed(wanted) = concurrency else {
        return None;
    };
    (wanted > most).then(|| {
        format!(
            "the system allows {} open files, which is enough for {most} calls in flight, and not for {wanted} \
             (--concurrency): {most} are made at a time. To raise the limit: ulimit -Hn, or LimitNOFILE of a service",
            most as u64 + OTHERS
        )
    })
}
