//! The calls within an attempt at a rollout that rollstream runs itself: [`CallLog`] knows every one of
//! them from before it is sent, [`Target`] is a server that they go to, [`CookieJar`] what it wants to
//! hear again.

mod cookies;
mod log;
mod row;
#[cfg(test)]
pub(crate) mod scripted;
mod target;

pub use cookies::CookieJar;
pub use log::{CallJournal, CallLog, CallSpec, OpenCall};
pub use row::{CallEnd, CallKind, CallRow, CallStart, RolloutKey};
pub use target::{Post, Posted, Target};
