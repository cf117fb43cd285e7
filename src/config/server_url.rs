//! [`ServerUrl`]: the address of a head server or an agent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

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

impl Serialize for ServerUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ServerUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
