//! How single settings are read.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::VariableName;

/// One value and a list of them are both welcome.
pub(super) fn one_or_many_of<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        Many(Vec<T>),
        One(T),
    }
    match OneOrMany::deserialize(deserializer)? {
        OneOrMany::Many(many) => Ok(many),
        OneOrMany::One(one) => Ok(vec![one]),
    }
}

/// One text, a list of them and null are all welcome.
pub(super) fn many_or_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Texts(#[serde(deserialize_with = "one_or_many_of")] Vec<String>);
    let texts = Option::<Texts>::deserialize(deserializer)?;
    Ok(texts.map_or_else(Vec::new, |Texts(texts)| texts))
}

/// What is null is as if it were not given.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A path that names one file and a list of them are both welcome.
pub(super) fn one_or_many<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<String>, D::Error> {
    struct Visitor;
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a path or a list of paths")
        }

        fn visit_str<E: de::Error>(self, path: &str) -> Result<Self::Value, E> {
            Ok(vec![path.to_owned()])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut paths = Vec::new();
            while let Some(path) = seq.next_element()? {
                paths.push(path);
            }
            Ok(paths)
        }
    }
    deserializer.deserialize_any(Visitor)
}

/// NeMo Gym's users name a `.jsonl` file; a run is a directory of the same name without the suffix.
pub(super) fn run_location<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let location = text.as_deref().map(run_beside).transpose();
    let location = location.map_err(de::Error::custom)?;
    Ok(location.map(str::to_owned))
}

/// The run that a `.jsonl` file stands for; any other text stands for itself.
pub(super) fn run_beside(text: &str) -> Result<&str, String> {
    let location = text.strip_suffix(".jsonl").unwrap_or(text);
    match location.is_empty() || location.ends_with(['/', '\\']) && location != text {
        true => Err(format!(
            "`{text}` names no directory; write a path such as runs/first"
        )),
        false => Ok(location),
    }
}

pub(super) fn headers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, VariableName>, D::Error> {
    let headers = BTreeMap::<String, VariableName>::deserialize(deserializer)?;
    // RFC 9110, section 5.6.2: a field name is a token.
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    match headers
        .keys()
        .find(|name| name.is_empty() || !name.chars().all(allowed))
    {
        Some(name) => Err(de::Error::custom(format!(
            "`{name}` is not the name of an HTTP header"
        ))),
        None => Ok(headers),
    }
}

pub(super) fn optional_whole<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<i64>, D::Error> {
    let number = Option::<Value>::deserialize(deserializer)?;
    number
        .map(|number| {
            number.as_i64().ok_or_else(|| {
                de::Error::custom(format!("{number} is not a whole number of 64 bits"))
            })
        })
        .transpose()
}

pub(super) fn count<'de, D: Deserializer<'de>, N: TryFrom<u64>>(
    deserializer: D,
) -> Result<N, D::Error> {
    struct Count<N>(PhantomData<N>);
    impl<N: TryFrom<u64>> de::Visitor<'_> for Count<N> {
        type Value = N;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number of at least 1")
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<N, E> {
            let refuse = || E::invalid_value(de::Unexpected::Unsigned(number), &self);
            match N::try_from(number) {
                Ok(count) if number >= 1 => Ok(count),
                _ => Err(refuse()),
            }
        }
    }
    deserializer.deserialize_any(Count(PhantomData))
}

pub(super) fn optional_count<'de, D, N>(deserializer: D) -> Result<Option<N>, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<u64>,
{
    #[derive(Deserialize)]
    #[serde(bound = "N: TryFrom<u64>")]
    struct One<N>(#[serde(deserialize_with = "count")] N);
    Ok(Option::<One<N>>::deserialize(deserializer)?.map(|One(number)| number))
}

/// A time in seconds, which may be zero.
pub(super) fn optional_seconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    match Option::<Value>::deserialize(deserializer)? {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            // Far beyond any run, and within what a clock can count.
            Some(seconds) if (0.0..=1e12).contains(&seconds) => Ok(Some(seconds)),
            _ => Err(de::Error::custom(format!(
                "{value} is not a number of seconds of at least 0"
            ))),
        },
    }
}

pub(super) fn optional_rate<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    optional_number(deserializer, "a number greater than zero", |rate| {
        rate.is_finite() && rate > 0.0
    })
}

pub(super) fn optional_price<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    optional_number(deserializer, "a price of zero or more", |price| {
        price.is_finite() && price >= 0.0
    })
}

pub(super) fn optional_share<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    optional_number(deserializer, "a share from 0 to 1", |share| {
        (0.0..=1.0).contains(&share)
    })
}

pub(super) fn optional_number<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &str,
    is_good: impl Fn(f64) -> bool,
) -> Result<Option<f64>, D::Error> {
    match Option::<Value>::deserialize(deserializer)? {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|number| is_good(*number)) {
            Some(number) => Ok(Some(number)),
            None => Err(de::Error::custom(format!("{value} is not {expected}"))),
        },
    }
}
