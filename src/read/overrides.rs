//! [`Overrides`]: fields that are set in every task's `responses_create_params`.

use serde_json::{Map, Value};

use crate::config::{InterpolationError, resolve};
use crate::json::{Object, quote};

/// Fields with their values as JSON text, in the order given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    fields: Vec<(String, String)>,
}

impl Overrides {
    /// Takes the fields and resolves the references in them: `${key}` and `${a.b}` stand for another of the
    /// fields, `\${` for the characters themselves.
    ///
    /// # Errors
    /// If a reference is malformed, leads nowhere, or leads back to itself.
    pub fn new(fields: &Map<String, Value>) -> Result<Self, InterpolationError> {
        let resolved = resolve(fields)?;
        let fields = resolved
            .into_iter()
            .map(|(name, value)| (name, value.to_string()))
            .collect();
        Ok(Self { fields })
    }

    /// Whether there is nothing to set.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Sets the fields: whole values, in place or at the end.
    pub(super) fn apply<'a>(&'a self, params: &mut Object<'a>) {
        for (name, value) in &self.fields {
            params.set(name.as_str(), value.as_str());
        }
    }
}

/// The JSON text of the fields.
impl std::fmt::Display for Overrides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields: Vec<String> = self
            .fields
            .iter()
            .map(|(name, value)| format!("{}:{value}", quote(name)))
            .collect();
        write!(f, "{{{}}}", fields.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_whole_and_in_place() {
        let fields = r#"{"reasoning":{"effort":"high"},"top_p":null,"new":"${reasoning.effort}"}"#;
        let overrides = Overrides::new(&serde_json::from_str(fields).unwrap()).unwrap();
        let mut params =
            Object::parse(r#"{"reasoning":{"effort":"low","summary":1},"input":[]}"#).unwrap();
        overrides.apply(&mut params);
        assert_eq!(
            params.to_string(),
            r#"{"reasoning":{"effort":"high"},"input":[],"top_p":null,"new":"high"}"#
        );
        assert_eq!(
            overrides.to_string(),
            r#"{"reasoning":{"effort":"high"},"top_p":null,"new":"high"}"#
        );
    }
}
