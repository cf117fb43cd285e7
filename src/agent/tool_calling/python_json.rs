//! JSON as Python 3.13 reads it and orjson writes it, which is what happens to the arguments of a tool call
//! in NeMo Gym: [`loads`], and [`Value`], which is written by [`Value::write`].

use std::fmt;

use indexmap::IndexMap;
use serde_json::Number;

use crate::json::MAX_DEPTH;

/// A value, whose leaves are kept as they will be written.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    /// Anything but a list or an object.
    Leaf(String),
    List(Vec<Value>),
    /// By the written form of the keys. Of two of one name the last counts, at the place of the first.
    Object(IndexMap<String, Value>),
}

/// Why a text can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LoadError {
    /// What a `JSONDecodeError` says.
    Syntax {
        what: &'static str,
        line: usize,
        column: usize,
        /// Code points before the place.
        position: usize,
    },
    /// Lists and objects nest deeper than [`MAX_DEPTH`].
    TooDeep,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax {
                what,
                line,
                column,
                position,
            } => write!(f, "{what}: line {line} column {column} (char {position})"),
            Self::TooDeep => write!(f, "they nest deeper than {MAX_DEPTH} levels"),
        }
    }
}

/// Reads a text as `json.loads` does.
///
/// # Errors
/// What is wrong first, in Python's words.
pub(super) fn loads(text: &str) -> Result<Value, LoadError> {
    let scanner = Scanner {
        text,
        bytes: text.as_bytes(),
    };
    if text.starts_with('\u{feff}') {
        return Err(scanner.error("Unexpected UTF-8 BOM (decode using utf-8-sig)", 0));
    }
    let (value, end) = scanner.value(scanner.blank(0), 0)?;
    let end = scanner.blank(end);
    match scanner.at(end) {
        None => Ok(value),
        Some(_) => Err(scanner.error("Extra data", end)),
    }
}

impl Value {
    /// Appends it as orjson writes it: without spaces.
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Leaf(text) => out.push_str(text),
            Self::List(values) => {
                out.push('[');
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    value.write(out);
                }
                out.push(']');
            }
            Self::Object(fields) => {
                out.push('{');
                for (index, (key, value)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(key);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// The scanner of CPython's `_json.c`, step by step: the same order of checks gives the same errors.
/// Places are in bytes and become code points where an error is made.
struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
}

type Scanned<T> = Result<(T, usize), LoadError>;

impl Scanner<'_> {
    fn at(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    fn blank(&self, mut at: usize) -> usize {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.at(at) {
            at += 1;
        }
        at
    }

    fn digits(&self, mut at: usize) -> usize {
        while self.at(at).is_some_and(|byte| byte.is_ascii_digit()) {
            at += 1;
        }
        at
    }

    fn slice(&self, from: usize, to: usize) -> &str {
        self.text.get(from..to).unwrap_or_default()
    }

    fn error(&self, what: &'static str, at: usize) -> LoadError {
        let before = self.slice(0, at);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        LoadError::Syntax {
            what,
            line: before.matches('\n').count() + 1,
            column: self.slice(line_start, at).chars().count() + 1,
            position: before.chars().count(),
        }
    }

    fn value(&self, at: usize, depth: usize) -> Scanned<Value> {
        const WORDS: [(&str, &str); 6] = [
            ("null", "null"),
            ("true", "true"),
            ("false", "false"),
            // What is no finite number is written as null.
            ("NaN", "null"),
            ("Infinity", "null"),
            ("-Infinity", "null"),
        ];
        match self.at(at) {
            Some(b'"') => {
                let (text, end) = self.string(at)?;
                Ok((Value::Leaf(text), end))
            }
            Some(b'{' | b'[') if depth >= MAX_DEPTH => Err(LoadError::TooDeep),
            Some(b'{') => self.object(at + 1, depth + 1),
            Some(b'[') => self.list(at + 1, depth + 1),
            _ => {
                let rest = self.text.get(at..).unwrap_or_default();
                let word = WORDS.iter().find(|(word, _)| rest.starts_with(word));
                match word {
                    Some((word, written)) => {
                        Ok((Value::Leaf((*written).to_owned()), at + word.len()))
                    }
                    None => self.number(at),
                }
            }
        }
    }

    fn object(&self, at: usize, depth: usize) -> Scanned<Value> {
        let mut fields = IndexMap::new();
        let mut at = self.blank(at);
        if self.at(at) == Some(b'}') {
            return Ok((Value::Object(fields), at + 1));
        }
        loop {
            if self.at(at) != Some(b'"') {
                return Err(self.error("Expecting property name enclosed in double quotes", at));
            }
            let (key, end) = self.string(at)?;
            at = self.blank(end);
            if self.at(at) != Some(b':') {
                return Err(self.error("Expecting ':' delimiter", at));
            }
            let (value, end) = self.value(self.blank(at + 1), depth)?;
            fields.insert(key, value);
            at = self.blank(end);
            match self.at(at) {
                Some(b'}') => return Ok((Value::Object(fields), at + 1)),
                Some(b',') => {}
                _ => return Err(self.error("Expecting ',' delimiter", at)),
            }
            let comma = at;
            at = self.blank(at + 1);
            if self.at(at) == Some(b'}') {
                return Err(self.error("Illegal trailing comma before end of object", comma));
            }
        }
    }

    fn list(&self, at: usize, depth: usize) -> Scanned<Value> {
        let mut values = Vec::new();
        let mut at = self.blank(at);
        if self.at(at) == Some(b']') {
            return Ok((Value::List(values), at + 1));
        }
        loop {
            let (value, end) = self.value(at, depth)?;
            values.push(value);
            at = self.blank(end);
            match self.at(at) {
                Some(b']') => return Ok((Value::List(values), at + 1)),
                Some(b',') => {}
                _ => return Err(self.error("Expecting ',' delimiter", at)),
            }
            let comma = at;
            at = self.blank(at + 1);
            if self.at(at) == Some(b']') {
                return Err(self.error("Illegal trailing comma before end of array", comma));
            }
        }
    }

    fn number(&self, start: usize) -> Scanned<Value> {
        let first = start + usize::from(self.at(start) == Some(b'-'));
        let mut end = match self.at(first) {
            Some(b'0') => first + 1,
            Some(b'1'..=b'9') => self.digits(first),
            _ => return Err(self.error("Expecting value", start)),
        };
        let mut is_float = false;
        if self.at(end) == Some(b'.') {
            let after = self.digits(end + 1);
            if after > end + 1 {
                (is_float, end) = (true, after);
            }
        }
        if let Some(b'e' | b'E') = self.at(end) {
            let sign = usize::from(matches!(self.at(end + 1), Some(b'+' | b'-')));
            let after = self.digits(end + 1 + sign);
            if after > end + 1 + sign {
                (is_float, end) = (true, after);
            }
        }
        let text = self.slice(start, end);
        let written = match is_float {
            true => {
                let number = text.parse().ok().and_then(Number::from_f64);
                // orjson writes no plus.
                number.map_or_else(
                    || "null".to_owned(),
                    |number| number.to_string().replace("e+", "e"),
                )
            }
            false if text == "-0" => "0".to_owned(),
            // However large: the tool may know what to do with it.
            false => text.to_owned(),
        };
        Ok((Value::Leaf(written), end))
    }

    /// The string whose first quote is at `begin`, as it is written. A lone surrogate stays an escape.
    fn string(&self, begin: usize) -> Scanned<String> {
        let mut out = String::from('"');
        let mut at = begin + 1;
        loop {
            let from = at;
            while self
                .at(at)
                .is_some_and(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\')
            {
                at += 1;
            }
            out.push_str(self.slice(from, at));
            match self.at(at) {
                Some(b'"') => {
                    out.push('"');
                    return Ok((out, at + 1));
                }
                Some(b'\\') => at = self.escape(begin, at, &mut out)?,
                Some(_) => return Err(self.error("Invalid control character at", at)),
                None => return Err(self.error("Unterminated string starting at", begin)),
            }
        }
    }

    /// Appends what an escape stands for; gives the place after it.
    fn escape(&self, begin: usize, at: usize, out: &mut String) -> Result<usize, LoadError> {
        let character = match self.at(at + 1) {
            Some(b'u') => return self.code_point(at, out),
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(_) => return Err(self.error(r"Invalid \escape", at)),
            None => return Err(self.error("Unterminated string starting at", begin)),
        };
        push(character, out);
        Ok(at + 2)
    }

    fn code_point(&self, at: usize, out: &mut String) -> Result<usize, LoadError> {
        let unit = |at: usize| {
            self.hex(at + 2)
                .ok_or_else(|| self.error(r"Invalid \uXXXX escape", at + 1))
        };
        let high = unit(at)?;
        let mut end = at + 6;
        let mut code = u32::from(high);
        if (0xd800..0xdc00).contains(&code)
            && self.at(end) == Some(b'\\')
            && self.at(end + 1) == Some(b'u')
        {
            let low = u32::from(unit(end)?);
            if (0xdc00..0xe000).contains(&low) {
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                end += 6;
            }
        }
        match char::from_u32(code) {
            Some(character) => push(character, out),
            None => out.push_str(&format!("\\u{code:04x}")),
        }
        Ok(end)
    }

    /// Four hexadecimal digits, if anything follows them.
    fn hex(&self, at: usize) -> Option<u16> {
        self.at(at + 4)?;
        let digits = self.bytes.get(at..at + 4)?;
        digits.iter().try_fold(0, |code: u16, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            Some(code << 4 | u16::try_from(digit).ok()?)
        })
    }
}

fn push(character: char, out: &mut String) {
    match character {
        '"' | '\\' | '\u{0}'..='\u{1f}' => {
            let quoted = crate::json::quote(character.encode_utf8(&mut [0; 4]));
            let inner = quoted.strip_prefix('"');
            let inner = inner.and_then(|inner| inner.strip_suffix('"'));
            out.push_str(inner.unwrap_or_default());
        }
        _ => out.push(character),
    }
}
