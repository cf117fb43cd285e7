//! How a sweep begins: what is at the place already, and what has to be there before anything is sent.

use std::io::ErrorKind;
use std::sync::Arc;

use super::identity::NotResumable;
use super::recovery::{Recovery, forget_copies, is_left};
use super::sweep::Sweep;
use super::{extension, identity, invalid_judges, task_names};
use crate::config::{AgentSettings, Settings};
use crate::error::Error;
use crate::expand;
use crate::measure::functions::register_json;
use crate::progress::AgentProgress;
use crate::schema::{self, TASKS};
use crate::session;
use crate::store::{
    Checkpointer, ParquetSink, RunRecord, RunState, RunStore, StoreError, Writer, checkpoint,
};

impl Sweep {
    /// Makes or repairs what has to be there, and finds out what is still to be done. Under the lock: what was read
    /// before may have changed since.
    pub(super) async fn begin(&mut self, writer: &Arc<Writer>) -> Result<(), Error> {
        make_directory(&self.run)?;
        if self.replaces {
            self.run.clear().await.map_err(StoreError::of_output)?;
        }
        if self.continues {
            self.run.tidy().await.map_err(StoreError::of_output)?;
            self.check_again().await?;
        }
        let created = !self.continues
            && self
                .record
                .create(&self.run)
                .await
                .map_err(StoreError::of_output)?;
        if !created && !self.continues {
            self.join().await?;
        }
        self.run = self.run.identified(&self.record.run_id);
        self.run.create_state().map_err(StoreError::of_output)?;
        self.publish_tasks().await.map_err(StoreError::of_output)?;
        if self.continues {
            let journal = self.run.journal_dir();
            checkpoint::fetch(&self.run, journal, |name| is_left(name, writer)).await?;
        }
        self.checkpointer = Some(Checkpointer::new(self.run.clone(), writer.epoch())?);
        if self.continues {
            let sink = ParquetSink::new(self.run.clone(), Arc::clone(writer));
            let recovery = Recovery {
                run: &self.run,
                sink: &sink,
                writer,
                progress: &self.progress,
            };
            if recovery.recover().await? {
                self.was_finished = false;
            }
            if self.settings.retry_invalid_judge_responses {
                let moved = invalid_judges::retry(&self.run, writer).await?;
                self.was_finished &= moved == 0;
                if moved > 0 {
                    self.progress.notice(format!(
                        "{moved} rollouts have no valid answer of their judge: they are failed attempts now, and tried again \
                         (--retry-invalid-judge-responses)"
                    ));
                }
            }
        }
        self.continues = true;
        self.count().await?;
        match created {
            true => Ok(()),
            false => self
                .record
                .save(&self.run)
                .await
                .map_err(StoreError::of_output),
        }
    }

    /// Whether the run is still the one that was found when the sweep was prepared.
    async fn check_again(&mut self) -> Result<(), Error> {
        let record = match RunRecord::load(&self.run).await {
            Ok(record) => record,
            // It is written anew.
            Err(StoreError::Record { .. }) => None,
            Err(error) => return Err(error.of_output()),
        };
        let Some(record) = record else { return Ok(()) };
        let is_same = record.run_id == self.record.run_id;
        if !is_same || record.identity != self.found_identity {
            return Err(NotResumable {
                place: self.run.display(""),
                difference: "another process has changed the run since; try again".to_owned(),
            }
            .into());
        }
        self.was_finished = record.state == RunState::Finished;
        Ok(())
    }

    async fn publish_tasks(&self) -> Result<(), StoreError> {
        let tasks = self.run.checked_parts(TASKS).await?;
        for part in &tasks.damaged {
            let to = self.run.set_aside(part).await?;
            self.progress.notice(format!(
                "{} is damaged: it is kept as {} and written anew",
                self.run.display_path(part),
                self.run.display(&to)
            ));
        }
        match tasks.whole.is_empty() || self.extends {
            true => self.inputs.spool.publish(&self.run).await,
            false => Ok(()),
        }
    }

    /// Somebody made the run since it was looked for: where several processes share the work, that is
    /// one of them.
    async fn join(&mut self) -> Result<(), Error> {
        let place = self.run.display("");
        let record = RunRecord::load(&self.run)
            .await
            .map_err(StoreError::of_output)?;
        match (record, self.settings.shard) {
            (Some(record), Some(_)) => {
                identity::check(&record, &self.record.identity, &place)?;
                self.record.created_at = record.created_at;
                self.record.run_id = record.run_id;
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

    /// Refuses kinds of tasks that no agent here knows.
    pub(super) async fn check_task_names(&self) -> Result<(), Error> {
        if !self.settings.agents.values().any(AgentSettings::runs_here) {
            return Ok(());
        }
        let session = self.tables().session(session::config()).await?;
        register_json(&session)?;
        task_names::check(&session, &self.agents).await
    }

    async fn count(&mut self) -> Result<(), Error> {
        let session = self.tables().session(session::config()).await?;
        self.counts = expand::counts(&session).await?;
        self.prior = expand::prior(&session).await?;
        if self.run.has_damaged().await? {
            expand::add_lost(&session, &mut self.prior).await?;
        }
        self.progress.begin(self.counts.iter().map(|agent| {
            let before =
                AgentProgress::before(agent.num_rollouts, agent.num_done, agent.num_failed);
            (agent.agent_name.clone(), before)
        }));
        Ok(())
    }

    /// Removes what only a sweep that is at work needs.
    pub(super) async fn clean_up(&self, writer: &Writer) -> Result<(), Error> {
        forget_copies(&self.run, writer).await?;
        let journal = self.run.journal_dir();
        let directories = journal.ancestors().take(2);
        for directory in
            directories.take_while(|directory| Some(*directory) != self.run.local_path())
        {
            // One that is not empty stays.
            let _ = std::fs::remove_dir(directory);
        }
        Ok(())
    }
}

fn make_directory(run: &RunStore) -> Result<(), Error> {
    let Some(path) = run.local_path() else {
        return Ok(());
    };
    std::fs::create_dir_all(path).map_err(|source| {
        StoreError::File {
            action: "create",
            path: path.to_owned(),
            source,
        }
        .of_output()
    })
}

/// What is at the place of a sweep.
#[derive(Debug)]
pub(super) enum Existing {
    /// Nothing of a run.
    Nothing,
    /// A run.
    Run(Box<RunRecord>),
    /// What is left of a run whose record has gone or can't be read.
    Remains,
}

/// What is at the place already, if the settings say what becomes of it.
pub(super) async fn existing(run: &RunStore, settings: &Settings) -> Result<Existing, Error> {
    if let Some(path) = run.local_path()
        && path.exists()
        && !path.is_dir()
    {
        let source = std::io::Error::from(ErrorKind::NotADirectory);
        return Err(StoreError::File {
            action: "create a run at",
            path: path.to_owned(),
            source,
        }
        .of_output());
    }
    let takes_over = settings.resume || settings.overwrite;
    match RunRecord::load(run).await {
        Ok(Some(record)) if takes_over || settings.shard.is_some() => {
            Ok(Existing::Run(Box::new(record)))
        }
        Ok(Some(record)) => {
            let state = record.state.to_string();
            let place = run.display("");
            Err(StoreError::Exists { place, state }.into())
        }
        Ok(None) => match refuse_remains(run).await {
            Ok(()) => Ok(Existing::Nothing),
            Err(_) if takes_over => Ok(Existing::Remains),
            Err(error) => Err(error),
        },
        Err(StoreError::Record { .. }) if takes_over => Ok(Existing::Remains),
        Err(StoreError::Version { .. }) if settings.overwrite => Ok(Existing::Remains),
        Err(error) => Err(error.of_output()),
    }
}

/// A run has its run.json before anything else: what is there without one belongs to a run whose record was lost, and
/// would be counted as the work of the new one.
pub(super) async fn refuse_remains(run: &RunStore) -> Result<(), Error> {
    match run.remains().await.map_err(StoreError::of_output)? {
        Some(remains) => Err(StoreError::NoRecord {
            place: run.display(""),
            remains,
        }
        .of_output()),
        None => Ok(()),
    }
}

/// The record of a run that has lost it, if the input is that of the run.
pub(super) async fn rebuilt(sweep: &mut Sweep) -> Result<(), Error> {
    let run = &sweep.run;
    let refuse = |difference: String| NotResumable {
        place: run.display(""),
        difference,
    };
    let tasks = run
        .checked_parts(schema::TASKS)
        .await
        .map_err(StoreError::of_output)?;
    if tasks.whole.is_empty()
        && !run
            .parts(schema::ROLLOUTS)
            .await
            .map_err(StoreError::of_output)?
            .is_empty()
    {
        let why = "neither its run.json nor its tasks can be read, so nothing says what was asked; use --overwrite";
        return Err(refuse(why.to_owned()).into());
    }
    let lost = match tasks.whole.is_empty() {
        true => Vec::new(),
        false => extension::lost(run, &sweep.inputs.spool).await?,
    };
    if !lost.is_empty() {
        return Err(refuse(format!(
            "its run.json can't be read, and by its tasks the input was another: {}",
            lost.join("; ")
        ))
        .into());
    }
    if let Some(run_id) = run.find_run_id().await.map_err(StoreError::of_output)? {
        sweep.record.run_id = run_id;
    }
    sweep.progress.notice(format!(
        "{} can't be read: it is written anew from the input and options that are given now",
        run.display("run.json")
    ));
    sweep.extends = true;
    Ok(())
}
