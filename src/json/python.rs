//! The spellings of Python's `repr` for floats, strings and lists of strings, which prompts, seeds and error
//! messages share with the Python tools.

use std::fmt::Write;

/// Python's `repr` of a finite float: the shortest digits that read back the same, with an exponent below 1e-4 and
/// from 1e16 on. Infinities and NaN are spelled `inf`, `-inf` and `nan`.
pub fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Python's `repr` of a string: single quotes, or double ones if it holds only single ones; what cannot be
/// printed is escaped.
pub fn python_string(string: &str) -> String {
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
pub fn python_list<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> String {
    let items: Vec<String> = strings
        .into_iter()
        .map(|string| python_string(string.as_ref()))
        .collect();
    format!("[{}]", items.join(", "))
}

/// Whether Python's `repr` shows a character as it is: all but controls, separators other than the space, and
/// code points that mean nothing yet.
pub fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    // After another character, Rust's debug form escapes by the same Unicode categories as Python does.
    let mut after_letter = [0; 5];
    after_letter[0] = b'a';
    let length = 1 + character.encode_utf8(&mut after_letter[1..]).len();
    let text = after_letter
        .get(..length)
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_like_pythons() {
        for (value, expected) in [
            (2.0, "2.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e22, "1.5e+22"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (9007199254740993.0, "9007199254740992.0"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(python_float(value), expected);
        }
    }

    #[test]
    fn strings_read_like_pythons() {
        for (string, expected) in [
            ("two", "'two'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\\\n\r\t", "'a\\\\\\n\\r\\t'"),
            ("\u{0}\u{7f}\u{a0}\u{ad}", "'\\x00\\x7f\\xa0\\xad'"),
            (
                "\u{2028}\u{3000}\u{e000}\u{10ffff}",
                "'\\u2028\\u3000\\ue000\\U0010ffff'",
            ),
            ("é日🙂\u{301}", "'é日🙂\u{301}'"),
        ] {
            assert_eq!(python_string(string), expected);
        }
        assert_eq!(python_list(["a", "it's"]), r#"['a', "it's"]"#);
    }
}
