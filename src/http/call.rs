use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hyper::HeaderMap;

use super::problem::Problem;
use super::response::Response;
use super::retry_after::retry_after;
use crate::json::quote;
use crate::retry::{Failure, FailureClass};

/// Characters of a text of the other side that are quoted.
const QUOTED_BYTES: usize = 300;

/// Bytes of the body of an error that are read, and characters of it that are kept: as many as NeMo Gym keeps.
const KEPT_BYTES: usize = 8000;
const KEPT_CHARS: usize = 2000;

/// A reason may have so many bytes, the quote included.
const LONGEST_REASON: usize = 1000;

/// The rest of an error is waited for this long; what matters of it is known by then.
const QUOTE_TIMEOUT: Duration = Duration::from_secs(5);

/// A call under way, for the texts of its errors.
#[derive(Debug)]
pub struct Call<'a> {
    /// Method and address, without secrets.
    pub what: &'a str,
    /// When it began.
    pub began: Instant,
    /// What must not be quoted, should the agent repeat it.
    pub secrets: &'a Secrets,
}

/// What stands in place of a secret.
const HIDDEN: &str = "[secret]";

/// Texts that must not be shown.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Shorter texts are no secrets: they are found everywhere.
    const SHORTEST: usize = 6;

    /// The values of the headers that hold secrets, also without what stands before the token.
    pub fn of(headers: &HeaderMap) -> Self {
        let values = headers.values().filter(|value| value.is_sensitive());
        let texts = values.filter_map(|value| value.to_str().ok());
        let tokens = texts.flat_map(|text| [Some(text), text.rsplit(' ').next()]);
        let long = |token: &&str| token.len() >= Self::SHORTEST;
        let mut secrets: Vec<String> = tokens.flatten().filter(long).map(str::to_owned).collect();
        // One that holds another is hidden as a whole.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    /// Beginning of a text that the other side sent, on one line and without secrets.
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

    /// Replaces them in a text; `is_cut` if it is the beginning of one, which may end within a secret.
    fn hide(&self, text: &mut String, is_cut: bool) {
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                *text = text.replace(secret.as_str(), HIDDEN);
            }
        }
        let begun = |secret: &String| {
            let begins = |end: &usize| {
                secret
                    .get(..*end)
                    .is_some_and(|start| text.ends_with(start))
            };
            (1..secret.len()).rev().find(begins)
        };
        if is_cut && let Some(begun) = self.0.iter().filter_map(begun).max() {
            text.truncate(text.len() - begun);
            text.push_str(HIDDEN);
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{} secrets", self.0.len())
    }
}

impl Call<'_> {
    /// Beginning of a body, on one line and without secrets, for the end of an error text.
    pub fn quote(&self, body: &[u8]) -> String {
        match self.secrets.shown(body) {
            text if text.is_empty() => text,
            text => format!(": {text}"),
        }
    }

    /// Beginning of a body that is kept, as a JSON text without secrets.
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

    /// A failure of this call, with its address and the time that it took.
    /// Secrets that the other side repeated are hidden.
    pub fn failure(&self, class: FailureClass, why: &str) -> Failure {
        let most = why.floor_char_boundary(LONGEST_REASON);
        let mut start = why.get(..most).unwrap_or(why).to_owned();
        self.secrets.hide(&mut start, most < why.len());
        let why = start;
        Failure::new(
            class,
            // Always in seconds, so that texts of the same error differ in a number alone.
            format!(
                "{}: {why} after {:.3} s",
                self.what,
                self.began.elapsed().as_secs_f64()
            ),
        )
    }

    /// The failure that a problem stands for.
    pub fn problem(&self, problem: &Problem) -> Failure {
        Failure {
            unreachable: problem.is_connect(),
            ..self.failure(problem.class(), &problem.to_string())
        }
    }

    /// The failure that a status other than 200 stands for.
    pub async fn status_error(&self, response: Response) -> Failure {
        let status = response.status();
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let start = response.start(KEPT_BYTES, QUOTE_TIMEOUT).await;
        let quoted = self.quote(&start);
        let class = FailureClass::of_status(status.as_u16());
        let reason = status.canonical_reason().unwrap_or_default();
        Failure {
            retry_after: retry_after.filter(|_| matches!(status.as_u16(), 429 | 503)),
            answer: self.kept(&start),
            ..self.failure(
                class,
                format!("HTTP {} {reason}{quoted}", status.as_u16()).trim_end(),
            )
        }
    }
}
