//! Calls to servers: [`HttpClients`] share connections, a [`Destination`] is posted to repeatedly, [`Call`] gives
//! each failure its class and its text. Agents, models and environment servers are asked through it.
//!
//! Plain HTTP without a proxy goes over connections of our own (`link`), which is several times cheaper; TLS and proxies
//! are reqwest's.
//!
//! | limit | |
//! |---|---|
//! | head of an answer | 256 headers and 64 KiB; 100 headers and 400 KiB over TLS or a proxy |
//! | body of an answer | [`HttpSettings::max_body`] |
//! | all bodies together | [`HttpSettings::body_memory`] and one more body |
//! | redirects of a request | 5, by 307 or 308 and to the same server |

mod call;
mod clients;
mod link;
mod pool;
mod response;
mod retry_after;
mod room;
#[cfg(test)]
mod tests;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use call::{Call, Problem, Secrets, describe};
pub use clients::{ClientError, Destination, HttpClients, HttpSettings};
pub(crate) use pool::with_connect_time;
pub use response::Response;
pub use retry_after::{headers_that_matter, retry_after};
pub use room::Holder;

/// Raises the limit of open files as far as the system allows, and returns it. Every call in flight is a connection,
/// and a connection is an open file.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // A system that refuses leaves the limit as it is.
    let _ = setrlimit(Resource::Nofile, raised);
    open_files()
}

/// Returns how many files this process may have open.
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
