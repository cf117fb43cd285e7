//! What a model acts in: [`Tools`], a resources server; [`Gymnasium`], one in the manner of
//! Gymnasium; and [`Environment`], which is stepped in batches.

mod episode;
mod gymnasium;
mod sessions;
mod step;
mod tools;
mod turn;
mod verdict;

pub(super) use gymnasium::Gymnasium;
pub(super) use step::Environment;
pub(super) use tools::Tools;
pub(super) use turn::turn_told;
