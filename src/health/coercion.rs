//! What NeMo Gym's reader takes for a value of another type, as a text of digits for a number.

use serde_json::{Number, Value};

/// A whole number, or what Python's readers take for one.
pub(super) fn whole(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().filter(|number| number.fract() == 0.0)?;
            // Below 2^63 the number is exact, and beyond no count is.
            (number.abs() < 9.2e18).then_some(Number::from(number as i64))
        }
        Value::Number(number) => Some(number.clone()),
        Value::Bool(flag) => Some(Number::from(u8::from(*flag))),
        Value::String(text) => {
            let text = text.trim();
            let text = match text.split_once('.') {
                Some((whole, zeros)) if zeros.bytes().all(|digit| digit == b'0') => whole,
                _ => text,
            };
            text.parse::<i64>().ok().map(Number::from)
        }
        _ => None,
    }
}

/// A number, or what is taken for one.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A truth value, or what is taken for one.
pub(super) fn flag(value: &Value) -> Option<bool> {
    let text = match value {
        Value::Bool(flag) => return Some(*flag),
        Value::Number(number) => {
            let number = number.as_f64()?;
            return [(0.0, false), (1.0, true)]
                .into_iter()
                .find_map(|(spelled, flag)| (number == spelled).then_some(flag));
        }
        Value::String(text) => text.to_ascii_lowercase(),
        _ => return None,
    };
    match text.as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_other_types_stand_for_numbers_and_flags() {
        for (given, expected) in [
            (json!(7), Some(7)),
            (json!(7.0), Some(7)),
            (json!(" 7 "), Some(7)),
            (json!("7.00"), Some(7)),
            (json!(true), Some(1)),
            (json!(7.5), None),
            (json!("7.5"), None),
            (json!("seven"), None),
            (json!(null), None),
        ] {
            let read = whole(&given).and_then(|number| number.as_i64());
            assert_eq!(read, expected, "{given}");
        }
        assert_eq!(number(&json!("1e3")), Some(1000.0));
        assert_eq!(number(&json!([])), None);
        assert_eq!(flag(&json!("OFF")), Some(false));
        assert_eq!(flag(&json!(1.0)), Some(true));
        assert_eq!(flag(&json!(2)), None);
    }
}
