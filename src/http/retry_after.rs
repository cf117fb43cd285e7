//! Reads the headers of a refusal: [`retry_after`] returns how long to wait, in the forms that servers
//! use; [`headers_that_matter`] returns the headers to keep. The crate `rate-limits` reads only seconds and dates;
//! servers also send milliseconds, times since 1970 and Go's durations.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// The longest wait that a server may ask for.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The headers with the time of a limit's next reset, each with the header that says what is left until then.
const RESETS: [(&str, &str); 4] = [
    ("x-ratelimit-reset", "x-ratelimit-remaining"),
    (
        "x-ratelimit-reset-requests",
        "x-ratelimit-remaining-requests",
    ),
    ("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens"),
    ("ratelimit-reset", "ratelimit-remaining"),
];

/// Larger numbers than these are seconds or milliseconds since 1970, and not a duration.
const UNIX_SECONDS: f64 = 1e9;
const UNIX_MILLISECONDS: f64 = 1e12;

/// Returns how long the server asks to be left alone, at most 24 h; zero if that time has passed, `None`
/// if it does not say so in a known form. `Retry-After` and `retry-after-ms` come
/// first, the longer of them; then the latest reset of a limit that is used up.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let asked = values(headers, "retry-after").filter_map(|value| wait(value, now));
    let asked_ms = values(headers, "retry-after-ms")
        .filter_map(number)
        .map(|number| seconds(number / 1000.0));
    let wait = asked.chain(asked_ms).max().or_else(|| {
        RESETS
            .iter()
            .filter(|(_, remaining)| is_used_up(headers, remaining))
            .flat_map(|(reset, _)| values(headers, reset))
            .filter_map(|value| wait(value, now))
            .max()
    });
    wait.map(|wait| wait.min(LONGEST))
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values.filter_map(|value| Some(value.to_str().ok()?.trim()))
}

/// Returns whether nothing remains, as far as is known.
fn is_used_up(headers: &HeaderMap, remaining: &str) -> bool {
    let mut left = values(headers, remaining).filter_map(number).peekable();
    left.peek().is_none() || left.any(|left| left <= 0.0)
}

/// Returns the time from `now` until the time that `value` means.
fn wait(value: &str, now: SystemTime) -> Option<Duration> {
    if let Some(number) = number(value) {
        return Some(match number {
            _ if number > UNIX_MILLISECONDS => until(number / 1000.0, now),
            _ if number > UNIX_SECONDS => until(number, now),
            _ => seconds(number),
        });
    }
    // As Go writes it: `1h2m3.5s`, `6m0s`, `20ms`.
    let is_of_go = |c: char| c.is_ascii_digit() || ".hmsun".contains(c);
    if value.chars().all(is_of_go)
        && let Ok(duration) = humantime::parse_duration(value)
    {
        return Some(duration);
    }
    if let Ok(date) = httpdate::parse_http_date(value) {
        return Some(date.duration_since(now).unwrap_or_default());
    }
    let date = DateTime::parse_from_rfc3339(value).ok()?;
    Some(until(date.timestamp_millis() as f64 / 1000.0, now))
}

/// Reads a number without sign or exponent.
fn number(value: &str) -> Option<f64> {
    let plain = value
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    value.parse().ok().filter(|_| plain)
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST)
}

/// Returns the time from `now` to this many seconds since 1970.
fn until(unix_seconds: f64, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds((unix_seconds - now.as_secs_f64()).max(0.0))
}

/// Characters kept of a header's value.
const KEPT: usize = 200;

/// Returns the response headers worth keeping, as the text of a JSON object, sorted by name: what a server
/// or a proxy says of its limits, which of them answered, and under which id. `None` if there are
/// none. Only listed headers are kept, so that cookies and credentials never are.
pub fn headers_that_matter(headers: &HeaderMap) -> Option<String> {
    let mut kept: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in headers {
        if matters(name) && !value.is_sensitive() {
            kept.entry(name.as_str())
                .and_modify(|known| append(known, value))
                .or_insert_with(|| shortened(value));
        }
    }
    if kept.is_empty() {
        return None;
    }
    serde_json::to_string(&kept).ok()
}

fn matters(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("retry-after")
        || name.starts_with("x-envoy-")
        || name.contains("ratelimit")
        || matches!(
            name,
            "x-request-id" | "x-amzn-requestid" | "cf-ray" | "server" | "via" | "traceparent"
        )
}

fn shortened(value: &HeaderValue) -> String {
    let value = String::from_utf8_lossy(value.as_bytes());
    value.chars().take(KEPT).collect()
}

/// Appends a repeated header's value: by HTTP's rule, the values are one list.
fn append(known: &mut String, value: &HeaderValue) {
    let all = format!("{known}, {}", shortened(value));
    *known = all.chars().take(KEPT).collect();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-02T03:04:05Z
    const NOW: u64 = 1_767_323_045;

    fn headers(headers: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        map
    }

    /// Milliseconds.
    fn asked(of: &[(&'static str, &str)]) -> Option<u128> {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        retry_after(&headers(of), now).map(|wait| wait.as_millis())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let cases = [
            ("2", Some(2000)),
            (" 2 ", Some(2000)),
            ("0", Some(0)),
            ("1.5", Some(1500)),
            ("Fri, 02 Jan 2026 03:04:15 GMT", Some(10_000)),
            ("Friday, 02-Jan-26 03:04:15 GMT", Some(10_000)),
            ("Fri, 02 Jan 2026 03:04:00 GMT", Some(0)),
            ("Sun, 02 Jan 2028 03:04:00 GMT", Some(86_400_000)),
            ("100000", Some(86_400_000)),
            ("999999999999999999999999999999", Some(86_400_000)),
            ("-1", None),
            ("1e3", None),
            ("inf", None),
            ("NaN", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("soon", None),
            ("2 s", None),
        ];
        for (value, expected) in cases {
            assert_eq!(asked(&[("retry-after", value)]), expected, "{value:?}");
        }
        assert_eq!(asked(&[]), None);
    }

    #[test]
    fn milliseconds_are_heeded_and_the_longer_counts() {
        assert_eq!(asked(&[("retry-after-ms", "250")]), Some(250));
        assert_eq!(asked(&[("retry-after-ms", "0.5")]), Some(0));
        assert_eq!(
            asked(&[("retry-after", "1"), ("retry-after-ms", "800")]),
            Some(1000)
        );
        assert_eq!(
            asked(&[("retry-after", "nonsense"), ("retry-after-ms", "800")]),
            Some(800)
        );
    }

    #[test]
    fn resets_come_in_many_forms() {
        let cases = [
            ("30", Some(30_000)),
            ("1.5", Some(1500)),
            ("1767323050", Some(5000)),
            ("1767323050.5", Some(5500)),
            ("1767323050250", Some(5250)),
            ("1767323000", Some(0)),
            ("1s", Some(1000)),
            ("6m0s", Some(360_000)),
            ("20ms", Some(20)),
            ("1h2m3.5s", Some(3_723_500)),
            ("500µs", None),
            ("48h", Some(86_400_000)),
            ("2026-01-02T03:04:07Z", Some(2000)),
            ("2026-01-02T04:04:07.5+01:00", Some(2500)),
            ("2025-01-02T03:04:07Z", Some(0)),
            ("Fri, 02 Jan 2026 03:04:15 GMT", Some(10_000)),
            ("1d", None),
            ("s", None),
            ("1s2", None),
            ("-5s", None),
        ];
        for (value, expected) in cases {
            for (reset, _) in RESETS {
                assert_eq!(asked(&[(reset, value)]), expected, "{reset}: {value:?}");
            }
        }
    }

    #[test]
    fn the_latest_reset_of_a_limit_that_is_used_up_counts() {
        let of = |requests_left, tokens_left| {
            asked(&[
                ("x-ratelimit-reset-requests", "1s"),
                ("x-ratelimit-remaining-requests", requests_left),
                ("x-ratelimit-reset-tokens", "6m0s"),
                ("x-ratelimit-remaining-tokens", tokens_left),
            ])
        };
        assert_eq!(of("0", "0"), Some(360_000));
        assert_eq!(of("0", "17"), Some(1000));
        assert_eq!(of("3", "17"), None);
        assert_eq!(of("0", "unknown"), Some(360_000));
    }

    #[test]
    fn retry_after_outranks_resets() {
        let both = [("retry-after", "2"), ("x-ratelimit-reset", "60")];
        assert_eq!(asked(&both), Some(2000));
    }

    #[test]
    fn keeps_what_tells_of_limits_and_nothing_secret() {
        let long = "x".repeat(500);
        let kept = headers_that_matter(&headers(&[
            ("content-type", "application/json"),
            ("set-cookie", "session=secret"),
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("retry-after", "2"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("anthropic-ratelimit-tokens-reset", "2026-01-02T03:04:07Z"),
            ("x-envoy-upstream-service-time", "12"),
            ("via", "1.1 \"a\""),
            ("via", "1.1 b"),
            ("x-request-id", &long),
        ]));
        let expected = format!(
            r#"{{"anthropic-ratelimit-tokens-reset":"2026-01-02T03:04:07Z","retry-after":"2","via":"1.1 \"a\", 1.1 b","x-envoy-upstream-service-time":"12","x-ratelimit-remaining-tokens":"0","x-request-id":"{}"}}"#,
            "x".repeat(200)
        );
        assert_eq!(kept, Some(expected));
        assert_eq!(headers_that_matter(&headers(&[("date", "today")])), None);
    }

    #[test]
    fn a_header_that_is_not_text_is_kept_but_not_obeyed() {
        let mut map = HeaderMap::new();
        let value = HeaderValue::from_bytes(b"\xff2").unwrap();
        map.append("retry-after", value);
        assert_eq!(retry_after(&map, UNIX_EPOCH), None);
        assert_eq!(
            headers_that_matter(&map),
            Some("{\"retry-after\":\"\u{fffd}2\"}".into())
        );
    }

    proptest! {
        #[test]
        fn nothing_a_server_says_is_a_wait_of_more_than_a_day(
            value in "[0-9.]{0,30}|[0-9hmsnu.]{0,12}|[ -~]{0,40}",
            now in 0_u64..4_000_000_000,
        ) {
            let headers = headers(&[
                ("retry-after", value.as_str()),
                ("retry-after-ms", value.as_str()),
                ("x-ratelimit-reset", value.as_str()),
            ]);
            let wait = retry_after(&headers, UNIX_EPOCH + Duration::from_secs(now));
            prop_assert!(wait.unwrap_or_default() <= LONGEST);
            prop_assert!(headers_that_matter(&headers).is_some());
        }
    }
}
