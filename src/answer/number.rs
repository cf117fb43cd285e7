//! [`Number`]: what counts as a metric.

/// A number or boolean of an answer. Booleans count as the integers 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Fits 64 bits, signed.
    Integer(i64),
    /// Anything else, rounded to 64 bits.
    Float(f64),
}

impl Number {
    /// The value, rounded to 64 bits where it is an integer above 2^53.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// The value, where it is an integer.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(value),
            Self::Float(_) => None,
        }
    }

    pub(super) fn of(text: &str) -> Option<Self> {
        match text.as_bytes().first()? {
            b't' => Some(Self::Integer(1)),
            b'f' => Some(Self::Integer(0)),
            b'-' | b'0'..=b'9' => match text.parse::<i64>() {
                Ok(value) => Some(Self::Integer(value)),
                Err(_) => serde_json::from_str(text).ok().map(Self::Float),
            },
            _ => None,
        }
    }
}
