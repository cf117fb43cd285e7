//! Refusals that say when to come back: [`Refusal`], in each of the ways in which servers say it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};

use super::fault::FaultKind;
use super::http::{Reply, detail};

/// `Retry-After` as a date, by RFC 9110.
const HTTP_DATE: &str = "%a, %d %b %Y %H:%M:%S GMT";

const SECOND_US: u64 = 1_000_000;

/// How a refusal says when to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// `Retry-After` in whole seconds, rounded up.
    Seconds,
    /// `Retry-After` as a date in whole seconds, rounded up.
    Date,
    /// `x-ratelimit-reset-requests`, which can say parts of a second.
    Reset,
}

/// A refusal.
#[derive(Debug)]
pub(super) struct Refusal {
    /// What the client is sent.
    pub reply: Reply,
    /// By that, the client must send nothing before this, in microseconds since 1970.
    pub not_before_us: u64,
}

impl Refusal {
    /// For want of capacity: 429 and `Retry-After` in seconds. `now_us` is in microseconds since
    /// 1970.
    pub(super) fn over_capacity(wait: Duration, now_us: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, Told::Seconds, wait, now_us)
    }

    /// The refusal that the fault is, where it is one.
    pub(super) fn of_fault(kind: FaultKind, wait: Duration, now_us: u64) -> Option<Self> {
        let (status, told) = match kind {
            FaultKind::RateLimited429 => (StatusCode::TOO_MANY_REQUESTS, Told::Seconds),
            FaultKind::RateLimitedDate => (StatusCode::TOO_MANY_REQUESTS, Told::Date),
            FaultKind::RateLimitedReset => (StatusCode::TOO_MANY_REQUESTS, Told::Reset),
            FaultKind::Error503 => (StatusCode::SERVICE_UNAVAILABLE, Told::Seconds),
            _ => return None,
        };
        Some(Self::new(status, told, wait, now_us))
    }

    fn new(status: StatusCode, told: Told, wait: Duration, now_us: u64) -> Self {
        let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let mut reply = detail(status, "the simulated agent is busy");
        let mut say = |header: HeaderName, value: String| {
            // A number or a date is a header.
            if let Ok(value) = HeaderValue::from_str(&value) {
                reply.headers_mut().insert(header, value);
            }
        };
        let not_before_us = match told {
            Told::Seconds => {
                let seconds = wait_us.div_ceil(SECOND_US);
                say(RETRY_AFTER, seconds.to_string());
                now_us.saturating_add(seconds.saturating_mul(SECOND_US))
            }
            Told::Date => {
                let seconds = now_us.saturating_add(wait_us).div_ceil(SECOND_US);
                let date = i64::try_from(seconds)
                    .ok()
                    .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
                    .unwrap_or(DateTime::<Utc>::MAX_UTC);
                say(RETRY_AFTER, date.format(HTTP_DATE).to_string());
                seconds.saturating_mul(SECOND_US)
            }
            Told::Reset => {
                let header = |name| HeaderName::from_static(name);
                say(header("x-ratelimit-remaining-requests"), "0".into());
                let seconds = format!("{}s", Duration::from_micros(wait_us).as_secs_f64());
                say(header("x-ratelimit-reset-requests"), seconds);
                now_us.saturating_add(wait_us)
            }
        };
        Self {
            reply,
            not_before_us,
        }
    }
}

#[cfg(test)]
mod tests {
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
}
