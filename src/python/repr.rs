//! Python's `repr()` of floats, strings, lists and dicts.

use std::fmt::{Display, Write};

/// Python's `repr` of a float: the shortest digits that read back the same, with an exponent below 1e-4 and from
/// 1e16 on. Infinities and NaN are `inf`, `-inf` and `nan`.
pub fn repr_float(value: f64) -> String {
    // Rust's debug form has the same digits and the same limits for an exponent, which it spells differently.
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => mantissa.to_owned() + &exponent_text(exponent),
        None => text.to_lowercase(),
    }
}

/// An exponent with a sign and at least two digits.
pub(super) fn exponent_text(exponent: &str) -> String {
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("e{sign}{digits:0>2}")
}

/// Python's `repr` of a string: in single quotes, or in double quotes if it contains only single ones. Characters
/// that are not printable are escaped.
pub fn repr_str(string: &str) -> String {
    let quote = if string.contains('\'') && !string.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut text = String::with_capacity(string.len() + 2);
    text.push(quote);
    for character in string.chars() {
        match character {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            _ if character == quote => text.extend(['\\', quote]),
            _ if is_printable(character) => text.push(character),
            _ => push_escape(&mut text, character),
        }
    }
    text.push(quote);
    text
}

/// Python's `repr` of a list of strings.
pub fn repr_list<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> String {
    let items = strings.into_iter().map(|string| repr_str(string.as_ref()));
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// Python's `repr` of a dict with strings for keys. Values are given as they are printed.
pub fn repr_dict<S: AsRef<str>, V: Display>(fields: impl IntoIterator<Item = (S, V)>) -> String {
    let fields = fields.into_iter();
    let fields = fields.map(|(name, value)| format!("{}: {value}", repr_str(name.as_ref())));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

/// A text with escapes for everything that is not ASCII, as Python's `ascii` has it.
pub(super) fn ascii(repr: &str) -> String {
    let mut text = String::with_capacity(repr.len());
    for character in repr.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            push_escape(&mut text, character);
        }
    }
    text
}

/// Whether `repr` shows a character as it is: all but controls, separators other than the space, and unassigned code
/// points.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    // After another character, Rust's debug form escapes by the same Unicode categories as Python does.
    let mut after_letter = [0; 5];
    after_letter[0] = b'a';
    let length = 1 + character.encode_utf8(&mut after_letter[1..]).len();
    let text = after_letter.get(..length);
    let text = text.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.is_some_and(|text| text.escape_debug().nth(1) != Some('\\'))
}

fn push_escape(text: &mut String, character: char) {
    let code = u32::from(character);
    // Writing to a String cannot fail.
    let _ = match code {
        0..=0xff => write!(text, "\\x{code:02x}"),
        0x100..=0xffff => write!(text, "\\u{code:04x}"),
        _ => write!(text, "\\U{code:08x}"),
    };
}
