//! How servers are talked to: [`HttpClients`] share connections, a [`Destination`] is posted to over
//! and over, [`Call`] gives what goes wrong its class and its words.
//!
//! Plain HTTP without a proxy goes over connections of our own ([`link`]), which is several times
//! cheaper; TLS and proxies are reqwest's.
//!
//! | limit | |
//! |---|---|
//! | head of an answer | 256 headers and 64 KiB; 100 headers and 400 KiB over TLS or a proxy |
//! | body of an answer | [`HttpSettings::max_body`] |
//! | all bodies together | [`HttpSettings::body_memory`] and one more body |
//! | redirects of a request | 5, by 307 or 308 and to the same server |

mod call;
mod clients;
mod connect_time;
mod destination;
mod encoding;
mod head;
mod link;
mod pool;
mod problem;
mod redirect;
mod response;
mod retry_after;
mod room;
#[cfg(test)]
mod tests;

pub use call::{Call, Secrets};
pub use clients::{ClientError, HttpClients, HttpSettings};
pub(crate) use connect_time::of as with_connect_time;
pub use destination::Destination;
pub use problem::{Problem, describe};
pub use response::Response;
pub use retry_after::{headers_that_matter, retry_after};
pub use room::Holder;
