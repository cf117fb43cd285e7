use std::path::Path;

use datafusion::prelude::SessionContext;

use super::measurement::{Source, by_rules};
use crate::error::Error;
use crate::gym::{GymChoice, GymRules};
use crate::import::{
    AgentServers, AgentSource, Import, KeyRule, ResponseRule, RolloutOptions, Zeros, is_stamped,
};
use crate::measure::{CompletionSummary, RewardProfile, TaskLabels};
use crate::session;
use crate::store::{Document, RunStore};

/// NeMo Gym's reward profile: a line for each task, an entry for each agent, and how much of what was
/// asked for is there.
pub struct Profile {
    gathering: SessionContext,
    measuring: SessionContext,
    labels: TaskLabels,
    rules: &'static GymRules,
    completion: CompletionSummary,
}

/// Where a profile goes.
#[derive(Debug, Clone)]
pub struct ProfileTarget {
    /// A run, or any directory or object-store prefix.
    pub place: RunStore,
    /// What the names of the files begin with: nothing in a run, `NAME_` beside `NAME.jsonl`.
    pub prefix: String,
}

impl Profile {
    /// Of a run, live or finished: what has landed and what is in the journal. By the rules of the run, unless others
    /// are chosen. `memory` bytes are kept of what can go to temporary files.
    ///
    /// # Errors
    /// The run can't be read.
    pub async fn of_run(run: &RunStore, gym: GymChoice, memory: usize) -> Result<Self, Error> {
        let (runs, rules) = by_rules(std::slice::from_ref(run), gym).await?;
        let source = Source::Runs(&runs);
        Self::of(&source, TaskLabels::default(), rules, memory).await
    }

    /// Of files of NeMo Gym, by the rules of the version that wrote them, unless others are chosen. Numbers of every rollout are held in memory, and the texts of the inputs.
    ///
    /// # Errors
    /// A file can't be read, or its rows are not what they must be.
    pub async fn of_files(
        rollouts: &Path,
        materialized_inputs: &Path,
        gym: GymChoice,
        memory: usize,
    ) -> Result<Self, Error> {
        let is_stamped = is_stamped(rollouts)?;
        let rules = gym.rules(|| is_stamped);
        let files = SessionContext::new();
        let mut import = Import::new();
        let shown = |path: &Path| path.display().to_string();
        import.materialized_inputs(materialized_inputs, &shown(materialized_inputs), rules)?;
        let options = RolloutOptions {
            is_shard: false,
            keys: KeyRule::Required,
            response: ResponseRule::Required,
            agent: AgentSource::Inputs,
            rules,
            servers: AgentServers::new(),
            zeros: Zeros::default(),
        };
        import.rollouts(&[(rollouts, shown(rollouts))], &options)?;
        let imported = import.register(&files).await?;
        imported.check_profile(&files).await?;
        let labels = TaskLabels::from(imported.task_names);
        Self::of(&Source::Tables(&files), labels, rules, memory).await
    }

    async fn of(
        source: &Source<'_>,
        labels: TaskLabels,
        rules: &'static GymRules,
        memory: usize,
    ) -> Result<Self, Error> {
        let gathering = session::gathering(memory)?;
        let measuring = session::measuring(memory)?;
        source.register_both(&gathering, &measuring).await?;
        let completion = CompletionSummary::of(&gathering, rules).await?;
        Ok(Self {
            gathering,
            measuring,
            labels,
            rules,
            completion,
        })
    }

    /// How much of what was asked for is there.
    pub fn completion(&self) -> &CompletionSummary {
        &self.completion
    }

    /// Refuses rollouts that nobody asked for and, unless `allow_partial`, rollouts that are missing.
    ///
    /// # Errors
    /// There are such, or the tables can't be read.
    pub async fn check(&self, allow_partial: bool) -> Result<(), Error> {
        let (ctx, labels) = (&self.gathering, &self.labels);
        Ok(self.completion.check(ctx, labels, allow_partial).await?)
    }

    /// Writes `reward_profiling.jsonl`, `agent_metrics.json` and, where the rules have it, `repeat_level_metrics.json`, and
    /// says how a person names them. Each is there when it is whole, and not before. `notes` gets what is to be known of
    /// the numbers.
    ///
    /// # Errors
    /// The tables can't be read, or a file not be written.
    pub async fn write(
        &self,
        target: &ProfileTarget,
        notes: &mut Vec<String>,
    ) -> Result<Vec<String>, Error> {
        let create = |name: &str| {
            let name = format!("{}{name}", target.prefix);
            Document::create(&target.place, &name)
        };
        let mut tasks = create("reward_profiling.jsonl")?;
        let mut agents = create("agent_metrics.json")?;
        let profile =
            RewardProfile::compute(&self.gathering, &self.measuring, &self.labels, self.rules)
                .await?;
        profile.write_tasks(&mut tasks).await?;
        profile.write_agents(&mut agents).await?;
        let mut written = vec![tasks.finish().await?, agents.finish().await?];
        if self.rules.repeats {
            let mut repeats = create("repeat_level_metrics.json")?;
            notes.extend(profile.write_repeats(&mut repeats).await?);
            written.push(repeats.finish().await?);
        }
        Ok(written)
    }
}
