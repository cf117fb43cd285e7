use serde_json::{Map, Value};

/// Counts that are summed over the turns.
const SUMMED: [&str; 3] = ["input_tokens", "output_tokens", "total_tokens"];

/// Counts within details that are summed, and that one null makes null for good.
const DETAILS: [(&str, &str); 2] = [
    ("input_tokens_details", "cached_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
];

/// The usage of a whole episode: the sum of its turns'. Fields that are not counts of tokens are the
/// first turn's, as NeMo Gym has it.
#[derive(Debug, Default)]
pub(super) struct Usage(Option<Map<String, Value>>);

impl Usage {
    /// Adds a turn; one without usage adds nothing.
    pub(super) fn add(&mut self, turn: Option<&Map<String, Value>>) {
        let Some(turn) = turn else { return };
        let Some(sum) = &mut self.0 else {
            self.0 = Some(turn.clone());
            return;
        };
        for name in SUMMED {
            if let Some(more) = turn.get(name) {
                add(sum.entry(name).or_insert(Value::Null), more, false);
            }
        }
        for (details, name) in DETAILS {
            let more = turn.get(details).and_then(|details| details.get(name));
            let Some(more) = more else { continue };
            if let Some(details) = sum.get_mut(details).and_then(Value::as_object_mut) {
                add(details.entry(name).or_insert(Value::Null), more, true);
            }
        }
    }

    /// The sum as JSON text.
    pub(super) fn text(&self) -> String {
        match &self.0 {
            Some(sum) => serde_json::to_string(sum).unwrap_or_default(),
            None => "null".to_owned(),
        }
    }
}

fn add(sum: &mut Value, more: &Value, null_stays: bool) {
    *sum = match (sum.as_i64(), more.as_i64()) {
        (Some(sum), Some(more)) => sum.saturating_add(more).into(),
        (None, _) | (_, None) if null_stays => Value::Null,
        (None, Some(more)) => more.into(),
        (Some(sum), None) => sum.into(),
        (None, None) => Value::Null,
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_summed_and_what_is_unknown_once_stays_unknown() {
        let mut usage = Usage::default();
        assert_eq!(usage.text(), "null");
        let turn = |input: u64, cached: Value| {
            let turn = json!({
                "input_tokens": input,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 1},
                "total_tokens": input + 2,
                "cost": input,
            });
            turn.as_object().unwrap().clone()
        };
        usage.add(Some(&turn(10, json!(3))));
        usage.add(None);
        usage.add(Some(&turn(20, json!(4))));
        let sum = |cached: &str| {
            format!(
                r#"{{"input_tokens":30,"input_tokens_details":{{"cached_tokens":{cached}}},"output_tokens":4,"output_tokens_details":{{"reasoning_tokens":2}},"total_tokens":34,"cost":10}}"#
            )
        };
        assert_eq!(usage.text(), sum("7"));
        usage.add(Some(&turn(0, Value::Null)));
        usage.add(Some(&turn(0, json!(5))));
        let text: Value = serde_json::from_str(&usage.text()).unwrap();
        assert_eq!(text["input_tokens_details"]["cached_tokens"], Value::Null);
        assert_eq!(text["input_tokens"], 30);
    }
}
