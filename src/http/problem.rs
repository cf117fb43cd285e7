use std::error::Error;
use std::fmt;

use super::head;
use crate::retry::FailureClass;

/// What goes wrong on the way to an answer.
#[derive(Debug)]
pub enum Problem {
    /// No connection came about.
    Connect(String),
    /// The connection broke, or what came over it is no HTTP.
    Broken(hyper::Error),
    /// Nothing was received for too long.
    Silent,
    /// The answer did not begin in time.
    NoHead,
    /// The body came whole, and can't be unpacked.
    Encoding(std::io::Error),
    /// The body is larger than so many bytes.
    TooLarge(u64),
    /// What the client says that speaks TLS and to proxies.
    Client(reqwest::Error),
}

impl Problem {
    /// That of a connector.
    pub(super) fn connect(error: &(dyn Error + 'static)) -> Self {
        Self::Connect(causes(Some(error)))
    }

    /// Nothing was sent.
    pub fn is_connect(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Client(error) => error.is_connect(),
            _ => false,
        }
    }

    /// The connection ended, without a word of what went wrong: a server that had closed it before the
    /// request came is one reason.
    pub(super) fn is_end_of_connection(&self) -> bool {
        match self {
            Self::Client(error) if error.is_request() && !error.is_connect() => {
                hyper_error(error).is_some_and(|error| !error.is_parse() && !error.is_user())
                    && !error.is_timeout()
            }
            _ => false,
        }
    }

    /// Who is to blame.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Silent | Self::NoHead => FailureClass::Timeout,
            Self::Encoding(_) | Self::TooLarge(_) => FailureClass::Data,
            Self::Broken(error) if error.is_parse_too_large() => FailureClass::Data,
            Self::Client(error) if has_too_large_a_head(error) => FailureClass::Data,
            Self::Connect(_) | Self::Broken(_) => FailureClass::Infra,
            Self::Client(error) if error.is_connect() => FailureClass::Infra,
            Self::Client(error) if error.is_timeout() => FailureClass::Timeout,
            // The body came whole, and can't be unpacked.
            Self::Client(error) if error.is_decode() && !is_io(error) => FailureClass::Data,
            Self::Client(_) => FailureClass::Infra,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(why) => write!(formatter, "no connection: {why}"),
            Self::Broken(error) if error.is_parse_too_large() => {
                formatter.write_str(&head::too_large())
            }
            Self::Client(error) if has_too_large_a_head(error) => {
                formatter.write_str(&head::too_large_for_client())
            }
            Self::Broken(error) => formatter.write_str(&causes(Some(error))),
            Self::Silent => formatter.write_str("nothing was received within --read-timeout"),
            Self::NoHead => formatter.write_str("no answer began within --first-byte-timeout"),
            Self::Encoding(error) => write!(formatter, "the body can't be unpacked: {error}"),
            Self::TooLarge(most) => {
                write!(
                    formatter,
                    "the answer is larger than {most} bytes (--max-body)"
                )
            }
            Self::Client(error) => formatter.write_str(&describe(error)),
        }
    }
}

impl Error for Problem {}

impl From<reqwest::Error> for Problem {
    fn from(error: reqwest::Error) -> Self {
        Self::Client(error)
    }
}

/// What the innermost causes of an error say; the outer ones only repeat the address.
pub fn describe(error: &reqwest::Error) -> String {
    match causes(error.source()) {
        text if text.is_empty() => without_url(error),
        text => text,
    }
}

fn causes(mut cause: Option<&(dyn Error + 'static)>) -> String {
    let mut parts: Vec<String> = Vec::new();
    while let Some(error) = cause {
        let text = error.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        cause = error.source();
    }
    parts.join(": ")
}

fn without_url(error: &reqwest::Error) -> String {
    let text = error.to_string();
    match text.find(" for url (") {
        Some(at) => text.get(..at).unwrap_or_default().to_owned(),
        None => text,
    }
}

/// The error is one of the connection, and not of what came over it.
fn is_io(error: &reqwest::Error) -> bool {
    hyper_error(error).is_some()
}

fn has_too_large_a_head(error: &reqwest::Error) -> bool {
    hyper_error(error).is_some_and(hyper::Error::is_parse_too_large)
}

fn hyper_error(error: &reqwest::Error) -> Option<&hyper::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        cause = error.source();
    }
    None
}
