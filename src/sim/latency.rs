//! How long an agent takes: [`Latency`], a distribution that is written as text
//! (`lognormal:200ms,1.0`) in settings and flags alike.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::draws::Draws;
use super::quantity::{QuantityError, format_duration, parse_duration};

/// No answer takes longer than this, whatever the distribution: heavy tails have no mean.
pub const MAX_LATENCY: Duration = Duration::from_secs(24 * 3600);

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
        /// Longer draws are cut to this.
        cap: Option<Duration>,
    },
    /// `heavy-tail:50ms,1.5` or `heavy-tail:50ms,1.5,60s`: Pareto, `scale * u^(-1/alpha)` with
    /// `scale = median * 2^(-1/alpha)` and `u` uniform.
    HeavyTail {
        /// Half of the answers take less.
        median: Duration,
        /// The tail's exponent, without unit: the smaller, the heavier; no mean at 1 and below.
        alpha: f64,
        /// Longer draws are cut to this.
        cap: Option<Duration>,
    },
}

/// A latency that cannot be read.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LatencyError {
    /// No known distribution, or the wrong number of parameters.
    #[error(
        "'{0}' is not a latency: write fixed:20ms, lognormal:MEDIAN,SIGMA[,CAP] or heavy-tail:MEDIAN,ALPHA[,CAP]"
    )]
    Form(String),
    /// A duration in it cannot be read.
    #[error("the latency '{text}' holds a duration that cannot be read: {source}")]
    Duration {
        /// The whole latency.
        text: String,
        /// What is wrong with the duration.
        source: QuantityError,
    },
    /// Sigma or alpha is out of range.
    #[error("the latency '{text}' holds '{number}', where {name} must be a number {range}")]
    Shape {
        /// The whole latency.
        text: String,
        /// The offender.
        number: String,
        /// Name of the parameter.
        name: &'static str,
        /// What is allowed.
        range: &'static str,
    },
}

impl Latency {
    /// Draws a latency; takes at most two draws.
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

    /// The shape parameter's text where it is out of range.
    pub(super) fn bad_shape(&self) -> Option<LatencyError> {
        let (number, name, range, good) = match *self {
            Self::Fixed(_) => return None,
            Self::LogNormal { sigma, .. } => (sigma, "sigma", SIGMA_RANGE, sigma >= 0.0),
            Self::HeavyTail { alpha, .. } => (alpha, "alpha", ALPHA_RANGE, alpha > 0.0),
        };
        let bad = !(good && number.is_finite());
        bad.then(|| LatencyError::Shape {
            text: self.to_string(),
            number: number.to_string(),
            name,
            range,
        })
    }
}

const SIGMA_RANGE: &str = "of at least 0";
const ALPHA_RANGE: &str = "above 0";

impl FromStr for Latency {
    type Err = LatencyError;

    fn from_str(text: &str) -> Result<Self, LatencyError> {
        let form = || LatencyError::Form(text.to_owned());
        let duration = |part: &str| {
            parse_duration(part).map_err(|source| LatencyError::Duration {
                text: text.to_owned(),
                source,
            })
        };
        let shape = |number: &str, name, range| {
            number
                .trim()
                .parse::<f64>()
                .map_err(|_| LatencyError::Shape {
                    text: text.to_owned(),
                    number: number.to_owned(),
                    name,
                    range,
                })
        };
        let (name, parameters) = text.split_once(':').ok_or_else(form)?;
        let parameters: Vec<&str> = parameters.split(',').collect();
        let latency = match (name.trim(), parameters.as_slice()) {
            ("fixed", [value]) => Self::Fixed(duration(value)?),
            ("lognormal", [median, sigma, cap @ ..]) if cap.len() < 2 => Self::LogNormal {
                median: duration(median)?,
                sigma: shape(sigma, "sigma", SIGMA_RANGE)?,
                cap: cap.first().map(|cap| duration(cap)).transpose()?,
            },
            ("heavy-tail", [median, alpha, cap @ ..]) if cap.len() < 2 => Self::HeavyTail {
                median: duration(median)?,
                alpha: shape(alpha, "alpha", ALPHA_RANGE)?,
                cap: cap.first().map(|cap| duration(cap)).transpose()?,
            },
            _ => return Err(form()),
        };
        latency.bad_shape().map_or(Ok(latency), Err)
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
    type Error = LatencyError;

    fn try_from(text: String) -> Result<Self, LatencyError> {
        text.parse()
    }
}

impl From<Latency> for String {
    fn from(latency: Latency) -> Self {
        latency.to_string()
    }
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
            "heavy-tail:1500us,1.5,60s",
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
            let error = text.parse::<Latency>().unwrap_err().to_string();
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
}
