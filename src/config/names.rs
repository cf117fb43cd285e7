//! Names of what stands elsewhere: [`SeedField`] of a request, [`VariableName`] of the environment, [`ServerUrl`].
//!
//! Secrets are only ever given by the name of the environment variable that holds them. Errors about a variable or an
//! address never repeat the text: it may be a secret in the wrong place.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

use super::fields::{read_as_text, written_as_printed};

read_as_text!(VariableName, ServerUrl);
written_as_printed!(VariableName, ServerUrl);

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

/// The name of an environment variable: letters, digits and `_`, not starting with a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariableName(String);

/// The text is no name of an environment variable. It is not repeated, since it may be the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the name of an environment variable (letters, digits and _); never write the secret itself: \
     export it in a variable and give the variable's name"
)]
pub struct VariableNameError;

impl FromStr for VariableName {
    type Err = VariableNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if text.is_empty()
            || text.starts_with(|c: char| c.is_ascii_digit())
            || !text.chars().all(allowed)
        {
            return Err(VariableNameError);
        }
        Ok(Self(text.to_owned()))
    }
}

impl Deref for VariableName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VariableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An `http` or `https` address without user name, password, query and fragment.
///
/// Its text never ends in `/`, so that a path can be appended: `format!("{url}/run")`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerUrl(String);

/// Why an address was refused. The texts never repeat the address, since it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// It is no address at all.
    #[error("not an address ({0}); write http://host:port")]
    Syntax(String),
    /// It is an address of another kind.
    #[error("the scheme `{0}` is not http or https; write http://host:port")]
    Scheme(String),
    /// It carries a secret.
    #[error(
        "an address must not hold a user name or password, since it ends up in logs and in run.json; export the \
         secret in an environment variable and name that with --bearer-token-env VAR or --header-env 'Authorization=VAR'"
    )]
    Credentials,
    /// It has a query or fragment.
    #[error("an address must not have a `?query` or `#fragment`; write http://host:port")]
    Query,
}

impl ServerUrl {
    /// The address, without a `/` at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url =
            Url::parse(text.trim()).map_err(|error| ServerUrlError::Syntax(error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(ServerUrlError::Credentials);
        }
        if !matches!(url.scheme(), "http" | "https") {
            // `localhost:8000` parses as the scheme `localhost`: nothing secret can be in a scheme.
            return Err(ServerUrlError::Scheme(url.scheme().to_owned()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(ServerUrlError::Query);
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

    #[test]
    fn a_secret_in_place_of_a_name_is_refused_and_not_repeated() {
        assert_eq!(&*"MY_TOKEN2".parse::<VariableName>().unwrap(), "MY_TOKEN2");
        for text in ["sk-abc", "", "2A", "Bearer x", "A=B"] {
            assert_eq!(text.parse::<VariableName>(), Err(VariableNameError));
        }
        let message = serde_json::from_str::<VariableName>("\"sk-abc\"")
            .unwrap_err()
            .to_string();
        assert!(!message.contains("sk-abc"), "{message}");
    }

    #[test]
    fn an_address_loses_the_slash_at_its_end() {
        for text in ["http://h:1", "http://h:1/", " http://h:1/ "] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().as_str(), "http://h:1");
        }
        let url: ServerUrl = "https://h/base/".parse().unwrap();
        assert_eq!(url.to_string(), "https://h/base");
    }

    #[test]
    fn other_schemes_secrets_and_queries_are_refused() {
        let error = |text: &str| text.parse::<ServerUrl>().unwrap_err();
        assert_eq!(
            error("http://user:hunter2@h:1"),
            ServerUrlError::Credentials
        );
        assert_eq!(error("ftp://u:p@h"), ServerUrlError::Credentials);
        assert_eq!(error("ftp://h"), ServerUrlError::Scheme("ftp".into()));
        assert_eq!(
            error("localhost:8000"),
            ServerUrlError::Scheme("localhost".into())
        );
        assert_eq!(error("http://h/?key=secret"), ServerUrlError::Query);
        assert!(matches!(error("127.0.0.1:80"), ServerUrlError::Syntax(_)));
        assert!(matches!(error(""), ServerUrlError::Syntax(_)));
    }
}
