use std::fmt;

use serde_json::{Value, json};

/// A line of a task file.
#[derive(Debug, Clone)]
pub struct Task(Value);

/// A task that asks `question`.
pub fn task(question: &str) -> Task {
    let input = json!([{"role": "user", "content": question}]);
    Task(json!({"responses_create_params": {"input": input}}))
}

/// `count` tasks, no two of them alike.
pub fn sums(count: u64) -> Vec<Task> {
    let sum = |n: u64| task(&format!("What is {n} + {}?", n + 1)).answered_by(2 * n + 1);
    (1..=count).map(sum).collect()
}

impl Task {
    pub fn answered_by(self, answer: u64) -> Self {
        self.with("expected_answer", answer)
    }

    pub fn for_agent(self, name: &str) -> Self {
        self.with("agent_ref", json!({"name": name}))
    }

    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
        self
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}
