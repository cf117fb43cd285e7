//! Checked names: [`SeedField`] of a request, [`Split`] of data sets, [`VariableName`] of the environment, [`ServerUrl`],
//! [`Cluster`], and a [`Secret`].
//!
//! Secrets for agents are only ever given by the name of the environment variable that holds them. Errors about a variable
//! or an address never repeat the text: it may be a secret in the wrong place.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

use super::fields::{read_as_text, written_as_printed};

read_as_text!(Split, VariableName, ServerUrl, Cluster);
written_as_printed!(Split, VariableName, ServerUrl, Cluster, Secret);

/// The split of NeMo Gym's data sets that is prepared as the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// `train`.
    Train,
    /// `validation`.
    Validation,
    /// `benchmark`.
    Benchmark,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Benchmark => "benchmark",
        })
    }
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Train, Self::Validation, Self::Benchmark];
        let found = all
            .into_iter()
            .find(|split| split.to_string() == text.trim());
        found.ok_or_else(|| {
            let remedy = "use train, validation or benchmark";
            if text.trim() == "example" {
                return format!(
                    "examples are not prepared as a split: leave --split out, and give their file with --input, or {remedy}"
                );
            }
            format!("unknown split '{text}'; {remedy}")
        })
    }
}

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

impl FromStr for SeedField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "responses_create_params.seed" => Ok(Self::ResponsesCreateParams),
            "metadata.extra_body" => Ok(Self::MetadataExtraBody),
            _ => Err(format!(
                "unknown seed field '{text}'; use 'metadata.extra_body' or 'responses_create_params.seed'"
            )),
        }
    }
}

/// The name of an environment variable: letters, digits and `_`, not starting with a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariableName(String);

/// The error for a text that is not a variable's name. It does not repeat the text, which may be the secret itself.
const NO_VARIABLE: &str = "not the name of an environment variable (letters, digits and _); never write the secret itself: \
     export it in a variable and give the variable's name";

impl FromStr for VariableName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if text.is_empty()
            || text.starts_with(|c: char| c.is_ascii_digit())
            || !text.chars().all(allowed)
        {
            return Err(NO_VARIABLE.to_owned());
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

/// A key that NeMo Gym's settings hold themselves. It is printed and written as [`Secret::MASK`], so that `run.json` and
/// `rollstream config` do not have it; who resumes a run gives it again.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Stands for every secret, as in NeMo Gym.
    pub const MASK: &'static str = "****";

    /// Returns the secret itself, for the request that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Reads a secret; one that was masked is not known.
    pub(super) fn read<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Self>, D::Error> {
        let text = Option::<String>::deserialize(reader)?;
        Ok(text.filter(|text| text != Self::MASK).map(Self))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        String::deserialize(reader).map(Self)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::MASK)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::MASK)
    }
}

/// The cluster that a sweep runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cluster {
    /// A scheduler and this many executors, started on this machine for the sweep: `local:4`.
    Local(usize),
    /// The scheduler at this address: `grpc://host:50050`.
    At {
        /// Name or address of its machine.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl Cluster {
    /// The port of a scheduler whose address names none.
    pub const PORT: u16 = 50_050;
}

impl FromStr for Cluster {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let broken = || {
            "expected the address of a scheduler, such as grpc://host:50050, or local:4 for four executors on this \
             machine"
                .to_owned()
        };
        if let Some(count) = text.trim().strip_prefix("local:") {
            let count = count.parse().ok().filter(|count| (1..=64).contains(count));
            return count.map(Self::Local).ok_or_else(broken);
        }
        let url = Url::parse(text.trim()).map_err(|_| broken())?;
        let is_plain =
            url.scheme() == "grpc" && url.username().is_empty() && url.password().is_none();
        match url.host_str() {
            Some(host) if is_plain && !host.is_empty() => Ok(Self::At {
                host: host.to_owned(),
                port: url.port().unwrap_or(Self::PORT),
            }),
            _ => Err(broken()),
        }
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(count) => write!(f, "local:{count}"),
            Self::At { host, port } => write!(f, "grpc://{host}:{port}"),
        }
    }
}

/// An `http` or `https` address without user name, password, query and fragment.
///
/// Its text never ends in `/`, so that a path can be appended: `format!("{url}/run")`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerUrl(String);

impl ServerUrl {
    /// Returns the address, without a `/` at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Parses an address. Errors never repeat it, since it may hold a password.
impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text.trim());
        let url =
            url.map_err(|error| format!("not an address ({error}); write http://host:port"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(CREDENTIALS.to_owned());
        }
        if !matches!(url.scheme(), "http" | "https") {
            // `localhost:8000` parses as the scheme `localhost`: nothing secret can be in a scheme.
            let scheme = url.scheme();
            return Err(format!(
                "the scheme `{scheme}` is not http or https; write http://host:port"
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(QUERY.to_owned());
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

const CREDENTIALS: &str = "an address must not hold a user name or password, since it ends up in logs and in run.json; \
     export the secret in an environment variable and name that with --bearer-token-env VAR or --header-env \
     'Authorization=VAR'";
const QUERY: &str = "an address must not have a `?query` or `#fragment`; write http://host:port";

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_an_address_or_a_number_of_local_executors() {
        for text in ["local:2", "grpc://host:7", "grpc://[::1]:50050"] {
            assert_eq!(text.parse::<Cluster>().unwrap().to_string(), text);
        }
        for text in [
            "http://h:1",
            "local:0",
            "local:x",
            "host:50050",
            "grpc://",
            "grpc://u:p@h",
        ] {
            let message = text.parse::<Cluster>().unwrap_err();
            assert!(
                message.contains("local:4") && !message.contains("u:p"),
                "{text}"
            );
        }
    }

    #[test]
    fn flag_and_file_use_the_same_names() {
        for field in [
            SeedField::ResponsesCreateParams,
            SeedField::MetadataExtraBody,
        ] {
            let name = serde_json::to_value(field).unwrap();
            assert_eq!(name.as_str().unwrap().parse(), Ok(field));
        }
        assert!(
            "seed"
                .parse::<SeedField>()
                .unwrap_err()
                .contains("metadata.extra_body")
        );
    }

    #[test]
    fn a_secret_in_place_of_a_name_is_refused_and_not_repeated() {
        assert_eq!(&*"MY_TOKEN2".parse::<VariableName>().unwrap(), "MY_TOKEN2");
        for text in ["sk-abc", "", "2A", "Bearer x", "A=B"] {
            assert_eq!(text.parse::<VariableName>(), Err(NO_VARIABLE.to_owned()));
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
        assert_eq!(error("http://user:hunter2@h:1"), CREDENTIALS);
        assert_eq!(error("ftp://u:p@h"), CREDENTIALS);
        for (text, fragment) in [
            ("ftp://h", "the scheme `ftp` is not http or https"),
            ("localhost:8000", "the scheme `localhost` is not"),
            ("http://h/?key=secret", QUERY),
            ("127.0.0.1:80", "not an address"),
            ("", "not an address"),
        ] {
            assert!(error(text).contains(fragment), "{text}");
        }
    }
}
