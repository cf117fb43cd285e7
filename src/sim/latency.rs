//! How long an answer takes: [`Latency`], a distribution written as text (`lognormal:200ms,1.0`); and how durations and
//! sizes are written in the settings of a simulation.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use humantime::format_duration;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use super::draws::Draws;

/// No answer takes longer than this, whatever the distribution: heavy tails have no mean.
const MAX_LATENCY: Duration = Duration::from_secs(24 * 3600);

/// A distribution of the time from a request to its answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Latency {
    /// `fixed:20ms`: always the same.
    Fixed(Duration),
    /// `lognormal:200ms,1.0` or `lognormal:200ms,1.0,30s`: `median * exp(sigma * z)`, `z` standard
    /// normal.
    LogNormal {
        /// Half of the answers take less.
        median: Duration,
        /// Standard deviation of the logarithm, without unit.
        sigma: f64,
        /// The longest latency; longer draws are cut to it.
        cap: Option<Duration>,
    },
    /// `heavy-tail:50ms,1.5` or `heavy-tail:50ms,1.5,60s`: Pareto, `scale * u^(-1/alpha)` with
    /// `scale = median * 2^(-1/alpha)` and `u` uniform.
    HeavyTail {
        /// Half of the answers take less.
        median: Duration,
        /// The tail's exponent, without unit: the smaller, the heavier; no mean at 1 and below.
        alpha: f64,
        /// The longest latency; longer draws are cut to it.
        cap: Option<Duration>,
    },
}

impl Latency {
    /// Draws a latency, with at most two draws.
    pub fn sample(&self, draws: &mut Draws) -> Duration {
        let (seconds, cap) = match *self {
            Self::Fixed(duration) => return duration.min(MAX_LATENCY),
            Self::LogNormal { median, sigma, cap } => {
                (median.as_secs_f64() * (sigma * draws.normal()).exp(), cap)
            }
            Self::HeavyTail { median, alpha, cap } => (
                median.as_secs_f64() * (2.0 * draws.unit()).powf(-1.0 / alpha),
                cap,
            ),
        };
        let longest = cap.unwrap_or(MAX_LATENCY).min(MAX_LATENCY);
        Duration::try_from_secs_f64(seconds).map_or(longest, |drawn| drawn.min(longest))
    }
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "'{text}' is not a latency: write fixed:20ms, lognormal:MEDIAN,SIGMA[,CAP] or heavy-tail:MEDIAN,ALPHA[,CAP]"
            )
        };
        let duration = |part: &str| {
            let unreadable = |why| format!("the latency '{text}' cannot be read: {why}");
            parse_duration(part).map_err(unreadable)
        };
        let (name, parameters) = text.split_once(':').ok_or_else(form)?;
        let parameters: Vec<&str> = parameters.split(',').collect();
        let (name, median, shape, cap) = match (name.trim(), parameters.as_slice()) {
            ("fixed", [value]) => return duration(value).map(Self::Fixed),
            (name, [median, shape]) => (name, median, shape, None),
            (name, [median, shape, cap]) => (name, median, shape, Some(cap)),
            _ => return Err(form()),
        };
        let shape: f64 = shape.trim().parse().unwrap_or(f64::NAN);
        let (median, cap) = (duration(median)?, cap.map(|cap| duration(cap)).transpose()?);
        let (sigma, alpha) = (shape, shape);
        let (latency, is_good, rule) = match name {
            "lognormal" => (
                Self::LogNormal { median, sigma, cap },
                sigma >= 0.0,
                "sigma must be a number of at least 0",
            ),
            "heavy-tail" => (
                Self::HeavyTail { median, alpha, cap },
                alpha > 0.0,
                "alpha must be a number above 0",
            ),
            _ => return Err(form()),
        };
        let is_good = is_good && shape.is_finite();
        is_good
            .then_some(latency)
            .ok_or_else(|| format!("in the latency '{text}', {rule}"))
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, median, shape, cap) = match *self {
            Self::Fixed(duration) => return write!(f, "fixed:{}", format_duration(duration)),
            Self::LogNormal { median, sigma, cap } => ("lognormal", median, sigma, cap),
            Self::HeavyTail { median, alpha, cap } => ("heavy-tail", median, alpha, cap),
        };
        write!(f, "{name}:{},{shape}", format_duration(median))?;
        cap.map_or(Ok(()), |cap| write!(f, ",{}", format_duration(cap)))
    }
}

impl TryFrom<String> for Latency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Latency> for String {
    fn from(latency: Latency) -> Self {
        latency.to_string()
    }
}

/// Reads a duration: a number and a unit, such as `200ms`; `0` needs no unit.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        format!(
            "'{text}' is not a duration: write a number and a unit (us, ms, s, m, h), such as 200ms or 1.5s"
        )
    })
}

/// Reads a size in bytes: a number, or a number and a unit, such as `20KB` (1000) or `1MiB` (1024).
///
/// # Errors
/// The text is no such size.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let size = text.trim().parse().ok().map(|size: ByteSize| size.as_u64());
    size.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| {
        format!(
            "'{text}' is not a size: write a number of bytes, or a number and a unit (KB, MB, GB, KiB, MiB, GiB), such as 20KB"
        )
    })
}

pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// Reads a size, a number or text with a unit, for serde.
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let text = match Value::deserialize(from)? {
        Value::String(text) => text,
        other => other.to_string(),
    };
    parse_size(&text).map_err(D::Error::custom)
}

/// Reads a size that may be missing, for serde.
pub(super) fn optional_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    #[derive(Deserialize)]
    struct Read(#[serde(deserialize_with = "size")] usize);
    Ok(Option::<Read>::deserialize(from)?.map(|Read(bytes)| bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(text: &str) -> Vec<f64> {
        let latency: Latency = text.parse().unwrap();
        let mut draws = Draws::from_state(3);
        let mut seconds: Vec<f64> = (0..20_001)
            .map(|_| latency.sample(&mut draws).as_secs_f64())
            .collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    }

    #[test]
    fn text_round_trips() {
        for text in [
            "fixed:0s",
            "fixed:20ms",
            "lognormal:200ms,1",
            "lognormal:200ms,0.5,30s",
            "heavy-tail:1ms 500us,1.5,1m",
            "heavy-tail:5s,0.9",
        ] {
            assert_eq!(text.parse::<Latency>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, fragment) in [
            ("20ms", "'20ms' is not a latency"),
            ("weibull:1s,2", "'weibull:1s,2' is not a latency"),
            ("lognormal:1s", "is not a latency"),
            ("lognormal:1s,1,1s,1s", "is not a latency"),
            ("fixed:20", "'20' is not a duration"),
            ("lognormal:1s,x", "sigma must be a number of at least 0"),
            ("lognormal:1s,-1", "sigma must be a number of at least 0"),
            ("heavy-tail:1s,0", "alpha must be a number above 0"),
            ("heavy-tail:1s,inf", "alpha must be a number above 0"),
        ] {
            let error = text.parse::<Latency>().unwrap_err();
            assert!(error.contains(fragment), "{text}: {error}");
        }
    }

    #[test]
    fn lognormal_has_its_median_and_sigma() {
        let seconds = sorted("lognormal:200ms,1.0");
        assert!((seconds[10_000] - 0.2).abs() < 0.01, "{}", seconds[10_000]);
        // The 84.13th percentile of a normal is one standard deviation up.
        assert!((seconds[16_827] / seconds[10_000] - 1.0_f64.exp()).abs() < 0.1);
    }

    #[test]
    fn heavy_tail_has_its_median_exponent_and_cap() {
        let seconds = sorted("heavy-tail:100ms,1.0,2s");
        assert!((seconds[10_000] - 0.1).abs() < 0.005, "{}", seconds[10_000]);
        // With alpha 1 the 90th percentile is five times the median.
        assert!((seconds[18_000] / seconds[10_000] - 5.0).abs() < 0.4);
        assert_eq!(seconds[20_000], 2.0);
        assert!(seconds[0] >= 0.05);
    }

    #[test]
    fn a_draw_beyond_all_bounds_is_cut() {
        let seconds = sorted("heavy-tail:1h,0.001");
        assert_eq!(seconds[20_000], MAX_LATENCY.as_secs_f64());
    }

    #[test]
    fn durations_are_a_number_and_a_unit() {
        for (text, micros) in [
            ("200ms", 200_000),
            ("1.5s", 1_500_000),
            ("2m", 120_000_000),
            ("7us", 7),
            ("0", 0),
            ("1 h", 3_600_000_000),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration.as_micros(), micros, "{text}");
        }
        for text in ["", "200", "ms", "-1s", "1 fortnight", "1e3s", "1.2.3s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_a_number_and_a_unit() {
        for (text, bytes) in [
            ("1000", 1000),
            ("20KB", 20_000),
            ("1.5 kb", 1500),
            ("2MiB", 2 << 20),
            ("40mb", 40_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "KB", "-1", "20 parsecs"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
