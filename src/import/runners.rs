//! What ran the rollouts of files: an environment server, as rows say it since NeMo Gym 0.7, or else an agent.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringViewArray};
use indexmap::IndexMap;

use super::error::ImportError;
use crate::gym::GymRules;
use crate::json::{Object, unquote};
use crate::request::{ENVIRONMENT_SERVER, agent_name};
use crate::schema::AGENT_NAME;
use crate::store::EnvironmentServer;

/// The environment server of each agent that has one, by the agent's name.
pub type AgentServers = BTreeMap<String, String>;

/// All that ran rollouts, by name.
#[derive(Debug, Default)]
pub(super) struct Runners(IndexMap<String, Runner>);

#[derive(Debug)]
struct Runner {
    /// The agent that it asks.
    agent: Option<String>,
    is_server: bool,
}

impl Runners {
    /// Name of what ran the rollout of a row; empty where nobody says.
    pub(super) fn of(
        &mut self,
        row: &Object<'_>,
        servers: &AgentServers,
        rules: &GymRules,
    ) -> String {
        let agent = agent_name(row).filter(|name| !name.is_empty());
        let stamp = row.get(ENVIRONMENT_SERVER).filter(|_| rules.servers);
        let stamp = stamp.and_then(unquote).map(|name| name.into_owned());
        let known = || {
            let agent = agent.as_ref()?;
            let server = servers.get(agent).map(String::as_str);
            server.or_else(|| self.server_of(agent)).map(str::to_owned)
        };
        let server = stamp.or_else(known);
        let is_server = server.is_some();
        let Some(name) = server.or_else(|| agent.clone()) else {
            return String::new();
        };
        if !self.0.contains_key(&name) {
            self.0.insert(name.clone(), Runner { agent, is_server });
        }
        name
    }

    /// The environment server whose rows name an agent, where there is one alone.
    fn server_of(&self, agent: &str) -> Option<&str> {
        let mut servers = self
            .0
            .iter()
            .filter(|(_, runner)| runner.is_server && runner.agent.as_deref() == Some(agent));
        let (name, _) = servers.next()?;
        servers.next().is_none().then_some(name.as_str())
    }

    /// What each is called in reports: by its agent where that names one of them alone, else by its own name. An agent
    /// by itself is taken for its server, where rows name one.
    pub(super) fn labels(&self) -> HashMap<&str, &str> {
        let alone =
            |name: &str, runner: &Runner| !runner.is_server && self.server_of(name).is_some();
        let mut of_agent: HashMap<&str, usize> = HashMap::new();
        for (name, runner) in &self.0 {
            if let Some(agent) = runner.agent.as_deref().filter(|_| !alone(name, runner)) {
                *of_agent.entry(agent).or_default() += 1;
            }
        }
        let all = self.0.iter().map(|(name, runner)| {
            let agent = runner.agent.as_deref();
            let agent = agent.filter(|agent| of_agent.get(agent) == Some(&1));
            (name.as_str(), agent.unwrap_or(name))
        });
        all.collect()
    }

    /// The environment servers by what they are called in reports.
    pub(super) fn servers(&self) -> BTreeMap<String, EnvironmentServer> {
        let labels = self.labels();
        let servers = self.0.iter().filter(|(_, runner)| runner.is_server);
        let labelled = servers.filter_map(|(name, _)| {
            let label = labels.get(name.as_str())?;
            Some(((*label).to_owned(), EnvironmentServer::named(name.clone())))
        });
        labelled.collect()
    }

    /// A batch whose column `agent_name` holds what they are called instead of their names.
    pub(super) fn labelled(&self, batch: &RecordBatch) -> Result<RecordBatch, ImportError> {
        let labels = self.labels();
        let mut columns = batch.columns().to_vec();
        let place = batch.schema().index_of(AGENT_NAME)?;
        if let Some(column) = columns.get_mut(place) {
            let names = column.as_string_view().iter().map(|name| {
                let name = name.unwrap_or_default();
                Some(labels.get(name).copied().unwrap_or(name))
            });
            *column = Arc::new(names.collect::<StringViewArray>()) as ArrayRef;
        }
        Ok(RecordBatch::try_new(batch.schema(), columns)?)
    }
}
