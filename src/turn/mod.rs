//! The calls within an attempt at a rollout that rollstream runs itself: [`TurnLog`] knows every one of
//! them from before it is sent, [`Target`] is a server that they go to, [`CookieJar`] what it wants to
//! hear again.

mod cookies;
mod log;
mod row;
#[cfg(test)]
pub(crate) mod scripted;
mod target;

pub use cookies::CookieJar;
pub use log::{OpenTurn, TurnCall, TurnJournal, TurnLog};
pub use row::{RolloutKey, Turn, TurnEnd, TurnKind, TurnStart};
pub use target::{Post, Posted, Target};
