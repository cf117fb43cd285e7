//! Moved to `config`.

pub use crate::config::{GYM_05, GYM_07, GymChoice, GymRules, UnknownGymVersion};
