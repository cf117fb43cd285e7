use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use datafusion::prelude::SessionContext;
use serde::Serialize;

use super::figures::Sums;
use super::observe::observe;
use super::rate::rfc3339;
use super::{Figures, LockStatus, ObservedState, RateWindow, queries};
use crate::config::Settings;
use crate::error::Error;
use crate::expand;
use crate::session::{self, RunTables};
use crate::store::{RunRecord, RunStore, StoreError};

/// How a run is doing. All of it is counted: what `run.json` says of numbers is not relied on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunStatus {
    /// The run, as a person names it.
    pub place: String,
    /// What it is doing.
    pub state: ObservedState,
    /// When the sweep was first started, RFC 3339.
    pub created_at: String,
    /// When it was last finished or interrupted, RFC 3339.
    pub finished_at: Option<String>,
    /// When this was looked at.
    #[serde(serialize_with = "rfc3339")]
    pub looked_at: DateTime<Utc>,
    /// What rates are taken over; none where nothing was attempted.
    pub rate_window: Option<RateWindow>,
    /// Parts that can't be read, whose rows are missing.
    pub damaged: Vec<String>,
    /// Its locks, held or left behind.
    pub locks: Vec<LockStatus>,
    /// The figures of all agents.
    pub total: Figures,
    /// Each agent, by name.
    pub agents: Vec<AgentStatus>,
}

/// How an agent is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgentStatus {
    /// The agent.
    pub agent_name: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// Calls that were allowed in flight when its newest known attempt was sent.
    pub concurrency_limit: Option<u32>,
    /// Its most frequent errors, the most frequent first: three at most.
    pub errors: Vec<ErrorCount>,
}

/// An error that attempts ended with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorCount {
    /// Class of the failure.
    pub outcome: String,
    /// HTTP status, where there was one.
    pub http_status: Option<u16>,
    /// Attempts that ended so. Errors that differ only in words that hold a digit are one.
    pub attempts: u64,
    /// What went wrong with one of them, one line of at most 300 characters.
    pub error: String,
}

impl RunStatus {
    /// Looks at a run.
    ///
    /// # Errors
    /// There is no run ([`StoreError::NoRun`]), its record is of another version, or the store failed.
    pub async fn of(run: &RunStore) -> Result<Self, Error> {
        Self::at(run, Utc::now()).await
    }

    pub(super) async fn at(run: &RunStore, now: DateTime<Utc>) -> Result<Self, Error> {
        // Before the tables: of a run that is seen as finished they have all there will be.
        let (record, state, locks) = observe(run, now).await?;
        let session = SessionContext::new_with_config(session::config());
        let dispatches = session::dispatches(run).await?;
        let tables = RunTables::look(run).await?;
        tables.register(&session).await?;
        let damaged = tables.damaged().map(|part| run.display_path(part));
        let damaged = damaged.collect();

        let mut agents = planned(&session, &settings(run, &record)?).await?;
        for row in queries::done(&session).await? {
            let agent = agents.entry(row.agent_name).or_default();
            agent.done = row.num_done;
            agent.reward.add(row.reward_sum, row.num_rewards);
        }
        for row in queries::failed(&session).await? {
            let agent = agents.entry(row.agent_name).or_default();
            agent.failed.insert(row.outcome, row.num_failed);
        }
        for row in queries::attempts(&session).await? {
            let agent = agents.entry(row.agent_name.clone()).or_default();
            agent.add_attempts(&row);
        }
        let rate_window = window(state, now, &locks, &agents);
        if let Some(window) = &rate_window {
            for row in queries::recent(&session, window).await? {
                let agent = agents.entry(row.agent_name).or_default();
                agent.recently_done = row.num_done;
            }
        }
        if let Some(dispatches) = dispatches.filter(|_| state.is_live()) {
            session.register_table("dispatches", Arc::new(dispatches))?;
            let unanswered = expand::unanswered(&session).await?;
            session.register_table("unanswered", unanswered.into_view())?;
            for agent in agents.values_mut() {
                agent.in_flight = Some(0);
            }
            for row in queries::in_flight(&session).await? {
                agents.entry(row.agent_name).or_default().in_flight = Some(row.num_in_flight);
            }
        }
        let mut errors = errors(&session).await?;

        let total = sum(&agents).figures(rate_window.as_ref());
        let agents = agents.into_iter().map(|(agent_name, sums)| AgentStatus {
            errors: errors.remove(&agent_name).unwrap_or_default(),
            figures: sums.figures(rate_window.as_ref()),
            concurrency_limit: sums.concurrency_limit(),
            agent_name,
        });
        Ok(Self {
            place: run.display(""),
            state,
            created_at: record.created_at,
            finished_at: record.finished_at,
            looked_at: now,
            rate_window,
            damaged,
            locks,
            total,
            agents: agents.collect(),
        })
    }
}

/// The settings of the collector that was last at work.
fn settings(run: &RunStore, record: &RunRecord) -> Result<Settings, StoreError> {
    serde_json::from_value(record.settings.clone()).map_err(|error| StoreError::Record {
        object: run.display("run.json"),
        reason: format!(
            "its settings can't be read ({error}); use rollstream {}",
            record.rollstream_version
        ),
    })
}

/// What is asked of each agent. Prepares the session to tell what was given up.
async fn planned(
    session: &SessionContext,
    settings: &Settings,
) -> Result<BTreeMap<String, Sums>, Error> {
    let mut agents = BTreeMap::new();
    for row in queries::planned(session).await? {
        agents.insert(row.agent_name, Sums::of_planned(row.num_planned));
    }
    let budgets = agents
        .keys()
        .map(|name| (name.as_str(), settings.budgets(name)));
    expand::prepare(session, budgets, expand::Terminal::of(settings)).await?;
    Ok(agents)
}

async fn errors(session: &SessionContext) -> Result<BTreeMap<String, Vec<ErrorCount>>, Error> {
    let mut errors: BTreeMap<String, Vec<ErrorCount>> = BTreeMap::new();
    for row in queries::errors(session).await? {
        let error = row.error.unwrap_or_default();
        let words: Vec<&str> = error.split_whitespace().collect();
        errors.entry(row.agent_name).or_default().push(ErrorCount {
            outcome: row.outcome,
            http_status: row.http_status,
            attempts: row.num_attempts,
            error: words.join(" "),
        });
    }
    Ok(errors)
}

fn window(
    state: ObservedState,
    now: DateTime<Utc>,
    locks: &[LockStatus],
    agents: &BTreeMap<String, Sums>,
) -> Option<RateWindow> {
    if state.is_live() {
        let living = locks.iter().filter(|lock| lock.alive);
        return RateWindow::current(now, living.map(|lock| lock.since).min());
    }
    let all = sum(agents);
    let time = |micros: Option<i64>| micros.and_then(DateTime::from_timestamp_micros);
    RateWindow::last(time(all.first_dispatched), time(all.last_finished))
}

fn sum(agents: &BTreeMap<String, Sums>) -> Sums {
    let mut total = Sums::default();
    for agent in agents.values() {
        total.add(agent);
    }
    total
}
