//! Numbers in Python's format mini-language.

use super::repr::exponent_text;
use super::repr_float;
use super::spec::{Align, Spec};
use super::template::{FillError, refused};

/// Python's precision where none is given.
const DEFAULT_PRECISION: usize = 6;

/// Formats an integer or a boolean (`type_name` tells which).
pub(super) fn format_whole(value: i128, spec: &str, type_name: &str) -> Result<String, FillError> {
    let spec = Spec::parse(spec, Align::Right, type_name)?;
    let kind = spec.kind.unwrap_or('d');
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') {
        return format_float(value as f64, &spec, type_name);
    }
    if !matches!(kind, 'd' | 'b' | 'o' | 'x' | 'X' | 'c' | 'n') {
        return spec.refuse_kind(type_name);
    }
    if let Some(separator) = spec.grouping
        && (matches!(kind, 'c' | 'n') || (separator == ',' && kind != 'd'))
    {
        return refused(format!("Cannot specify '{separator}' with '{kind}'."));
    }
    if spec.precision.is_some() {
        return refused("Precision not allowed in integer format specifier");
    }
    if spec.no_negative_zero {
        return refused("Negative zero coercion (z) not allowed in integer format specifier");
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
    if spec.sign.is_some() {
        return refused("Sign not allowed with integer format specifier 'c'");
    }
    if spec.alternate {
        return refused("Alternate form (#) not allowed with integer format specifier 'c'");
    }
    match u32::try_from(value).ok().and_then(char::from_u32) {
        Some(character) => Ok(spec.pad(character.encode_utf8(&mut [0; 4]))),
        None => refused("%c arg not in range(0x110000)"),
    }
}

/// Formats a float, or an integer that is to look like one (`type_name` is for messages).
pub(super) fn format_float(value: f64, spec: &Spec, type_name: &str) -> Result<String, FillError> {
    let kind = spec.kind;
    if let (Some(separator), Some('n')) = (spec.grouping, kind) {
        return refused(format!("Cannot specify '{separator}' with 'n'."));
    }
    let is_percent = kind == Some('%');
    let value = if is_percent { value * 100.0 } else { value };
    let magnitude = value.abs();
    let precision = spec.precision.unwrap_or(DEFAULT_PRECISION);
    let mut text = match (kind, spec.precision) {
        _ if !magnitude.is_finite() => repr_float(magnitude),
        (None, None) => with_point(repr_float(magnitude), spec.alternate),
        (None, Some(precision)) => general(magnitude, precision, spec.alternate, true),
        (Some('f' | 'F' | '%'), _) => {
            with_point(format!("{magnitude:.precision$}"), spec.alternate)
        }
        (Some('e' | 'E'), _) => {
            let text = format!("{magnitude:.precision$e}");
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            with_point(mantissa.to_owned(), spec.alternate) + &exponent_text(exponent)
        }
        (Some('g' | 'G' | 'n'), _) => general(magnitude, precision, spec.alternate, false),
        _ => return spec.refuse_kind(type_name),
    };
    if matches!(kind, Some('E' | 'F' | 'G')) {
        text.make_ascii_uppercase();
    }
    if is_percent {
        text.push('%');
    }
    let mut mantissa = text.bytes().take_while(|byte| !matches!(byte, b'e' | b'E'));
    let shows_zero = !mantissa.any(|byte| matches!(byte, b'1'..=b'9'));
    let zeroed = spec.no_negative_zero && magnitude.is_finite() && shows_zero;
    let sign = spec.sign_of(value.is_sign_negative() && !zeroed);
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(whole);
    let digits = spec.grouped(digits, 3, sign.len() + rest.len());
    Ok(spec.pad_after(sign, &(digits + rest)))
}

/// `precision` significant digits; with an exponent where the number is small or does not fit into them.
fn general(magnitude: f64, precision: usize, alternate: bool, always_fraction: bool) -> String {
    let significant = precision.max(1);
    let text = format!("{magnitude:.*e}", significant - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let place: i64 = exponent.parse().unwrap_or(0);
    let fitting = significant as i64 - i64::from(always_fraction);
    if place < -4 || place >= fitting {
        return trimmed(mantissa.to_owned(), alternate) + &exponent_text(exponent);
    }
    let decimals = usize::try_from(significant as i64 - 1 - place).unwrap_or(0);
    let text = trimmed(format!("{magnitude:.decimals$}"), alternate);
    if always_fraction && !text.contains('.') {
        text + ".0"
    } else {
        text
    }
}

/// Without trailing zeros, or, in the alternate form, with all of them and a point.
fn trimmed(text: String, alternate: bool) -> String {
    if alternate || !text.contains('.') {
        return with_point(text, alternate);
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The alternate form has a point even where no digit follows.
fn with_point(text: String, alternate: bool) -> String {
    if !alternate || text.contains('.') {
        return text;
    }
    match text.split_once('e') {
        Some((mantissa, exponent)) => format!("{mantissa}.e{exponent}"),
        None => text + ".",
    }
}
