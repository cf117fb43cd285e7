//! Floats in Python's format mini-language.

use super::spec::Spec;
use super::template::FillError;
use crate::json::python_float;

/// Python's precision where none is given.
const DEFAULT_PRECISION: usize = 6;

/// Formats a float, or a whole number that is to look like one (`type_name` is for messages).
pub(super) fn format_float(value: f64, spec: &Spec, type_name: &str) -> Result<String, FillError> {
    let kind = spec.kind;
    if let (Some(separator), Some('n')) = (spec.grouping, kind) {
        return Err(FillError::Format(format!(
            "Cannot specify '{separator}' with 'n'."
        )));
    }
    let value = if kind == Some('%') {
        value * 100.0
    } else {
        value
    };
    let magnitude = value.abs();
    let precision = spec.precision.unwrap_or(DEFAULT_PRECISION);
    let text = match (kind, spec.precision) {
        _ if !magnitude.is_finite() => python_float(magnitude),
        (None, None) => shortest(magnitude, spec.alternate),
        (None, Some(precision)) => general(magnitude, precision, spec.alternate, true),
        (Some('f' | 'F' | '%'), _) => fixed(magnitude, precision, spec.alternate),
        (Some('e' | 'E'), _) => scientific(magnitude, precision, spec.alternate),
        (Some('g' | 'G' | 'n'), _) => general(magnitude, precision, spec.alternate, false),
        _ => return Err(spec.unknown_kind(type_name)),
    };
    let mut text = match kind {
        Some('E' | 'F' | 'G') => text.to_uppercase(),
        _ => text,
    };
    if kind == Some('%') {
        text.push('%');
    }
    let shows_zero = !text
        .bytes()
        .take_while(|byte| !matches!(byte, b'e' | b'E'))
        .any(|byte| matches!(byte, b'1'..=b'9'));
    let zeroed = spec.no_negative_zero && magnitude.is_finite() && shows_zero;
    let sign = spec.sign_of(value.is_sign_negative() && !zeroed);
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(whole);
    let digits = spec.grouped(digits, 3, sign.len() + rest.len());
    Ok(spec.pad_after(sign, &(digits + rest)))
}

fn shortest(magnitude: f64, alternate: bool) -> String {
    let text = python_float(magnitude);
    if alternate { with_point(text) } else { text }
}

fn fixed(magnitude: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{magnitude:.precision$}");
    if alternate { with_point(text) } else { text }
}

fn scientific(magnitude: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{magnitude:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let mantissa = if alternate {
        with_point(mantissa.to_owned())
    } else {
        mantissa.to_owned()
    };
    mantissa + &exponent_text(exponent)
}

/// `precision` significant digits; with an exponent where the number is small or does not fit into them.
fn general(magnitude: f64, precision: usize, alternate: bool, always_fraction: bool) -> String {
    let significant = precision.max(1);
    let text = format!("{magnitude:.*e}", significant - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let place: i64 = exponent.parse().unwrap_or(0);
    let fitting = significant as i64 - i64::from(always_fraction);
    if place < -4 || place >= fitting {
        let mantissa = trimmed(mantissa.to_owned(), alternate);
        return mantissa + &exponent_text(exponent);
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
    if alternate {
        return with_point(text);
    }
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn with_point(text: String) -> String {
    if text.contains('.') {
        return text;
    }
    match text.split_once('e') {
        Some((mantissa, exponent)) => format!("{mantissa}.e{exponent}"),
        None => text + ".",
    }
}

fn exponent_text(exponent: &str) -> String {
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("e{sign}{digits:0>2}")
}
