//! Serde for the agents of a simulation: [`agents`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserializer, de};

use super::config::AgentConfig;

/// Reads a list of names, or a table of names and what each agent has of its own.
pub(super) fn agents<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, AgentConfig>, D::Error> {
    from.deserialize_any(AgentsVisitor)
}

struct AgentsVisitor;

impl<'de> de::Visitor<'de> for AgentsVisitor {
    type Value = BTreeMap<String, AgentConfig>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a list of agent names, or a table of agents by name")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut agents = BTreeMap::new();
        while let Some(name) = seq.next_element()? {
            agents.insert(name, AgentConfig::default());
        }
        Ok(agents)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut agents = BTreeMap::new();
        while let Some((name, agent)) = map.next_entry()? {
            agents.insert(name, agent);
        }
        Ok(agents)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::SimConfig;

    #[test]
    fn agents_can_be_a_mere_list() {
        let config: SimConfig = serde_yaml_ng::from_str("agents: [b, a]").unwrap();
        assert_eq!(config.agents.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}
