//! How servers are talked to: [`HttpClients`] share connections, [`Call`] gives what goes wrong its
//! class and its words.

mod clients;
mod connect_time;
mod retry_after;

pub use clients::{Call, ClientError, HttpClients, HttpSettings, Secrets, describe};
pub(crate) use connect_time::of as with_connect_time;
pub use retry_after::{headers_that_matter, retry_after};
