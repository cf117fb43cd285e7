//! Whole numbers in Python's format mini-language, and the way from any number to its format.

use super::float::format_float;
use super::spec::{Align, Spec};
use super::template::FillError;

/// Formats a whole number or a boolean (`type_name` tells which).
pub(super) fn format_whole(value: i128, spec: &str, type_name: &str) -> Result<String, FillError> {
    let spec = Spec::parse(spec, Align::Right, type_name)?;
    let kind = spec.kind.unwrap_or('d');
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') {
        return format_float(value as f64, &spec, type_name);
    }
    let refused = |what: &str| {
        Err(FillError::Format(format!(
            "{what} not allowed in integer format specifier"
        )))
    };
    if !matches!(kind, 'd' | 'b' | 'o' | 'x' | 'X' | 'c' | 'n') {
        return Err(spec.unknown_kind(type_name));
    }
    if let Some(separator) = spec.grouping
        && (matches!(kind, 'c' | 'n') || (separator == ',' && kind != 'd'))
    {
        return Err(FillError::Format(format!(
            "Cannot specify '{separator}' with '{kind}'."
        )));
    }
    if spec.precision.is_some() {
        return refused("Precision");
    }
    if spec.no_negative_zero {
        return refused("Negative zero coercion (z)");
    }
    if kind == 'c' {
        return character(value, &spec);
    }
    let magnitude = value.unsigned_abs();
    let (digits, prefix, group) = match kind {
        'b' => (format!("{magnitude:b}"), "0b", 4),
        'o' => (format!("{magnitude:o}"), "0o", 4),
        'x' => (format!("{magnitude:x}"), "0x", 4),
        'X' => (format!("{magnitude:X}"), "0X", 4),
        _ => (magnitude.to_string(), "", 3),
    };
    let prefix = if spec.alternate { prefix } else { "" };
    let prefix = format!("{}{prefix}", spec.sign_of(value < 0));
    let digits = spec.grouped(&digits, group, prefix.len());
    Ok(spec.pad_after(&prefix, &digits))
}

fn character(value: i128, spec: &Spec) -> Result<String, FillError> {
    let refused = |what: &str| {
        let message = format!("{what} not allowed with integer format specifier 'c'");
        Err(FillError::Format(message))
    };
    if spec.sign.is_some() {
        return refused("Sign");
    }
    if spec.alternate {
        return refused("Alternate form (#)");
    }
    let character = u32::try_from(value).ok().and_then(char::from_u32);
    match character {
        Some(character) => Ok(spec.pad(character.encode_utf8(&mut [0; 4]))),
        None => Err(FillError::Format(
            "%c arg not in range(0x110000)".to_owned(),
        )),
    }
}
