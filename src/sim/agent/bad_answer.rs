//! Bad answers: refusals that say when to retry ([`Refusal`]), faults that take the place of an answer ([`fail`]), and
//! faults that change it ([`spoil`]).

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream::{self, StreamExt};
use http_body_util::StreamBody;
use hyper::StatusCode;
use hyper::body::Frame;
use hyper::header::{CONTENT_ENCODING, HeaderValue};
use serde_json::{Map, Value, json};

use super::super::draws::digest;
use super::super::fault::FaultKind;
use super::super::server::http::{Abrupt, Reply, detail, html, json as reply_json, streamed};
use super::answer::append_filler;

/// Size of a huge answer, in bytes.
pub(super) const HUGE_BYTES: usize = 40_000_000;

/// How deep the arrays of a deep answer are nested.
const DEPTH: usize = 100_000;

const NOT_JSON: &str = "<!doctype html><html><head><title>Bad gateway</title></head>\
    <body><h1>Bad gateway</h1><p>The upstream did not answer.</p></body></html>\n";

/// The last second of the year 9999, in seconds since 1970: later dates cannot be written.
const LAST_DATE: u64 = 253_402_300_799;

const SECOND_US: u64 = 1_000_000;

/// A status 429 or 503 that says when to retry.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The reply.
    pub reply: Reply,
    /// The client must send nothing before this time, in microseconds since 1970.
    pub not_before_us: u64,
}

impl Refusal {
    /// Returns the refusal for a fault; `None` if the fault is not a refusal. `now_us` is in microseconds since 1970.
    pub(crate) fn of_fault(kind: FaultKind, wait: Duration, now_us: u64) -> Option<Self> {
        let at_us = now_us.saturating_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        Some(match kind {
            FaultKind::RateLimited429 => Self::over_capacity(wait, now_us),
            FaultKind::Error503 => {
                let mut refusal = Self::over_capacity(wait, now_us);
                *refusal.reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                refusal
            }
            FaultKind::RateLimitedDate => {
                let seconds = at_us.div_ceil(SECOND_US);
                let date = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_DATE));
                let refusal = Self::until(seconds.saturating_mul(SECOND_US));
                refusal.with("retry-after", httpdate::fmt_http_date(date))
            }
            FaultKind::RateLimitedReset => {
                // This header can hold fractions of a second.
                let seconds = format!("{}s", Duration::from_micros(at_us - now_us).as_secs_f64());
                Self::until(at_us)
                    .with("x-ratelimit-remaining-requests", "0".to_owned())
                    .with("x-ratelimit-reset-requests", seconds)
            }
            _ => return None,
        })
    }

    /// Returns a refusal for lack of capacity: 429 and `Retry-After` in whole seconds, rounded up.
    pub(crate) fn over_capacity(wait: Duration, now_us: u64) -> Self {
        let seconds = wait.as_micros().div_ceil(SECOND_US.into());
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        let not_before_us = now_us.saturating_add(seconds.saturating_mul(SECOND_US));
        Self::until(not_before_us).with("retry-after", seconds.to_string())
    }

    fn until(not_before_us: u64) -> Self {
        Self {
            reply: detail(StatusCode::TOO_MANY_REQUESTS, "the simulated agent is busy"),
            not_before_us,
        }
    }

    fn with(mut self, header: &'static str, value: String) -> Self {
        // A number or a date is always a valid header value.
        if let Ok(value) = HeaderValue::try_from(value) {
            self.reply.headers_mut().insert(header, value);
        }
        self
    }
}

/// Carries out a fault that replaces the answer and is no [`Refusal`].
pub(crate) async fn fail(kind: FaultKind) -> Result<Reply, Abrupt> {
    match kind {
        FaultKind::BadRequest400 => Ok(detail(
            StatusCode::BAD_REQUEST,
            "the simulated agent rejects the request",
        )),
        FaultKind::Fin => Err(Abrupt::Fin),
        FaultKind::Reset => Err(Abrupt::Reset),
        FaultKind::Hang => pending().await,
        FaultKind::NotJson => Ok(html(NOT_JSON)),
        FaultKind::GzipBomb => Ok(gzip_bomb()),
        FaultKind::EndlessBody => Ok(endless_body()),
        _ => Ok(detail(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the simulated agent failed",
        )),
    }
}

/// Returns the head of a whole reply and the first half of its body.
pub(crate) fn truncated(answer: &[u8]) -> Bytes {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    );
    let half = answer.get(..answer.len() / 2).unwrap_or_default();
    [head.as_bytes(), half].concat().into()
}

/// Applies a fault to an answer, which is one JSON object.
pub(crate) fn spoil(kind: FaultKind, body: Vec<u8>) -> Vec<u8> {
    match kind {
        FaultKind::MissingReward => without_reward(&body).0,
        FaultKind::NotANumber => {
            let (body, reward) = without_reward(&body);
            let value: &[u8] = match reward {
                Some(("rewards", _)) => br#""rewards":[NaN]"#,
                _ => br#""reward":NaN"#,
            };
            with(body, value)
        }
        FaultKind::NoPersist => with(body, br#""_ng_no_persist":true"#),
        FaultKind::FailureClass => with(body, br#""_ng_failure_class":"simulated_failure""#),
        FaultKind::FailureTerminal => with(
            body,
            br#""_ng_failure_class":"simulated_failure","_ng_failure_terminal":true"#,
        ),
        FaultKind::InvalidUtf8 => with(body, b"\"note\":\"\xff\""),
        FaultKind::DeepJson => {
            let mut nested = br#""nested":"#.to_vec();
            nested.resize(nested.len() + DEPTH, b'[');
            nested.resize(nested.len() + DEPTH, b']');
            with(body, &nested)
        }
        FaultKind::HugeAnswer if body.len() < HUGE_BYTES => {
            let mut filler = br#""filler":""#.to_vec();
            append_filler(&mut filler, HUGE_BYTES, digest(&body));
            filler.push(b'"');
            with(body, &filler)
        }
        _ => body,
    }
}

fn with(mut body: Vec<u8>, member: &[u8]) -> Vec<u8> {
    if body.pop().is_some_and(|last| last == b'}') {
        if body.last().is_some_and(|last| *last != b'{') {
            body.push(b',');
        }
        body.extend_from_slice(member);
        body.push(b'}');
    }
    body
}

/// Removes `reward` or `rewards` from an object, and returns both.
fn without_reward(body: &[u8]) -> (Vec<u8>, Option<(&'static str, Value)>) {
    let mut object: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let mut take = |name: &'static str| Some((name, object.shift_remove(name)?));
    let reward = take("reward").or_else(|| take("rewards"));
    (json!(object).to_string().into_bytes(), reward)
}

/// The JSON around the spaces of a bomb. It has a reward, so that a client that takes it for a rollout is noticed.
const BOMB_START: &[u8] = br#"{"response":{"id":"bomb","output":[],"text":""#;
const BOMB_END: &[u8] = br#""},"reward":1.0}"#;

/// Spaces in one segment of a bomb.
const SEGMENT_BYTES: usize = 1 << 20;

/// Segments of a bomb: a little more than 1 GiB of spaces.
const SEGMENTS: usize = 1025;

static BOMB: LazyLock<io::Result<Bytes>> = LazyLock::new(|| bomb(SEGMENTS));

const ENDLESS_START: &[u8] = br#"{"response":{"id":"endless","output":[],"text":""#;
static ENDLESS_CHUNK: [u8; 64 << 10] = [b'x'; 64 << 10];

/// 200 with a small body that unpacks to more than 1 GiB.
fn gzip_bomb() -> Reply {
    match &*BOMB {
        Ok(bomb) => {
            let mut reply = reply_json(bomb.clone());
            let gzip = HeaderValue::from_static("gzip");
            reply.headers_mut().insert(CONTENT_ENCODING, gzip);
            reply
        }
        Err(error) => detail(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

/// 200 with a body that never ends.
fn endless_body() -> Reply {
    let frame = |bytes: &'static [u8]| Ok::<_, Infallible>(Frame::data(Bytes::from_static(bytes)));
    let start = stream::iter([frame(ENDLESS_START)]);
    let rest = stream::repeat_with(move || frame(&ENDLESS_CHUNK));
    streamed("application/json", StreamBody::new(start.chain(rest)))
}

/// Builds a gzip file of `BOMB_START`, `segments` segments of spaces, and `BOMB_END`. The members of a gzip file (RFC 1952)
/// follow each other, so one segment is compressed and repeated.
fn bomb(segments: usize) -> io::Result<Bytes> {
    let member = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes)?;
        encoder.finish()
    };
    let segment = member(&vec![b' '; SEGMENT_BYTES])?;
    let (start, end) = (member(BOMB_START)?, member(BOMB_END)?);
    Ok([start, segment.repeat(segments), end].concat().into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::MultiGzDecoder;

    use super::*;

    /// 2026-01-01 00:00:00.25 UTC.
    const NOW: u64 = 1_767_225_600_250_000;

    fn said(kind: FaultKind, wait: Duration) -> (u16, Vec<(String, String)>, u64) {
        let refusal = Refusal::of_fault(kind, wait, NOW).unwrap();
        let headers = refusal.reply.headers().iter();
        let headers = headers
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .filter(|(name, _)| name != "content-type")
            .collect();
        (
            refusal.reply.status().as_u16(),
            headers,
            refusal.not_before_us - NOW,
        )
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (kind, status) in [(FaultKind::RateLimited429, 429), (FaultKind::Error503, 503)] {
            let said = said(kind, Duration::from_millis(1200));
            let expected = vec![header("retry-after", "2")];
            assert_eq!(said, (status, expected, 2_000_000));
        }
    }

    #[test]
    fn a_date_is_never_too_early() {
        let said = said(FaultKind::RateLimitedDate, Duration::from_millis(1200));
        let date = header("retry-after", "Thu, 01 Jan 2026 00:00:02 GMT");
        assert_eq!(said, (429, vec![date], 1_750_000));
    }

    #[test]
    fn a_reset_is_exact_and_alone() {
        let said = said(FaultKind::RateLimitedReset, Duration::from_millis(1500));
        let headers = vec![
            header("x-ratelimit-remaining-requests", "0"),
            header("x-ratelimit-reset-requests", "1.5s"),
        ];
        assert_eq!(said, (429, headers, 1_500_000));
    }

    #[test]
    fn no_wait_is_too_long_to_say() {
        for kind in [
            FaultKind::RateLimited429,
            FaultKind::RateLimitedDate,
            FaultKind::RateLimitedReset,
        ] {
            assert_eq!(said(kind, Duration::MAX).0, 429, "{kind}");
        }
    }

    #[test]
    fn what_says_no_time_is_no_refusal() {
        let refusals = FaultKind::ALL
            .into_iter()
            .filter(|kind| Refusal::of_fault(*kind, Duration::ZERO, NOW).is_some());
        assert_eq!(refusals.count(), 4);
    }

    fn spoiled(kind: FaultKind, body: &str) -> Vec<u8> {
        spoil(kind, body.as_bytes().to_vec())
    }

    #[test]
    fn a_reward_is_gone_or_no_number() {
        for (kind, body, left) in [
            (
                FaultKind::MissingReward,
                r#"{"a":1,"reward":1.0}"#,
                r#"{"a":1}"#,
            ),
            (FaultKind::MissingReward, r#"{"rewards":[1.0]}"#, "{}"),
            (
                FaultKind::NotANumber,
                r#"{"a":1,"reward":1.0}"#,
                r#"{"a":1,"reward":NaN}"#,
            ),
            (
                FaultKind::NotANumber,
                r#"{"rewards":[1.0]}"#,
                r#"{"rewards":[NaN]}"#,
            ),
        ] {
            assert_eq!(spoiled(kind, body), left.as_bytes(), "{kind} {body}");
        }
    }

    #[test]
    fn the_rest_of_an_answer_stays() {
        let flagged = spoiled(FaultKind::NoPersist, r#"{"reward":1.0}"#);
        assert_eq!(flagged, br#"{"reward":1.0,"_ng_no_persist":true}"#);
        let huge = spoiled(FaultKind::HugeAnswer, r#"{"reward":1.0}"#);
        assert!(huge.len() > HUGE_BYTES);
        let value: Value = serde_json::from_slice(&huge).unwrap();
        assert_eq!(value["reward"], 1.0);
        let deep = spoiled(FaultKind::DeepJson, r#"{"reward":1.0}"#);
        assert!(deep.len() > 2 * DEPTH && deep.ends_with(b"]}"));
        assert!(std::str::from_utf8(&spoiled(FaultKind::InvalidUtf8, "{}")).is_err());
    }

    #[test]
    fn a_bomb_is_gzip_of_json_with_a_reward() {
        let mut text = String::new();
        let bomb = bomb(3).unwrap();
        MultiGzDecoder::new(&*bomb)
            .read_to_string(&mut text)
            .unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let spaces = value["response"]["text"].as_str().unwrap();
        assert_eq!(spaces.len(), 3 * SEGMENT_BYTES);
        assert_eq!(value["reward"], 1.0);
    }

    #[test]
    fn the_bomb_is_small_until_it_is_unpacked() {
        let bomb = BOMB.as_ref().unwrap();
        assert!(bomb.len() < 1_200_000, "{}", bomb.len());
        let unpacked = io::copy(&mut MultiGzDecoder::new(&**bomb), &mut io::sink());
        assert!(unpacked.unwrap() > 1 << 30);
    }
}
