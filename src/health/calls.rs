//! Model calls in a trajectory: which calls turns and invocations refer to ([`Bindings`]), and whether answers and
//! responses have content.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::shape::{Fields, Unreadable, text};
use crate::python::{is_space, is_truthy_value};

/// A call of a model.
pub(super) struct Call<'a> {
    pub fields: &'a Fields,
    pub metadata: Option<&'a Fields>,
    tokens: Option<&'a Fields>,
    /// The names by which the call is referred to.
    pub name: Reference<'a>,
}

/// Type and name of a model server.
pub(super) type Model<'a> = (&'a str, &'a str);

/// A reference of a turn or an invocation to a call, or the names of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Reference<'a> {
    call_id: Option<&'a str>,
    pub model: Option<Model<'a>>,
    response_id: Option<&'a str>,
}

impl<'a> Call<'a> {
    pub(super) fn new(fields: &'a Fields) -> Self {
        let object = |name: &str| fields.get(name).and_then(Value::as_object);
        let metadata = object("response_metadata");
        Self {
            fields,
            metadata,
            tokens: object("token_stats"),
            name: Reference {
                call_id: text(fields, "model_call_id"),
                ..metadata.map(Reference::new).unwrap_or_default()
            },
        }
    }

    pub(super) fn said(&self, name: &str) -> Option<&'a str> {
        text(self.metadata?, name)
    }

    pub(super) fn status(&self) -> Option<i64> {
        self.metadata?.get("status_code")?.as_i64()
    }

    pub(super) fn count(&self, name: &str) -> Option<i64> {
        self.tokens?.get(name)?.as_i64()
    }

    pub(super) fn is_failed(&self) -> bool {
        self.status().is_some_and(|status| status >= 400)
            || self.said("error_category").is_some()
            || matches!(
                self.said("response_status"),
                Some("failed" | "error" | "cancelled")
            )
    }

    pub(super) fn is_successful(&self) -> bool {
        let is_good = self
            .status()
            .is_none_or(|status| (200..400).contains(&status));
        !self.is_failed() && is_good
    }

    /// Returns the identity by which a repeated capture of a call is recognized.
    pub(super) fn identity(&self) -> Option<Reference<'a>> {
        let Reference { call_id, .. } = self.name;
        let by_id = call_id.map(|_| Reference {
            call_id,
            ..Reference::default()
        });
        by_id.or(self.name.response_id.map(|_| self.name))
    }
}

fn model(fields: &Fields) -> Option<Model<'_>> {
    let model = fields.get("model_ref")?.as_object()?;
    Some((model.get("type")?.as_str()?, model.get("name")?.as_str()?))
}

impl<'a> Reference<'a> {
    pub(super) fn new(fields: &'a Fields) -> Self {
        Self {
            call_id: text(fields, "model_call_id"),
            model: model(fields),
            response_id: text(fields, "response_id"),
        }
    }

    pub(super) fn id(&self) -> Option<&'a str> {
        self.call_id.or(self.response_id)
    }

    /// Whether it refers to the call with these names. With a call id, the other names may be missing.
    fn is_to(&self, call: &Reference<'_>) -> bool {
        let has_id = self.call_id.is_some();
        (!has_id || self.call_id == call.call_id)
            && (has_id && self.model.is_none() || self.model == call.model)
            && (has_id && self.response_id.is_none() || self.response_id == call.response_id)
    }

    /// Returns the last part of the call's name, as people know it.
    pub(super) fn locator(&self) -> &'a str {
        let name = self.id().unwrap_or_default();
        name.rsplit(':').next().unwrap_or(name)
    }
}

/// References without repetition, each with the number of calls that match it.
pub(super) struct Bindings<'a> {
    pub references: Vec<(Reference<'a>, usize)>,
    /// Positions of the calls that are the only match of a reference, in order.
    pub calls: Vec<usize>,
}

impl<'a> Bindings<'a> {
    pub(super) fn new(
        references: impl Iterator<Item = Reference<'a>>,
        calls: &CallIndex<'_>,
    ) -> Self {
        let mut seen = HashSet::new();
        let mut bindings = Self {
            references: Vec::new(),
            calls: Vec::new(),
        };
        for reference in references.filter(|reference| seen.insert(*reference)) {
            let matches = calls.of(&reference);
            if let [call] = matches.as_slice() {
                bindings.calls.push(*call);
            }
            bindings.references.push((reference, matches.len()));
        }
        bindings.calls.sort_unstable();
        bindings.calls.dedup();
        bindings
    }

    pub(super) fn is_complete(&self) -> bool {
        !self.references.is_empty() && self.references.iter().all(|(_, matches)| *matches == 1)
    }
}

/// The calls of a record, by the ids that references may use.
pub(super) struct CallIndex<'a> {
    calls: &'a [Call<'a>],
    by_id: HashMap<&'a str, Vec<usize>>,
}

impl<'a> CallIndex<'a> {
    pub(super) fn new(calls: &'a [Call<'a>]) -> Self {
        let mut by_id: HashMap<&str, Vec<usize>> = HashMap::new();
        for (position, Call { name, .. }) in calls.iter().enumerate() {
            let response_id = name.response_id.filter(|id| name.call_id != Some(id));
            for id in name.call_id.into_iter().chain(response_id) {
                by_id.entry(id).or_default().push(position);
            }
        }
        Self { calls, by_id }
    }

    fn of(&self, reference: &Reference<'_>) -> Vec<usize> {
        let found = reference.id().and_then(|id| self.by_id.get(id));
        let is_it = |at: &usize| {
            let call = self.calls.get(*at);
            call.is_some_and(|call| reference.is_to(&call.name))
        };
        found.into_iter().flatten().copied().filter(is_it).collect()
    }
}

/// Fields that may hold a text.
const TEXTS: [&str; 9] = [
    "text",
    "content",
    "output_text",
    "answer",
    "refusal",
    "encrypted_content",
    "reasoning",
    "reasoning_content",
    "summary",
];

/// Types of items that are tool calls.
const TOOL_CALLS: [&str; 13] = [
    "function_call",
    "tool_call",
    "tool_use",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "file_search_call",
    "web_search_call",
    "computer_call",
    "image_generation_call",
    "code_interpreter_call",
    "local_shell_call",
    "custom_tool_call",
];

/// Whether a value contains a text that is more than white space.
pub(super) fn has_text(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.chars().all(is_space),
        Value::Array(items) => items.iter().any(has_text),
        Value::Object(fields) => has_text_in(fields, &TEXTS),
        _ => false,
    }
}

fn has_text_in(fields: &Fields, names: &[&str]) -> bool {
    names
        .iter()
        .filter_map(|name| fields.get(*name))
        .any(has_text)
}

/// Whether a value contains a tool call.
pub(super) fn has_tool_call(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_tool_call),
        Value::Object(item) => {
            let kind = item.get("type").and_then(Value::as_str);
            kind.is_some_and(|kind| TOOL_CALLS.contains(&kind))
                || item.get("tool_calls").is_some_and(is_truthy_value)
        }
        _ => false,
    }
}

/// Whether a model's response has content.
///
/// # Errors
/// NeMo Gym raises an exception: the error is its name.
pub(super) fn has_content(response: &Value) -> Result<bool, Unreadable> {
    let Value::Object(response) = response else {
        return Ok(false);
    };
    if has_text_in(response, &["output_text", "content"]) {
        return Ok(true);
    }
    let choices = match response.get("choices") {
        Some(Value::Array(choices)) => choices.as_slice(),
        Some(other @ (Value::Number(_) | Value::Bool(_))) if is_truthy_value(other) => {
            return Err("TypeError");
        }
        _ => &[],
    };
    for choice in choices.iter().filter_map(Value::as_object) {
        if has_text_in(choice, &["text"]) {
            return Ok(true);
        }
        match choice.get("message") {
            Some(Value::Object(message)) if has_text_in(message, &["content"]) => return Ok(true),
            Some(other) if !other.is_object() && is_truthy_value(other) => {
                return Err("AttributeError");
            }
            _ => {}
        }
    }
    Ok(has_text_in(response, &["output"]))
}
