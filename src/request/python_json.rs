//! [`Reader`]: JSON text as Python's `json` reads it, turned into what it writes.

use std::collections::HashMap;
use std::fmt::Write;

use super::extra_body::ExtraBodyError;
use crate::json::python_float;

/// Deeper texts are refused: reading them recurses.
const MAX_DEPTH: usize = 256;
/// Python refuses to convert longer whole numbers.
const MAX_DIGITS: usize = 4300;

/// An object's fields as they are written. Keys are in their escaped form, which is the same for equal strings.
#[derive(Default)]
pub(super) struct Fields {
    pub list: Vec<(String, String)>,
    pub positions: HashMap<String, usize>,
}

impl Fields {
    pub fn set(&mut self, key: String, value: String) {
        let known = self
            .positions
            .get(&key)
            .and_then(|position| self.list.get_mut(*position));
        match known {
            Some(field) => field.1 = value,
            None => {
                self.positions.insert(key.clone(), self.list.len());
                self.list.push((key, value));
            }
        }
    }
}

/// Reads what Python's `json.loads` reads, and gives what `json.dumps` writes of it.
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            depth: 0,
        }
    }

    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, expected: u8) -> bool {
        let found = self.peek() == Some(expected);
        self.at += usize::from(found);
        found
    }

    pub fn whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    pub fn malformed(&self) -> ExtraBodyError {
        ExtraBodyError::Malformed(self.at)
    }

    pub fn value(&mut self) -> Result<String, ExtraBodyError> {
        match self.peek() {
            Some(b'{') => {
                let fields = self.fields()?;
                let fields: Vec<String> = fields
                    .list
                    .iter()
                    .map(|(key, value)| format!("{key}: {value}"))
                    .collect();
                Ok(format!("{{{}}}", fields.join(", ")))
            }
            Some(b'[') => Ok(format!("[{}]", self.items()?.join(", "))),
            Some(b'"') => self.string(),
            _ => self
                .literal()
                .map_or_else(|| self.number(), |word| Ok(word.to_owned())),
        }
    }

    /// The words, which Python extends by the floats that JSON has no text for.
    fn literal(&mut self) -> Option<&'static str> {
        const WORDS: [&str; 6] = ["null", "true", "false", "NaN", "Infinity", "-Infinity"];
        let rest = self.text.get(self.at..)?;
        let word = WORDS.into_iter().find(|word| rest.starts_with(word))?;
        self.at += word.len();
        Some(word)
    }

    fn enter(&mut self) -> Result<(), ExtraBodyError> {
        if self.depth == MAX_DEPTH {
            return Err(self.malformed());
        }
        self.depth += 1;
        self.at += 1;
        self.whitespace();
        Ok(())
    }

    fn items(&mut self) -> Result<Vec<String>, ExtraBodyError> {
        self.enter()?;
        let mut items = Vec::new();
        if !self.take(b']') {
            loop {
                items.push(self.value()?);
                self.whitespace();
                if self.take(b']') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.malformed());
                }
                self.whitespace();
            }
        }
        self.depth -= 1;
        Ok(items)
    }

    pub fn fields(&mut self) -> Result<Fields, ExtraBodyError> {
        self.enter()?;
        let mut fields = Fields::default();
        if !self.take(b'}') {
            loop {
                if self.peek() != Some(b'"') {
                    return Err(self.malformed());
                }
                let key = self.string()?;
                self.whitespace();
                if !self.take(b':') {
                    return Err(self.malformed());
                }
                self.whitespace();
                let value = self.value()?;
                fields.set(key, value);
                self.whitespace();
                if self.take(b'}') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.malformed());
                }
                self.whitespace();
            }
        }
        self.depth -= 1;
        Ok(fields)
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - from
    }

    fn number(&mut self) -> Result<String, ExtraBodyError> {
        let from = self.at;
        self.take(b'-');
        let zero = self.take(b'0');
        let digits = if zero { 1 } else { self.digits() };
        if digits == 0 {
            return Err(self.malformed());
        }
        let mut whole = true;
        let end = self.at;
        if self.take(b'.') {
            if self.digits() == 0 {
                return Err(ExtraBodyError::Malformed(end));
            }
            whole = false;
        }
        let end = self.at;
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'-') {
                self.take(b'+');
            }
            if self.digits() == 0 {
                return Err(ExtraBodyError::Malformed(end));
            }
            whole = false;
        }
        let text = self.text.get(from..self.at).unwrap_or_default();
        match (whole, zero) {
            (true, _) if digits > MAX_DIGITS => Err(ExtraBodyError::Malformed(from)),
            (true, true) => Ok("0".to_owned()),
            (true, false) => Ok(text.to_owned()),
            (false, _) => Ok(match text.parse::<f64>() {
                Ok(value) if value.is_finite() => python_float(value),
                _ if text.starts_with('-') => "-Infinity".to_owned(),
                _ => "Infinity".to_owned(),
            }),
        }
    }

    /// A string in ASCII, where each half of a surrogate pair is an escape of its own.
    fn string(&mut self) -> Result<String, ExtraBodyError> {
        let mut quoted = String::from("\"");
        self.at += 1;
        loop {
            let next = self
                .text
                .get(self.at..)
                .and_then(|rest| rest.chars().next());
            match next {
                Some('"') => {
                    self.at += 1;
                    quoted.push('"');
                    return Ok(quoted);
                }
                Some('\\') => {
                    self.at += 1;
                    let unit = self.escape()?;
                    push_unit(&mut quoted, unit);
                }
                Some(character) if character >= ' ' => {
                    self.at += character.len_utf8();
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        push_unit(&mut quoted, *unit);
                    }
                }
                _ => return Err(self.malformed()),
            }
        }
    }

    fn escape(&mut self) -> Result<u16, ExtraBodyError> {
        let unit = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => u16::from(byte),
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => 10,
            Some(b'r') => 13,
            Some(b't') => 9,
            Some(b'u') => {
                let digits = self
                    .text
                    .get(self.at + 1..self.at + 5)
                    .ok_or_else(|| self.malformed())?;
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return Err(self.malformed());
                }
                self.at += 4;
                u16::from_str_radix(digits, 16).map_err(|_| self.malformed())?
            }
            _ => return Err(self.malformed()),
        };
        self.at += 1;
        Ok(unit)
    }
}

fn push_unit(quoted: &mut String, unit: u16) {
    match unit {
        8 => quoted.push_str("\\b"),
        9 => quoted.push_str("\\t"),
        10 => quoted.push_str("\\n"),
        12 => quoted.push_str("\\f"),
        13 => quoted.push_str("\\r"),
        0x22 => quoted.push_str("\\\""),
        0x5c => quoted.push_str("\\\\"),
        0x20..=0x7e => quoted.extend(u8::try_from(unit).map(char::from)),
        _ => {
            // Writing to a String cannot fail.
            let _ = write!(quoted, "\\u{unit:04x}");
        }
    }
}
