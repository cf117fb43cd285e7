//! Begins a sweep under its lock: creates or repairs what it needs before anything is sent.

use std::sync::Arc;

use datafusion::prelude::SessionContext;

use super::identity::{self, NotResumable};
use super::recovery::{Recovery, forget_copies, is_left};
use super::{Found, Role, Start, Sweep, invalid_judges, now};
use crate::agent::AgentError;
use crate::config::AgentSettings;
use crate::error::Error;
use crate::expand;
use crate::measure::Price;
use crate::progress::AgentProgress;
use crate::schema::TASKS;
use crate::session::{self, Rows, RunTables, row};
use crate::store::{
    Checkpointer, ParquetSink, RunRecord, RunState, RunStore, StoreError, Writer, checkpoint,
};

impl Sweep {
    /// Creates or repairs the run, counts what is pending, and returns what has landed. It runs under the lock, and checks
    /// again what was read before the lock was held.
    pub(super) async fn begin(&mut self, writer: &Arc<Writer>) -> Result<RunTables, Error> {
        make_directory(&self.run)?;
        if self.start == Start::Replaced {
            self.run.clear().await.map_err(StoreError::of_output)?;
        }
        let mut is_created = false;
        if self.start.found().is_some() {
            self.run.tidy().await.map_err(StoreError::of_output)?;
            self.check_again().await?;
        } else {
            let created = self.record.create(&self.run).await;
            is_created = created.map_err(StoreError::of_output)?;
            if !is_created {
                self.join().await?;
            }
        }
        self.run = self.run.identified(&self.record.run_id);
        self.run.create_state().map_err(StoreError::of_output)?;
        self.publish_tasks().await.map_err(StoreError::of_output)?;
        let resumes = self.start.found().is_some();
        if resumes {
            let journal = self.run.journal_dir();
            checkpoint::fetch(&self.run, journal, |name| is_left(name, writer)).await?;
        }
        self.checkpointer = Some(Checkpointer::new(self.run.clone(), writer.epoch())?);
        if resumes {
            let sink = ParquetSink::new(self.run.clone(), Arc::clone(writer));
            let recovery = Recovery {
                run: &self.run,
                sink: &sink,
                writer,
                progress: &self.progress,
            };
            if recovery.recover().await? {
                self.start.set_finished(false);
            }
            if self.settings.retry_invalid_judge_responses {
                let moved = invalid_judges::retry(&self.run, writer).await?;
                if moved > 0 {
                    self.start.set_finished(false);
                    self.progress.notice(format!(
                        "{moved} rollouts got no valid answer from their judge: they count as failed attempts now, and are retried \
                         (--retry-invalid-judge-responses)"
                    ));
                }
            }
        }
        if !resumes {
            // From now on, landed rows count as they do in a resumed run.
            self.start = Start::Resumed(Found::unfinished(&self.record));
        }
        let landed = self.landed(self.settings.shard).await?;
        self.count(&landed).await?;
        if !is_created && self.role != Role::Executor {
            if self.counts.iter().any(|agent| agent.num_pending() > 0) {
                self.record.started_at = Some(now());
            }
            let saved = self.record.save(&self.run).await;
            saved.map_err(StoreError::of_output)?;
        }
        Ok(landed)
    }

    /// Refuses a run that another process has changed since the sweep was prepared.
    async fn check_again(&mut self) -> Result<(), Error> {
        let record = match RunRecord::load(&self.run).await {
            Ok(record) => record,
            // A record that can't be read is written anew.
            Err(StoreError::Record { .. }) => None,
            Err(error) => return Err(error.of_output()),
        };
        let Some(record) = record else { return Ok(()) };
        let found = self.start.found();
        if record.run_id != self.record.run_id
            || found.is_some_and(|found| found.identity != record.identity)
        {
            return Err(NotResumable {
                place: self.run.display(""),
                difference: "another process has changed the run since; try again".to_owned(),
            }
            .into());
        }
        // A driver has begun the run itself by now.
        if self.role != Role::Driver {
            self.start.set_finished(record.state == RunState::Finished);
        }
        Ok(())
    }

    async fn publish_tasks(&self) -> Result<(), StoreError> {
        let tasks = self.run.checked_parts(TASKS).await?;
        for part in &tasks.damaged {
            let to = self.run.set_aside(part).await?;
            self.progress.notice(format!(
                "{} is damaged: it is kept as {} and rewritten",
                self.run.display_path(part),
                self.run.display(&to)
            ));
        }
        if tasks.whole.is_empty() || matches!(self.start, Start::Extended(_)) {
            self.inputs.spool.publish(&self.run).await?;
        }
        Ok(())
    }

    /// Joins a run that another process has created since this one looked for it, if several share the work.
    async fn join(&mut self) -> Result<(), Error> {
        let place = self.run.display("");
        let record = RunRecord::load(&self.run).await;
        match (record.map_err(StoreError::of_output)?, self.settings.shard) {
            (Some(record), Some(_)) => {
                identity::check(&record, &self.record.identity, &place)?;
                self.record.created_at = record.created_at;
                self.record.run_id = record.run_id;
                self.start = Start::Resumed(Found::unfinished(&self.record));
                Ok(())
            }
            (record, _) => {
                let state = record.map_or(RunState::Running, |record| record.state);
                let state = state.to_string();
                Err(StoreError::Exists { place, state }.into())
            }
        }
    }

    /// Refuses tasks that their agents do not take, if any agent runs within rollstream. The tasks that a run already
    /// has were checked before.
    pub(super) async fn check_tasks(&self) -> Result<(), Error> {
        let is_read = self.inputs.identity.is_none();
        if !is_read || !self.settings.agents.values().any(AgentSettings::runs_here) {
            return Ok(());
        }
        let session = session::config().with_target_partitions(1);
        let session = SessionContext::new_with_config(session);
        let tasks = RunTables::tasks(self.inputs.spool.store()).await?;
        let tasks = tasks.table(&session, TASKS).await?;
        let columns = ["agent_name", "request", "source_file", "source_line"];
        let mut tasks = Rows::start(tasks.select_columns(&columns)?, Task::rows).await?;
        let (mut findings, mut count) = (Vec::new(), 0);
        while let Some(task) = tasks.next().await? {
            let agent = self.agents.get(&task.agent_name);
            let Some(Err(reason)) = agent.map(|member| member.agent.check_task(&task.request))
            else {
                continue;
            };
            count += 1;
            if findings.len() < SHOWN {
                findings.push(format!(
                    "{}:{}: agent '{}': {reason}",
                    task.source_file, task.source_line, task.agent_name
                ));
            }
        }
        if findings.is_empty() {
            return Ok(());
        }
        Err(AgentError::Tasks { findings, count }.into())
    }

    async fn count(&mut self, landed: &RunTables) -> Result<(), Error> {
        let session = self.session(landed, self.settings.shard).await?;
        self.counts = expand::counts(&session).await?;
        let mut failed = Vec::new();
        if landed.has_attempts() {
            self.prior = expand::prior(&session).await?;
            failed = expand::failed_classes(&session).await?;
        }
        if self.run.has_damaged().await? {
            expand::add_lost(&session, &mut self.prior).await?;
        }
        let prices = Price::of_agents(&self.settings);
        self.progress.begin(self.counts.iter().map(|agent| {
            let own = failed.iter().filter(|of| of.agent_name == agent.agent_name);
            let failed = own.map(|of| (of.class.clone(), of.num_rollouts)).collect();
            let price = prices.get(&agent.agent_name);
            let progress = AgentProgress {
                num_tasks: agent.num_tasks,
                prices: price.map(|price| [price.input, price.output]),
                ..AgentProgress::before(agent.num_rollouts, agent.num_done, failed)
            };
            (agent.agent_name.clone(), progress)
        }));
        if self.counts.iter().any(|agent| agent.num_done > 0) {
            expand::earlier(&session, self.rules.masks, &self.progress).await?;
        }
        Ok(())
    }

    /// Removes what only a running sweep needs.
    pub(super) async fn clean_up(&self, writer: &Writer) -> Result<(), Error> {
        forget_copies(&self.run, writer).await?;
        let journal = self.run.journal_dir();
        let directories = journal.ancestors().take(2);
        for directory in
            directories.take_while(|directory| Some(*directory) != self.run.local_path())
        {
            // A directory that is not empty stays.
            let _ = std::fs::remove_dir(directory);
        }
        Ok(())
    }
}

/// Creates the directory of a run, if it has one.
///
/// # Errors
/// The system refused.
pub(super) fn make_directory(run: &RunStore) -> Result<(), Error> {
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

row! {
    struct Task {
        agent_name: String,
        request: String,
        source_file: String,
        source_line: i64,
    }
}

/// The most tasks that an error names.
const SHOWN: usize = 5;
