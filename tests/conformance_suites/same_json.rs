//! Compares JSON texts by value: the order of keys counts unless it is said not to, and whether a number is an integer.

use rollstream::json::{Object, unquote};
use serde_json::value::RawValue;

/// Whether the order of the keys of objects counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    Ordered,
    Unordered,
}

/// Says where two texts differ.
pub fn same(expected: &str, got: &str) -> Result<(), String> {
    same_but(expected, got, Keys::Ordered)
}

/// The same, where the order of keys may not count.
pub fn same_but(expected: &str, got: &str, keys: Keys) -> Result<(), String> {
    differ(expected.trim(), got.trim(), "$", keys)
}

/// Compares files of one value a line.
pub fn same_lines(expected: &str, got: &str) -> Result<(), String> {
    let split = |text: &str| -> Vec<String> {
        let lines = text.split('\n').filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    let (expected, got) = (split(expected), split(got));
    if expected.len() != got.len() {
        return Err(format!(
            "expected {} lines, got {}",
            expected.len(),
            got.len()
        ));
    }
    for (number, (expected, got)) in expected.iter().zip(&got).enumerate() {
        differ(
            expected,
            got,
            &format!("line {}: $", number + 1),
            Keys::Ordered,
        )?;
    }
    Ok(())
}

fn differ(expected: &str, got: &str, at: &str, keys: Keys) -> Result<(), String> {
    let different = || Err(format!("{at}: expected {expected}, got {got}"));
    let kind = |text: &str| text.as_bytes().first().copied().unwrap_or_default();
    match (kind(expected), kind(got)) {
        (b'{', b'{') => objects(expected, got, at, keys),
        (b'[', b'[') => {
            let (wanted, items) = (items(expected)?, items(got)?);
            if wanted.len() != items.len() {
                return Err(format!(
                    "{at}: expected {} items, got {}",
                    wanted.len(),
                    items.len()
                ));
            }
            let pairs = wanted.iter().zip(&items).enumerate();
            pairs.into_iter().try_for_each(|(i, (wanted, item))| {
                differ(wanted.get(), item.get(), &format!("{at}[{i}]"), keys)
            })
        }
        (b'"', b'"') if unquote(expected) == unquote(got) => Ok(()),
        (b'-' | b'0'..=b'9', b'-' | b'0'..=b'9') if numbers(expected, got) => Ok(()),
        _ if expected == got => Ok(()),
        _ => different(),
    }
}

/// The items of a list.
pub fn items(text: &str) -> Result<Vec<&RawValue>, String> {
    serde_json::from_str(text).map_err(|error| format!("{error} in {text}"))
}

fn objects(expected: &str, got: &str, at: &str, keys: Keys) -> Result<(), String> {
    let (wanted, fields) = (Object::parse(expected), Object::parse(got));
    let wanted = wanted.map_err(|error| format!("{at}: {error}"))?;
    let fields = fields.map_err(|error| format!("{at}: {error}"))?;
    let mut names: Vec<&str> = wanted.names().collect();
    let mut given: Vec<&str> = fields.names().collect();
    if keys == Keys::Unordered {
        names.sort_unstable();
        given.sort_unstable();
    }
    if names != given {
        return Err(format!("{at}: expected keys {names:?}, got {given:?}"));
    }
    for (name, _, wanted) in wanted.iter() {
        let value = fields.get(name).unwrap_or_default();
        differ(wanted, value, &format!("{at}.{name}"), keys)?;
    }
    Ok(())
}

/// Floats may differ by 1e-12 of the expected one and 1e-15. Integers are those that 64 bits hold.
fn numbers(expected: &str, got: &str) -> bool {
    let integer = |text: &str| {
        let value = text.parse::<i128>().ok()?;
        (i64::try_from(value).is_ok() || u64::try_from(value).is_ok()).then_some(value)
    };
    match (integer(expected), integer(got)) {
        (Some(expected), Some(got)) => expected == got,
        (None, None) => match (expected.parse::<f64>(), got.parse::<f64>()) {
            (Ok(expected), Ok(got)) => {
                expected == got || (expected - got).abs() <= 1e-12 * expected.abs() + 1e-15
            }
            _ => false,
        },
        _ => false,
    }
}
