//! Faults on purpose: their kinds ([`FaultKind`]), the rates at which they happen ([`FaultRates`]), and faults at an
//! exact place ([`FaultAt`]).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! fault_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal,)+) => {
        /// A way for an agent to fail a `POST /run`, or a server any `POST`. A fault replaces, changes or delays the
        /// answer after the planned latency. Faults of a reward happen only where an answer has one; faults of a flag
        /// happen only at an agent and at `POST /verify`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum FaultKind {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $kind,)+
        }

        impl FaultKind {
            /// All kinds, in the order in which their rates divide the unit interval.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// The name in settings, flags and statistics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

fault_kinds! {
    /// Status 500.
    Error500 = "error_500",
    /// Status 429 with `Retry-After`.
    RateLimited429 = "rate_limited_429",
    /// Resets the connection (TCP RST) instead of an answer.
    Reset = "reset",
    /// Never answers; ends when the client closes the connection.
    Hang = "hang",
    /// Closes the connection after half of the body that `Content-Length` promises.
    TruncatedBody = "truncated_body",
    /// Status 200 with a page of HTML.
    NotJson = "not_json",
    /// The right answer, but its first byte comes late.
    SlowFirstByte = "slow_first_byte",
    /// An answer without `reward`.
    MissingReward = "missing_reward",
    /// An answer with `_ng_no_persist: true`.
    NoPersist = "no_persist",
    /// An answer with `_ng_failure_class`.
    FailureClass = "failure_class",
    /// An answer with `_ng_failure_class` and `_ng_failure_terminal: true`.
    FailureTerminal = "failure_terminal",
    /// Closes the connection in good order (TCP FIN) instead of an answer.
    Fin = "fin",
    /// Status 503 with `Retry-After` in seconds.
    Error503 = "error_503",
    /// Status 429 with `Retry-After` as an HTTP date.
    RateLimitedDate = "rate_limited_date",
    /// Status 429 without `Retry-After`, but with `x-ratelimit-remaining-requests: 0` and
    /// `x-ratelimit-reset-requests`, such as `1.5s`.
    RateLimitedReset = "rate_limited_reset",
    /// An answer of 1.1 MB in gzip that unpacks to more than 1 GiB: spaces in one string, then a reward.
    GzipBomb = "gzip_bomb",
    /// The beginning of an answer, then a string that never ends, as fast as the client takes it.
    EndlessBody = "endless_body",
    /// The right answer, with arrays nested 100,000 deep in a field of their own.
    DeepJson = "deep_json",
    /// The right answer, with a byte that is not UTF-8 in a string.
    InvalidUtf8 = "invalid_utf8",
    /// The right answer, except for `"reward":NaN`.
    NotANumber = "not_a_number",
    /// The right answer, 40 MB large.
    HugeAnswer = "huge_answer",
    /// Status 400 with a `detail`.
    BadRequest400 = "bad_request_400",
}

impl FaultKind {
    /// Whether the server makes an answer, then changes or delays it.
    pub(super) fn has_answer(self) -> bool {
        self.gives_rollout()
            || matches!(
                self,
                Self::TruncatedBody
                    | Self::MissingReward
                    | Self::NoPersist
                    | Self::FailureClass
                    | Self::FailureTerminal
                    | Self::DeepJson
                    | Self::InvalidUtf8
                    | Self::NotANumber
            )
    }

    /// Whether the client gets the right answer, only late or in an unusual size.
    pub fn gives_rollout(self) -> bool {
        matches!(self, Self::SlowFirstByte | Self::HugeAnswer)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text.trim());
        kind.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("there is no fault '{text}'; the faults are {known}")
        })
    }
}

/// The share of all requests with each fault, from 0 to 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultRates(pub BTreeMap<FaultKind, f64>);

impl FaultRates {
    /// Returns the fault at `unit`, a uniform draw from (0, 1). The rates lie side by side from 0 upwards, in the order
    /// of [`FaultKind::ALL`].
    pub fn pick(&self, unit: f64) -> Option<FaultKind> {
        let mut upper = 0.0;
        self.0.iter().find_map(|(kind, rate)| {
            upper += rate;
            (unit < upper).then_some(*kind)
        })
    }

    /// Checks that the rates are from 0 to 1, and sum to 1 at most.
    pub(super) fn check(&self) -> Result<(), String> {
        for (kind, rate) in &self.0 {
            check_rate(*kind, *rate)?;
        }
        let sum: f64 = self.0.values().sum();
        if sum > 1.0 + 1e-9 {
            return Err(format!(
                "the fault rates sum to {sum}, but a request has one fault at most: lower them to sum to 1 or less"
            ));
        }
        Ok(())
    }
}

fn check_rate(kind: FaultKind, rate: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&rate) {
        return Ok(());
    }
    let why = format!("the rate of '{kind}' is {rate}, but must be from 0 to 1");
    Err(why)
}

/// Reads the share of all requests with a fault, written `error_500=0.05`.
pub(crate) fn parse_rate(text: &str) -> Result<(FaultKind, f64), String> {
    let bad = || {
        format!(
            "'{text}' is not a fault and its rate: write KIND=RATE with a rate from 0 to 1, such as error_500=0.05"
        )
    };
    let (kind, rate) = text.split_once('=').ok_or_else(bad)?;
    let (kind, rate) = (kind.parse()?, rate.trim().parse().map_err(|_| bad())?);
    check_rate(kind, rate)?;
    Ok((kind, rate))
}

/// A fault at an exact place, written `TASK[:ROLLOUT[:ATTEMPT]]=KIND`. It takes precedence over the rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultAt {
    /// Index of the task.
    pub task: u64,
    /// Index of the rollout; all rollouts if missing.
    #[serde(default)]
    pub rollout: Option<u64>,
    /// Number of the attempt, from 0; all attempts (below `fault_attempts`) if missing.
    #[serde(default)]
    pub attempt: Option<u64>,
    /// What goes wrong.
    pub kind: FaultKind,
}

impl FromStr for FaultAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "'{text}' is not a place and a fault: write TASK[:ROLLOUT[:ATTEMPT]]=KIND, such as 3:0=reset"
            )
        };
        let (place, kind) = text.split_once('=').ok_or_else(bad)?;
        let mut parts = place.split(':');
        let mut index = || {
            let index = parts.next().map(|index| index.trim().parse());
            index.transpose().map_err(|_| bad())
        };
        let at = Self {
            task: index()?.ok_or_else(bad)?,
            rollout: index()?,
            attempt: index()?,
            kind: kind.parse()?,
        };
        parts.next().is_none().then_some(at).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(of: &[(FaultKind, f64)]) -> FaultRates {
        FaultRates(of.iter().copied().collect())
    }

    #[test]
    fn names_are_those_of_serde() {
        for kind in FaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            assert_eq!(kind.name().parse(), Ok(kind));
        }
    }

    #[test]
    fn rates_divide_the_unit_interval() {
        let rates = rates(&[(FaultKind::Hang, 0.25), (FaultKind::Error500, 0.5)]);
        assert_eq!(rates.pick(0.4), Some(FaultKind::Error500));
        assert_eq!(rates.pick(0.6), Some(FaultKind::Hang));
        assert_eq!(rates.pick(0.8), None);
        assert_eq!(FaultRates::default().pick(1e-17), None);
    }

    #[test]
    fn rates_must_be_shares_that_sum_to_one_at_most() {
        assert_eq!(
            rates(&[(FaultKind::Hang, 0.4), (FaultKind::Reset, 0.6)]).check(),
            Ok(())
        );
        let too_many = rates(&[(FaultKind::Hang, 0.5), (FaultKind::Reset, 0.75)]).check();
        assert!(too_many.unwrap_err().contains("sum to 1.25"));
        for rate in [-0.1, 1.5, f64::NAN] {
            let error = rates(&[(FaultKind::Hang, rate)]).check();
            let error = error.unwrap_err();
            assert!(error.contains("must be from 0 to 1"), "{error}");
        }
    }

    #[test]
    fn a_rate_is_written_with_its_kind() {
        let rate = (FaultKind::NotJson, 0.25);
        assert_eq!(parse_rate("not_json=0.25"), Ok(rate));
        for (text, fragment) in [
            ("not_json", "write KIND=RATE"),
            ("not_json=often", "write KIND=RATE"),
            ("not_json=2", "must be from 0 to 1"),
            (
                "gremlins=0.1",
                "there is no fault 'gremlins'; the faults are error_500",
            ),
        ] {
            let error = parse_rate(text).unwrap_err();
            assert!(error.contains(fragment), "{text}: {error}");
        }
    }

    #[test]
    fn a_place_is_written_from_the_task_down() {
        let at = |rollout, attempt| FaultAt {
            task: 3,
            rollout,
            attempt,
            kind: FaultKind::Reset,
        };
        assert_eq!("3=reset".parse(), Ok(at(None, None)));
        assert_eq!("3:1=reset".parse(), Ok(at(Some(1), None)));
        assert_eq!("3:1:0=reset".parse(), Ok(at(Some(1), Some(0))));
        for text in ["3", "x=reset", "1:2:3:4=reset", "=reset", "-1=reset"] {
            let error = text.parse::<FaultAt>().unwrap_err();
            assert!(
                error.contains("is not a place and a fault"),
                "{text}: {error}"
            );
        }
    }
}
