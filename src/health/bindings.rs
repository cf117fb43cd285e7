//! Which calls of models turns and invocations refer to.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::shape::{Fields, text};

/// A call of a model, as the rules see it.
pub(super) struct Call<'a> {
    pub fields: &'a Fields,
    pub metadata: Option<&'a Fields>,
    tokens: Option<&'a Fields>,
    pub id: Option<&'a str>,
    pub response_id: Option<&'a str>,
    pub model: Option<Model<'a>>,
}

/// Type and name of a model server.
pub(super) type Model<'a> = (&'a str, &'a str);

/// What a turn or an invocation says of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Reference<'a> {
    call_id: Option<&'a str>,
    model: Option<Model<'a>>,
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
            id: text(fields, "model_call_id"),
            response_id: metadata.and_then(|metadata| text(metadata, "response_id")),
            model: metadata.and_then(model),
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

    /// By what a call is known that was captured twice.
    pub(super) fn identity(&self) -> Option<Reference<'a>> {
        let by_id = Reference {
            call_id: self.id,
            model: None,
            response_id: None,
        };
        let by_response = Reference {
            call_id: None,
            model: self.model,
            response_id: self.response_id,
        };
        let by_response = self.response_id.map(|_| by_response);
        self.id.map(|_| by_id).or(by_response)
    }

    fn answers(&self, reference: &Reference<'_>) -> bool {
        match reference.call_id {
            Some(id) => {
                self.id == Some(id)
                    && (reference.model.is_none() || reference.model == self.model)
                    && (reference.response_id.is_none()
                        || reference.response_id == self.response_id)
            }
            None => self.model == reference.model && self.response_id == reference.response_id,
        }
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

    /// The last part of its name, by which people know the call.
    pub(super) fn locator(&self) -> &'a str {
        let name = self.call_id.or(self.response_id).unwrap_or_default();
        name.rsplit(':').next().unwrap_or(name)
    }
}

/// References, each once, and how many calls each of them is.
pub(super) struct Bindings<'a> {
    pub references: Vec<(Reference<'a>, usize)>,
    /// Positions of the calls that exactly one reference names, in order.
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

/// The calls of a record by what they may be referred to with.
pub(super) struct CallIndex<'a> {
    calls: &'a [Call<'a>],
    by_id: HashMap<&'a str, Vec<usize>>,
    by_response: HashMap<&'a str, Vec<usize>>,
}

impl<'a> CallIndex<'a> {
    pub(super) fn new(calls: &'a [Call<'a>]) -> Self {
        let mut index = Self {
            calls,
            by_id: HashMap::new(),
            by_response: HashMap::new(),
        };
        for (position, call) in calls.iter().enumerate() {
            if let Some(id) = call.id {
                index.by_id.entry(id).or_default().push(position);
            }
            if let Some(id) = call.response_id {
                index.by_response.entry(id).or_default().push(position);
            }
        }
        index
    }

    fn of(&self, reference: &Reference<'_>) -> Vec<usize> {
        let found = match (reference.call_id, reference.response_id) {
            (Some(id), _) => self.by_id.get(id),
            (None, Some(id)) => self.by_response.get(id),
            (None, None) => None,
        };
        let is_it = |position: &usize| {
            let call = self.calls.get(*position);
            call.is_some_and(|call| call.answers(reference))
        };
        found.into_iter().flatten().copied().filter(is_it).collect()
    }
}
