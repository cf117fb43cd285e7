//! How a sweep begins: what is at the place already, and what has to be there before anything is sent.

use datafusion::prelude::SessionContext;

use super::sweep::Sweep;
use super::{identity, recovery, task_names};
use crate::config::{AgentSettings, Settings};
use crate::error::Error;
use crate::expand;
use crate::measure::functions::register_json;
use crate::schema::TASKS;
use crate::session;
use crate::store::{
    Checkpointer, DispatchLogFile, JournalSegment, RunRecord, RunState, RunStore, StoreError,
    checkpoint,
};
use crate::tally::AgentTally;

impl Sweep {
    pub(super) async fn begin(&mut self) -> Result<(), Error> {
        if let Some(path) = self.run.local_path() {
            let made = std::fs::create_dir_all(path);
            made.map_err(|source| {
                Error::Output(StoreError::File {
                    action: "create",
                    path: path.to_owned(),
                    source,
                })
            })?;
        }
        self.run.create_state().map_err(Error::Output)?;
        if self.replaces {
            self.run.clear().await.map_err(Error::Output)?;
        }
        let created =
            !self.continues && self.record.create(&self.run).await.map_err(Error::Output)?;
        if !created && !self.continues {
            self.join().await?;
        }
        let tasks = self.run.parts(TASKS).await.map_err(Error::Output)?;
        if tasks.is_empty() || self.extends {
            let published = self.inputs.spool.publish(&self.run).await;
            published.map_err(Error::Output)?;
        }
        let shard = self.settings.shard;
        if self.continues {
            let journal = self.run.journal_dir();
            let is_ours = |name: &str| recovery::is_ours(name, shard);
            checkpoint::fetch(&self.run, journal, is_ours).await?;
        }
        let process = self.process.clone();
        let is_own = move |name: &str| name.starts_with(&process);
        self.checkpointer = Some(Checkpointer::new(self.run.clone(), is_own)?);
        if self.continues {
            let session = SessionContext::new_with_config(session::config());
            if recovery::recover(&self.run, shard, &session).await? {
                self.was_finished = false;
                self.count().await?;
            }
        }
        match created {
            true => Ok(()),
            false => self.record.save(&self.run).await.map_err(Error::Output),
        }
    }

    /// Somebody made the run since it was looked for: where several processes share the work, that is
    /// one of them.
    pub(super) async fn join(&mut self) -> Result<(), Error> {
        let place = self.run.display("");
        let record = RunRecord::load(&self.run).await.map_err(Error::Output)?;
        match (record, self.settings.shard) {
            (Some(record), Some(_)) => {
                identity::check(&record, &self.record.identity, &place)?;
                self.record.created_at = record.created_at;
                self.continues = true;
                Ok(())
            }
            (record, _) => {
                let state = record.map_or(RunState::Running, |record| record.state);
                let state = state.to_string();
                Err(StoreError::Exists { place, state }.into())
            }
        }
    }

    pub(super) async fn count(&mut self) -> Result<(), Error> {
        let session = self.tables().session(session::config()).await?;
        if self.settings.agents.values().any(AgentSettings::runs_here) {
            register_json(&session)?;
            task_names::check(&session, &self.agents).await?;
        }
        self.counts = expand::counts(&session).await?;
        self.prior = expand::prior(&session).await?;
        self.tally.begin(self.counts.iter().map(|agent| {
            let before = AgentTally::before(agent.num_rollouts, agent.num_done, agent.num_failed);
            (agent.agent_name.clone(), before)
        }));
        Ok(())
    }
}

/// What is at the place already, if it may be gone on with.
pub(super) async fn existing(
    run: &RunStore,
    settings: &Settings,
) -> Result<Option<RunRecord>, Error> {
    if let Some(path) = run.local_path()
        && path.exists()
        && !path.is_dir()
    {
        let source = std::io::Error::from(std::io::ErrorKind::NotADirectory);
        return Err(Error::Output(StoreError::File {
            action: "create a run at",
            path: path.to_owned(),
            source,
        }));
    }
    match RunRecord::load(run).await.map_err(Error::Output)? {
        Some(record) if settings.resume || settings.overwrite || settings.shard.is_some() => {
            Ok(Some(record))
        }
        Some(record) => {
            let state = record.state.to_string();
            Err(StoreError::Exists {
                place: run.display(""),
                state,
            }
            .into())
        }
        None => no_stray_journal(run).map(|()| None).map_err(Error::Output),
    }
}

/// A run has its run.json before anything is sent: answers without one belong to a run that was
/// removed, and would be counted as those of the new one.
fn no_stray_journal(run: &RunStore) -> Result<(), StoreError> {
    let journal = run.journal_dir();
    let segments = JournalSegment::list(journal)?;
    match segments.is_empty() && DispatchLogFile::list(journal)?.is_empty() {
        true => Ok(()),
        false => Err(StoreError::StrayJournal {
            journal: journal.to_owned(),
        }),
    }
}
