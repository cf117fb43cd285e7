use serde_json::{Map, Value, json};

use super::figures::number;
use crate::model::Message;
use crate::request::{AGENT_REF, MESSAGE_LOG, RESPONSES_CREATE_PARAMS, TASK_INDEX};

/// The field for the number of a row within its prompt, as in NeMo RL.
const ROW_INDEX: &str = "_rowidx";

const MAX_OUTPUT_TOKENS: &str = "max_output_tokens";

/// A prompt of NeMo RL's trainer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainingPrompt {
    /// The index of the prompt.
    pub idx: i64,
    /// The conversation before the first turn.
    pub message_log: Vec<Message>,
    /// The metadata for the environment. For an agent of NeMo Gym, the row of the task.
    pub extra_env_info: Value,
    /// The task name.
    pub task_name: Option<String>,
    /// Texts that end the first generation. An agent of NeMo Gym takes none.
    pub stop_strings: Option<Vec<String>>,
}

impl TrainingPrompt {
    /// Returns the row for an agent whose turns rollstream runs itself: the same for all rollouts.
    pub(super) fn native_row(&self, sampling: &Sampling) -> Value {
        let params = sampling.native_params();
        json!({
            "idx": self.idx,
            MESSAGE_LOG: self.message_log,
            "extra_env_info": self.extra_env_info,
            "task_name": self.task_name,
            "stop_strings": self.stop_strings,
            RESPONSES_CREATE_PARAMS: params,
            TASK_INDEX: self.idx,
        })
    }

    /// Returns the row of one rollout for `agent`, an agent of NeMo Gym.
    ///
    /// # Errors
    /// The prompt is not one of NeMo Gym, or its row names another agent.
    pub(super) fn gym_row(
        &self,
        agent: &str,
        rollout: usize,
        sampling: &Sampling,
    ) -> Result<Value, String> {
        if self.stop_strings.is_some() {
            return Err("stop_strings can't be sent to an agent of NeMo Gym".into());
        }
        let Value::Object(mut row) = self.extra_env_info.clone() else {
            return Err("extra_env_info is not the row of a NeMo Gym task".into());
        };
        let named = row.get(AGENT_REF).and_then(|named| named.get("name"));
        if let Some(other) = named.and_then(Value::as_str).filter(|name| *name != agent) {
            return Err(format!(
                "its row names agent '{other}', not '{agent}': give it to a manager of that agent, or remove \
                 agent_ref from it"
            ));
        }
        let params = row.get(RESPONSES_CREATE_PARAMS).and_then(Value::as_object);
        let params = params.ok_or("extra_env_info has no responses_create_params")?;
        let most = params.get(MAX_OUTPUT_TOKENS).filter(|most| !most.is_null());
        if let Some(most) = most.filter(|most| number(most).is_none()) {
            return Err(format!(
                "{MAX_OUTPUT_TOKENS} of its row must be a number, and is {most}"
            ));
        }
        row.insert(
            RESPONSES_CREATE_PARAMS.into(),
            sampling.params(params).into(),
        );
        row.insert(ROW_INDEX.into(), rollout.into());
        Ok(row.into())
    }
}

/// The sampling parameters of rollouts. `None` keeps the value of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// The most tokens of a generation.
    pub max_new_tokens: Option<u64>,
    /// The number of most likely tokens to choose from. Not for agents of NeMo Gym, like the next three.
    pub top_k: Option<u64>,
    /// Texts that end a generation for which neither prompt nor environment names any.
    pub stop_strings: Vec<String>,
    /// Tokens that end a generation.
    pub stop_token_ids: Vec<u32>,
    /// Whether the most likely token is always chosen: temperature 0, whatever else is set.
    pub greedy: bool,
    /// Whether message logs keep the log-probabilities of generated tokens.
    pub include_logprobs: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: None,
            top_p: None,
            max_new_tokens: None,
            top_k: None,
            stop_strings: Vec::new(),
            stop_token_ids: Vec::new(),
            greedy: false,
            include_logprobs: true,
        }
    }
}

impl Sampling {
    /// Returns the parameters for an agent whose turns rollstream runs itself.
    fn native_params(&self) -> Map<String, Value> {
        let mut params = self.params(&Map::new());
        if self.greedy {
            params.insert("temperature".into(), 0.0.into());
        } else if let Some(top_k) = self.top_k {
            params.insert("top_k".into(), top_k.into());
        }
        if !self.stop_strings.is_empty() {
            params.insert("stop".into(), self.stop_strings.clone().into());
        }
        if !self.stop_token_ids.is_empty() {
            params.insert("stop_token_ids".into(), self.stop_token_ids.clone().into());
        }
        params
    }

    /// Returns a request's parameters, overridden by those set here. The smaller of two token limits counts.
    fn params(&self, own: &Map<String, Value>) -> Map<String, Value> {
        let mut params = own.clone();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                params.insert(name.to_owned(), value);
            }
        };
        set("temperature", self.temperature.map(Value::from));
        set("top_p", self.top_p.map(Value::from));
        let own_most = own.get(MAX_OUTPUT_TOKENS).and_then(number);
        let most = self.max_new_tokens;
        let most = most.filter(|most| own_most.is_none_or(|own| own > *most as f64));
        set(MAX_OUTPUT_TOKENS, most.map(Value::from));
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_of_tokens_counts() {
        let sampling = Sampling {
            temperature: Some(0.5),
            max_new_tokens: Some(100),
            ..Sampling::default()
        };
        let prompt = |most: Value| TrainingPrompt {
            idx: 7,
            extra_env_info: json!({"responses_create_params": {"input": "hi", "max_output_tokens": most, "temperature": 1}}),
            ..TrainingPrompt::default()
        };
        for (own, expected) in [
            (json!(50), json!(50)),
            (json!(7.5), json!(7.5)),
            (json!(500), json!(100)),
            (json!(null), json!(100)),
        ] {
            let row = prompt(own).gym_row("a", 3, &sampling).unwrap();
            let params = &row["responses_create_params"];
            assert_eq!(params["max_output_tokens"], expected);
            assert_eq!(params["temperature"], 0.5);
            assert_eq!(row["_rowidx"], 3);
        }
        let of_text = prompt(json!("8")).gym_row("a", 3, &sampling).unwrap_err();
        assert!(
            of_text.ends_with("must be a number, and is \"8\""),
            "{of_text}"
        );
        let with_stop = TrainingPrompt {
            stop_strings: Some(vec![]),
            ..prompt(json!(1))
        };
        assert!(with_stop.gym_row("a", 0, &sampling).is_err());
    }

    #[test]
    fn greedy_is_temperature_0_whatever_else_is_set() {
        let sampling = Sampling {
            temperature: Some(0.5),
            top_k: Some(5),
            stop_strings: vec!["end".into()],
            stop_token_ids: vec![2],
            ..Sampling::default()
        };
        let params = |sampling: &Sampling| {
            let row = TrainingPrompt::default().native_row(sampling);
            row["responses_create_params"].clone()
        };
        let expected =
            json!({"temperature": 0.5, "top_k": 5, "stop": ["end"], "stop_token_ids": [2]});
        assert_eq!(params(&sampling), expected);
        let greedy = Sampling {
            greedy: true,
            ..sampling
        };
        let expected = json!({"temperature": 0.0, "stop": ["end"], "stop_token_ids": [2]});
        assert_eq!(params(&greedy), expected);
    }
}
