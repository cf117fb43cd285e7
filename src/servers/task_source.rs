use super::Servers;
use super::close_match::close_match;
use super::config::Kind;
use crate::python::{repr_list, repr_str};

impl Servers {
    /// The agent that gets the rows of a task source: the instance of that name itself, or the agent of a resources
    /// server.
    ///
    /// # Errors
    /// There is no such agent, or more than one; in the words of NeMo Gym.
    pub fn agent_of_source(&self, source: &str) -> Result<String, String> {
        let quoted = repr_str(source);
        let Some(instance) = self.instances.get(source) else {
            let near = close_match(source, self.instances.keys().map(String::as_str));
            let near = near.map(|near| format!(" (did you mean {}?)", repr_str(near)));
            return Err(format!(
                "{quoted}: not in the running config{}",
                near.unwrap_or_default()
            ));
        };
        match instance.kind {
            Kind::Plain => return Err(format!("{quoted}: not a server instance")),
            Kind::Environment | Kind::Other => {
                return Err(format!(
                    "{quoted}: instance is not an agent or resources server (datasets cannot route here)"
                ));
            }
            Kind::Agent | Kind::Resources => {}
        }
        let pin = match instance.pins.as_slice() {
            [] => None,
            [pin] => Some(pin),
            pins => {
                let mut pins = pins.to_vec();
                pins.sort_unstable();
                return Err(format!(
                    "{quoted}: its datasets pin conflicting agents ({}), which task_source alone cannot tell apart; pass \
                     +agent_map={{{source}: <agent>}} to pick one",
                    repr_list(pins)
                ));
            }
        };
        if instance.kind == Kind::Agent {
            return match pin.filter(|pin| *pin != source) {
                None => Ok(source.to_owned()),
                Some(pin) => Err(format!(
                    "{quoted}: its datasets pin agent {}, but rows of an agent's own datasets go to that agent; drop the \
                     `agent:` key, or declare the dataset on the resources server",
                    repr_str(pin)
                )),
            };
        }
        let mut agents: Vec<&str> = self
            .agents()
            .filter(|agent| self.resources_server_of(agent) == Some(source))
            .collect();
        if let Some(pin) = pin {
            return match agents.contains(&pin.as_str()) {
                true => Ok(pin.clone()),
                false => Err(format!(
                    "{quoted}: its datasets pin agent {}, which is no agent that refers to this resources server ({})",
                    repr_str(pin),
                    repr_list(agents)
                )),
            };
        }
        agents.sort_unstable();
        match agents.as_slice() {
            [only] => Ok((*only).to_owned()),
            [] => Err(format!(
                "{quoted}: no agent in the running config references resources server {quoted}. Point an agent's \
                 `resources_server` at it, or declare the dataset on the agent."
            )),
            several => Err(format!(
                "{quoted}: {} agents reference this resources server ({}). Pin the harness with an `agent:` key on the \
                 dataset declaration, or pass +agent_map={{{source}: <agent>}} to pick one at run time.",
                several.len(),
                repr_list(several)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
number: 1
model: {responses_api_models: {m: {}}}
math: {resources_servers: {math: {datasets: [{agent: b}, {agent: b}, {}]}}}
odd: {resources_servers: {odd: {datasets: [{agent: own}]}}}
a: {responses_api_agents: {simple: {resources_server: {name: math}}}}
b: {responses_api_agents: {simple: {resources_server: {name: math}}}}
own: {responses_api_agents: {simple: {datasets: [{agent: own}]}}}
wrong: {responses_api_agents: {simple: {datasets: [{agent: a}]}}}
";

    #[test]
    fn a_task_source_is_an_agent_or_has_one() {
        let servers = Servers::parse(CONFIG).unwrap();
        let agent = |source: &str| servers.agent_of_source(source);
        assert_eq!(agent("math"), Ok("b".to_owned()));
        assert_eq!(agent("own"), Ok("own".to_owned()));
        assert_eq!(agent("a"), Ok("a".to_owned()));
        for (source, expected) in [
            ("number", "'number': not a server instance"),
            ("model", "instance is not an agent"),
            ("odd", "no agent that refers to this"),
            ("wrong", "pin agent 'a', but"),
            ("maths", "(did you mean 'math'?)"),
        ] {
            let message = agent(source).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
