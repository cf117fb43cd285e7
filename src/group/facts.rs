use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

/// What the metrics of a group need to know of a sample, as the answer of a multi-turn agent has it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct SampleFacts {
    /// The sum of its rewards.
    pub reward: f64,
    /// Turns that were begun.
    pub turn_count: u64,
    /// Tokens of assistant and environment.
    pub total_tokens: u64,
    /// Tokens that the model generated.
    pub assistant_tokens: u64,
    /// Tokens of observations.
    pub env_tokens: u64,
    /// The environment ended it.
    pub terminated: bool,
    /// It was cut short.
    pub truncated: bool,
    /// It ran out of turns.
    pub max_turns_reached: bool,
    /// Of each turn, the tokens that were generated.
    pub turn_gen_tokens: Vec<u64>,
    /// Of each turn, the tokens of the log before it.
    pub turn_input_tokens: Vec<u64>,
    /// Of each turn, the sum of both.
    pub turn_total_tokens: Vec<u64>,
    /// Tokens that each worker generated.
    pub per_worker_token_counts: IndexMap<String, u64>,
}

impl SampleFacts {
    /// The facts in an answer.
    ///
    /// # Errors
    /// One of them is missing or of another kind: the answer is not that of a multi-turn agent.
    pub fn of(answer: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_agent_says_what_it_lacks() {
        let error = SampleFacts::of(&serde_json::json!({"reward": 1})).unwrap_err();
        assert_eq!(error.to_string(), "missing field `turn_count`");
    }
}
