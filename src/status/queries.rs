//! The queries of a status, and their rows.

use crate::session::row;

pub(super) const PLANNED: &str = include_str!("../../queries/status/planned.sql");
pub(super) const DONE: &str = include_str!("../../queries/status/done.sql");
pub(super) const FAILED: &str = include_str!("../../queries/status/failed.sql");
pub(super) const ATTEMPTS: &str = include_str!("../../queries/status/attempts.sql");
pub(super) const BEGAN: &str = include_str!("../../queries/status/began.sql");
pub(super) const RECENT: &str = include_str!("../../queries/status/recent.sql");
pub(super) const IN_FLIGHT: &str = include_str!("../../queries/status/in_flight.sql");
pub(super) const ERRORS: &str = include_str!("../../queries/status/errors.sql");

row! {
    /// A row of `planned.sql`, `recent.sql` or `in_flight.sql`.
    pub(super) struct Rollouts {
        pub(super) agent_name: String,
        pub(super) num_rollouts: u64,
    }
}

row! {
    pub(super) struct Done {
        pub(super) agent_name: String,
        pub(super) num_done: u64,
        pub(super) num_rewards: u64,
        pub(super) reward_sum: Option<f64>,
    }
}

row! {
    pub(super) struct Failed {
        pub(super) agent_name: String,
        pub(super) outcome: String,
        pub(super) num_failed: u64,
    }
}

row! {
    pub(super) struct Attempts {
        pub(super) agent_name: String,
        pub(super) outcome: String,
        pub(super) http_status: Option<i64>,
        pub(super) num_attempts: u64,
        pub(super) first_dispatched_at: Option<i64>,
        pub(super) first_finished_at: Option<i64>,
        pub(super) last_finished_at: Option<i64>,
        pub(super) limit_at: Option<i64>,
        pub(super) concurrency_limit: u32,
        pub(super) permit_wait_ms: Option<f64>,
        pub(super) permit_wait_count: u64,
        pub(super) rate_wait_ms: Option<f64>,
        pub(super) rate_wait_count: u64,
        pub(super) connect_ms: Option<f64>,
        pub(super) connect_count: u64,
        pub(super) server_ms: Option<f64>,
        pub(super) server_count: u64,
        pub(super) client_ms: Option<f64>,
        pub(super) client_count: u64,
    }
}

row! {
    pub(super) struct Began {
        pub(super) first_dispatched_at: Option<i64>,
    }
}

row! {
    pub(super) struct Errors {
        pub(super) agent_name: String,
        pub(super) outcome: String,
        pub(super) http_status: Option<i64>,
        pub(super) error: String,
        pub(super) num_attempts: u64,
    }
}
