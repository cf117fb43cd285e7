//! Whole sweeps against simulated agents: what is landed is compared with what must come out.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[path = "pipeline/backpressure.rs"]
mod backpressure;
#[path = "pipeline/cancellation.rs"]
mod cancellation;
#[path = "pipeline/concurrency.rs"]
mod concurrency;
#[path = "pipeline/exactness.rs"]
mod exactness;
#[path = "pipeline/given_answers.rs"]
mod given_answers;
#[path = "pipeline/landed.rs"]
mod landed;
#[path = "pipeline/landing.rs"]
mod landing;
#[path = "pipeline/lossless.rs"]
mod lossless;
#[path = "pipeline/operator.rs"]
mod operator;
#[path = "pipeline/order.rs"]
mod order;
#[path = "pipeline/partitions.rs"]
mod partitions;
#[path = "pipeline/pending.rs"]
mod pending;
#[path = "pipeline/plan.rs"]
mod plan;
#[path = "pipeline/pruning.rs"]
mod pruning;
#[path = "pipeline/reading.rs"]
mod reading;
#[path = "pipeline/record.rs"]
mod record;
#[path = "pipeline/recovery.rs"]
mod recovery;
#[path = "pipeline/resume.rs"]
mod resume;
#[path = "pipeline/rollout_manager.rs"]
mod rollout_manager;
#[path = "pipeline/routing.rs"]
mod routing;
#[path = "pipeline/spilling.rs"]
mod spilling;
#[path = "pipeline/stores.rs"]
mod stores;
#[path = "pipeline/trainer.rs"]
mod trainer;
#[path = "pipeline/workspace.rs"]
mod workspace;
