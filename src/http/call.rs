//! One call: [`Call`] and [`Secrets`] for the texts of its errors, [`Problem`] for what goes wrong on the way to an answer,
//! and the targets of redirects.

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hyper::header::LOCATION;
use hyper::{HeaderMap, StatusCode};
use url::Url;

use super::link;
use super::response::Response;
use super::retry_after::retry_after;
use crate::config::Secret;
use crate::json::quote;
use crate::retry::{Failure, FailureClass};

/// The most characters of a text from the other side that are quoted.
const QUOTED_BYTES: usize = 300;

/// The most bytes of an error's body that are read, and the most characters that are kept, as in NeMo Gym.
const KEPT_BYTES: usize = 8000;
const KEPT_CHARS: usize = 2000;

/// The most bytes of a reason, including the quote.
const LONGEST_REASON: usize = 1000;

/// The longest wait for the rest of an error; its important part is known by then.
const QUOTE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most redirects that one request follows.
const MOST_REDIRECTS: usize = 5;

/// A call under way, for the texts of its errors.
#[derive(Debug)]
pub struct Call<'a> {
    /// Method and address, without secrets.
    pub what: &'a str,
    /// The instant at which the call began.
    pub began: Instant,
    /// The texts that must not be quoted, even if the agent repeats them.
    pub secrets: &'a Secrets,
}

/// Texts that must not be shown.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// The length of the shortest secret in a header: shorter words occur everywhere.
    const SHORTEST: usize = 6;

    /// Returns the texts, each of which is hidden wherever it stands.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let texts = texts.into_iter().filter(|text| !text.is_empty());
        let mut secrets: Vec<String> = texts.map(str::to_owned).collect();
        // A secret that contains another one is hidden as a whole.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    /// Returns the values of the headers that hold secrets, also without the word before the token.
    pub fn of(headers: &HeaderMap) -> Self {
        let values = headers.values().filter(|value| value.is_sensitive());
        let texts = values.filter_map(|value| value.to_str().ok());
        let tokens = texts.flat_map(|text| [Some(text), text.rsplit(' ').next()]);
        let long = |token: &&str| token.len() >= Self::SHORTEST;
        Self::new(tokens.flatten().filter(long))
    }

    /// Returns the beginning of a text that the other side sent, on one line and without secrets.
    pub fn shown(&self, text: &[u8]) -> String {
        let start = text.get(..16 * QUOTED_BYTES).unwrap_or(text);
        let is_cut = start.len() < text.len();
        let mut start = String::from_utf8_lossy(start).into_owned();
        self.hide(&mut start, is_cut);
        let line = start.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(QUOTED_BYTES) {
            Some((end, _)) => line.get(..end).unwrap_or_default().to_owned(),
            None => line,
        }
    }

    /// Replaces the secrets in a text; `is_cut` if the text was cut, and so may end within a secret.
    pub fn hide(&self, text: &mut String, is_cut: bool) {
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                *text = text.replace(secret.as_str(), Secret::MASK);
            }
        }
        let begun = |secret: &String| {
            let start = |end: usize| secret.get(..end);
            let begins = |end: &usize| start(*end).is_some_and(|start| text.ends_with(start));
            (1..secret.len()).rev().find(begins)
        };
        if is_cut && let Some(begun) = self.0.iter().filter_map(begun).max() {
            text.truncate(text.len() - begun);
            text.push_str(Secret::MASK);
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{} secrets", self.0.len())
    }
}

impl Call<'_> {
    /// Returns the beginning of a body, on one line and without secrets, for the end of an error text.
    pub fn quote(&self, body: &[u8]) -> String {
        match self.secrets.shown(body) {
            text if text.is_empty() => text,
            text => format!(": {text}"),
        }
    }

    /// Returns the beginning of a body that is kept, as a JSON text without secrets.
    fn kept(&self, body: &[u8]) -> Option<Bytes> {
        let start = body.get(..KEPT_BYTES).unwrap_or(body);
        let mut text = String::from_utf8_lossy(start).into_owned();
        self.secrets.hide(&mut text, start.len() < body.len());
        if let Some((end, _)) = text.char_indices().nth(KEPT_CHARS) {
            text.truncate(end);
        }
        if body.len() > KEPT_CHARS {
            text.push('…');
        }
        (!body.is_empty()).then(|| Bytes::from(quote(&text)))
    }

    /// Makes a failure of this call, with its address and the time that it took. Secrets that the other side repeated are
    /// hidden.
    pub fn failure(&self, class: FailureClass, why: &str) -> Failure {
        let most = why.floor_char_boundary(LONGEST_REASON);
        let mut start = why.get(..most).unwrap_or(why).to_owned();
        self.secrets.hide(&mut start, most < why.len());
        // Always in seconds, so that texts of the same error differ in a number alone.
        let seconds = self.began.elapsed().as_secs_f64();
        Failure::new(
            class,
            format!("{}: {start} after {seconds:.3} s", self.what),
        )
    }

    /// Makes the failure that a problem stands for.
    pub fn problem(&self, problem: &Problem) -> Failure {
        Failure {
            unreachable: problem.is_connect(),
            ..self.failure(problem.class(), &problem.to_string())
        }
    }

    /// Makes the failure that a status other than 200 stands for.
    pub async fn status_error(&self, response: Response) -> Failure {
        let status = response.status();
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let start = response.start(KEPT_BYTES, QUOTE_TIMEOUT).await;
        let quoted = self.quote(&start);
        let class = FailureClass::of_status(status.as_u16());
        let reason = status.canonical_reason().unwrap_or_default();
        let why = format!("HTTP {} {reason}{quoted}", status.as_u16());
        Failure {
            retry_after: retry_after.filter(|_| matches!(status.as_u16(), 429 | 503)),
            answer: self.kept(&start),
            ..self.failure(class, why.trim_end())
        }
    }
}

/// A failure on the way to an answer.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// No connection was made.
    #[error("no connection: {0}")]
    Connect(String),
    /// The connection broke, or the answer is not HTTP.
    #[error("{}", broken(.0))]
    Broken(#[source] hyper::Error),
    /// Nothing was received for too long.
    #[error(
        "nothing was received within --read-timeout, which must be longer if answers may take that long"
    )]
    Silent,
    /// The answer did not begin in time.
    #[error("no answer began within --first-byte-timeout")]
    NoHead,
    /// The body is complete, and can't be decompressed.
    #[error("the body can't be unpacked: {0}")]
    Encoding(#[source] std::io::Error),
    /// The body is larger than this many bytes.
    #[error("the answer is larger than {0} bytes (--max-body)")]
    TooLarge(u64),
    /// The client for TLS and proxies failed.
    #[error("{}", failed(.0))]
    Client(#[from] reqwest::Error),
}

fn broken(error: &hyper::Error) -> String {
    if error.is_parse_too_large() {
        larger_than(link::MOST_HEADERS, link::MOST_BYTES)
    } else {
        causes(Some(error))
    }
}

fn failed(error: &reqwest::Error) -> String {
    if has_too_large_a_head(error) {
        // The bounds of hyper.
        larger_than(100, 400 * 1024)
    } else {
        describe(error)
    }
}

fn larger_than(headers: usize, bytes: usize) -> String {
    let kib = bytes / 1024;
    format!(
        "the head of the answer has more than {headers} headers or {kib} KiB, which is the limit"
    )
}

impl Problem {
    /// Creates the problem for a connector's error.
    pub(super) fn connect(error: &(dyn Error + 'static)) -> Self {
        Self::Connect(causes(Some(error)))
    }

    /// Returns whether nothing was sent.
    pub fn is_connect(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Client(error) => error.is_connect(),
            _ => false,
        }
    }

    /// Returns whether the connection ended without an error message, for example if the server closed it before the
    /// request came.
    pub(super) fn is_end_of_connection(&self) -> bool {
        match self {
            Self::Client(error) if error.is_request() && !error.is_connect() => {
                hyper_error(error).is_some_and(|error| !error.is_parse() && !error.is_user())
                    && !error.is_timeout()
            }
            _ => false,
        }
    }

    /// Returns the failure class, which says who is to blame.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Silent | Self::NoHead => FailureClass::Timeout,
            Self::Encoding(_) | Self::TooLarge(_) => FailureClass::Data,
            Self::Broken(error) if error.is_parse_too_large() => FailureClass::Data,
            Self::Client(error) if has_too_large_a_head(error) => FailureClass::Data,
            Self::Connect(_) | Self::Broken(_) => FailureClass::Infra,
            Self::Client(error) if error.is_connect() => FailureClass::Infra,
            Self::Client(error) if error.is_timeout() => FailureClass::Timeout,
            // The body is complete, but can't be decompressed: the connection did not fail.
            Self::Client(error) if error.is_decode() && hyper_error(error).is_none() => {
                FailureClass::Data
            }
            Self::Client(_) => FailureClass::Infra,
        }
    }
}

/// Describes an error by its innermost causes; the outer ones only repeat the address.
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

/// Finds where a request to `from` must be sent again, after `followed` redirects. Only 307 and 308 say that it is the same
/// request, and only the same server gets it: its headers hold secrets.
///
/// # Errors
/// The request is not sent again. The text says why, and what to do.
pub(super) fn redirect_target(
    status: StatusCode,
    headers: &HeaderMap,
    from: &Url,
    followed: usize,
) -> Result<Url, String> {
    let said = format!(
        "HTTP {} {}",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default()
    );
    let said = said.trim_end();
    let target = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let Some(to) = target.and_then(|target| from.join(target).ok()) else {
        return Err(format!(
            "{said}, which names no other address: check that this one takes POST requests"
        ));
    };
    let shown = without_secrets(&to);
    let remedy = "is the address right? If requests are to go there, set it in its place";
    if !matches!(status.as_u16(), 307 | 308) {
        return Err(format!(
            "{said} to {shown}: only 307 and 308 ask for the same request again; {remedy}"
        ));
    }
    if to.origin() != from.origin() {
        return Err(format!(
            "{said} to {shown}, which is another server and gets no request unasked; {remedy}"
        ));
    }
    if followed >= MOST_REDIRECTS {
        return Err(format!(
            "{said} to {shown}, after {MOST_REDIRECTS} redirects; {remedy}"
        ));
    }
    Ok(to)
}

/// Returns scheme, host, port and path: all else may hold secrets.
fn without_secrets(url: &Url) -> String {
    let origin = url.origin();
    if origin.is_tuple() {
        format!("{}{}", origin.ascii_serialization(), url.path())
    } else {
        format!("a {}: address", url.scheme())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(status: u16, target: Option<&str>) -> Result<String, String> {
        let from = Url::parse("http://a:1/run").unwrap();
        let mut headers = HeaderMap::new();
        if let Some(target) = target {
            headers.insert(LOCATION, target.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        redirect_target(status, &headers, &from, 0).map(String::from)
    }

    #[test]
    fn only_the_same_request_to_the_same_server_is_sent_again() {
        for target in ["/run/", "http://a:1/run/", "//a:1/run/"] {
            for status in [307, 308] {
                assert_eq!(follow(status, Some(target)).unwrap(), "http://a:1/run/");
            }
        }
        for (status, target, why) in [
            (302, "/login?token=secret", "to http://a:1/login: only"),
            (301, "/run/", "only 307 and 308"),
            (307, "https://a:1/run", "another server"),
            (
                308,
                "http://me:secret@b:1/x#secret",
                "to http://b:1/x, which",
            ),
            (307, "data:secret", "to a data: address"),
            (307, "http://[", "names no other address"),
        ] {
            let said = follow(status, Some(target)).unwrap_err();
            assert!(said.contains(why) && !said.contains("secret"), "{said}");
        }
        let said = follow(304, None).unwrap_err();
        assert!(said.starts_with("HTTP 304 Not Modified, which"), "{said}");
    }
}
