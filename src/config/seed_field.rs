//! [`SeedField`]: where in a request the rollout's seed goes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The field of a request that carries the rollout index as a sampling seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum SeedField {
    /// `responses_create_params.seed`, a number.
    #[serde(rename = "responses_create_params.seed")]
    ResponsesCreateParams,
    /// The key `seed` within the JSON text in `responses_create_params.metadata.extra_body`; servers that take
    /// only the fields of OpenAI's API pass this one on to the engine.
    #[default]
    #[serde(rename = "metadata.extra_body")]
    MetadataExtraBody,
}

/// The text names no field that can carry a seed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown seed field '{0}'; use 'metadata.extra_body' or 'responses_create_params.seed'")]
pub struct UnknownSeedField(pub String);

impl SeedField {
    /// The name that flags and configuration files use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ResponsesCreateParams => "responses_create_params.seed",
            Self::MetadataExtraBody => "metadata.extra_body",
        }
    }
}

impl fmt::Display for SeedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SeedField {
    type Err = UnknownSeedField;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::ResponsesCreateParams, Self::MetadataExtraBody]
            .into_iter()
            .find(|field| field.as_str() == text.trim())
            .ok_or_else(|| UnknownSeedField(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_and_file_use_the_same_names() {
        for field in [
            SeedField::ResponsesCreateParams,
            SeedField::MetadataExtraBody,
        ] {
            assert_eq!(field.to_string().parse(), Ok(field));
            assert_eq!(
                serde_json::to_string(&field).unwrap(),
                format!("\"{field}\"")
            );
        }
        assert!(
            "seed"
                .parse::<SeedField>()
                .unwrap_err()
                .to_string()
                .contains("metadata.extra_body")
        );
    }
}
