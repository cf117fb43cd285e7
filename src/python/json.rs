//! JSON as Python reads it, with NaN, infinities and lone surrogates, and as Python's writers write it.
//!
//! [`loads`] is `json.loads` of CPython 3.13 with its error messages; [`Written`] is what was read, already in the
//! spelling of a [`Writer`]: leaves are kept as text, so nothing that Rust's strings and numbers cannot hold is lost.
//! serde_json reads neither NaN nor lone surrogates, and its errors are others.

use indexmap::IndexMap;
use serde_json::Number;

use super::repr_float;

/// What writes the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// `json.dumps`: ASCII only, a space after commas and colons.
    Dumps,
    /// The same with `separators=(",", ":")`.
    CompactDumps,
    /// `orjson.dumps`: UTF-8, no spaces, null for numbers that are not finite.
    Orjson,
}

impl Writer {
    /// Levels of lists and objects that are read.
    fn max_depth(self) -> usize {
        match self {
            Self::Dumps | Self::CompactDumps => 256,
            Self::Orjson => crate::json::MAX_DEPTH,
        }
    }
}

/// A value whose leaves are kept as they will be written.
#[derive(Debug, PartialEq)]
pub enum Written {
    /// Anything but a list or an object.
    Leaf(String),
    /// The values of a list.
    List(Vec<Written>),
    /// Values by the written form of their keys. The last of two equal keys counts, at the place of the first.
    Object(IndexMap<String, Written>),
}

/// Why a text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// What a `JSONDecodeError` says.
    #[error("{what}: line {line} column {column} (char {position})")]
    Syntax {
        /// Python's words.
        what: &'static str,
        /// The line, from 1.
        line: usize,
        /// The column in code points, from 1.
        column: usize,
        /// Code points before the place.
        position: usize,
    },
    /// Lists and objects nest deeper than this many levels.
    #[error("lists and objects nest deeper than {0} levels")]
    TooDeep(usize),
    /// A whole number has more digits than Python converts.
    #[error("a whole number has more than {MAX_DIGITS} digits")]
    TooLong,
}

/// Python refuses to convert longer whole numbers.
const MAX_DIGITS: usize = 4300;

/// Reads a text as `json.loads` does.
///
/// # Errors
/// What is wrong first, in Python's words.
pub fn loads(text: &str, writer: Writer) -> Result<Written, LoadError> {
    let scanner = Scanner {
        text,
        bytes: text.as_bytes(),
        writer,
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

impl Written {
    /// Appends the value as `writer` writes it. It must be the writer that the text was read for.
    pub fn write(&self, writer: Writer, out: &mut String) {
        let (comma, colon) = match writer {
            Writer::Dumps => (", ", ": "),
            Writer::CompactDumps | Writer::Orjson => (",", ":"),
        };
        match self {
            Self::Leaf(text) => out.push_str(text),
            Self::List(values) => {
                out.push('[');
                for (index, value) in values.iter().enumerate() {
                    out.push_str(if index > 0 { comma } else { "" });
                    value.write(writer, out);
                }
                out.push(']');
            }
            Self::Object(fields) => {
                out.push('{');
                for (index, (key, value)) in fields.iter().enumerate() {
                    out.push_str(if index > 0 { comma } else { "" });
                    out.extend([key, colon]);
                    value.write(writer, out);
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
    writer: Writer,
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

    fn value(&self, at: usize, depth: usize) -> Scanned<Written> {
        match self.at(at) {
            Some(b'{' | b'[') if depth >= self.writer.max_depth() => {
                Err(LoadError::TooDeep(self.writer.max_depth()))
            }
            Some(b'{') => self.object(at + 1, depth + 1),
            Some(b'[') => self.list(at + 1, depth + 1),
            _ => self.leaf(at),
        }
    }

    // Not inlined: functions that recurse need small stack frames.
    #[inline(never)]
    fn leaf(&self, at: usize) -> Scanned<Written> {
        const WORDS: [&str; 6] = ["null", "true", "false", "NaN", "Infinity", "-Infinity"];
        let rest = self.text.get(at..).unwrap_or_default();
        let (text, end) = if rest.starts_with('"') {
            self.string(at)?
        } else if let Some(word) = WORDS.into_iter().find(|word| rest.starts_with(word)) {
            let is_json = matches!(word, "null" | "true" | "false");
            let written = if is_json { word } else { self.not_finite(word) };
            (written.to_owned(), at + word.len())
        } else {
            self.number(at)?
        };
        Ok((Written::Leaf(text), end))
    }

    fn not_finite<'w>(&self, word: &'w str) -> &'w str {
        match self.writer {
            Writer::Dumps | Writer::CompactDumps => word,
            Writer::Orjson => "null",
        }
    }

    fn object(&self, at: usize, depth: usize) -> Scanned<Written> {
        let mut fields = IndexMap::new();
        let mut at = self.blank(at);
        if self.at(at) == Some(b'}') {
            return Ok((Written::Object(fields), at + 1));
        }
        loop {
            let (key, after) = self.key(at)?;
            let (value, after) = self.value(after, depth)?;
            fields.insert(key, value);
            let is_closed;
            (is_closed, at) = self.after_value(after, b'}')?;
            if is_closed {
                return Ok((Written::Object(fields), at));
            }
        }
    }

    /// A key and its colon.
    fn key(&self, at: usize) -> Scanned<String> {
        if self.at(at) != Some(b'"') {
            return Err(self.error("Expecting property name enclosed in double quotes", at));
        }
        let (key, end) = self.string(at)?;
        let colon = self.blank(end);
        match self.at(colon) {
            Some(b':') => Ok((key, self.blank(colon + 1))),
            _ => Err(self.error("Expecting ':' delimiter", colon)),
        }
    }

    fn list(&self, at: usize, depth: usize) -> Scanned<Written> {
        let mut values = Vec::new();
        let mut at = self.blank(at);
        if self.at(at) == Some(b']') {
            return Ok((Written::List(values), at + 1));
        }
        loop {
            let (value, after) = self.value(at, depth)?;
            values.push(value);
            let is_closed;
            (is_closed, at) = self.after_value(after, b']')?;
            if is_closed {
                return Ok((Written::List(values), at));
            }
        }
    }

    /// Whether a list or object is closed after a value, and where the scan goes on.
    fn after_value(&self, at: usize, close: u8) -> Scanned<bool> {
        let at = self.blank(at);
        match self.at(at) {
            Some(byte) if byte == close => return Ok((true, at + 1)),
            Some(b',') => {}
            _ => return Err(self.error("Expecting ',' delimiter", at)),
        }
        let next = self.blank(at + 1);
        match self.at(next) {
            Some(b'}') if close == b'}' => {
                Err(self.error("Illegal trailing comma before end of object", at))
            }
            Some(b']') if close == b']' => {
                Err(self.error("Illegal trailing comma before end of array", at))
            }
            _ => Ok((false, next)),
        }
    }

    fn number(&self, start: usize) -> Scanned<String> {
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
        let written = if is_float {
            self.float(text)
        } else if text == "-0" {
            "0".to_owned()
        } else if self.writer != Writer::Orjson && end - first > MAX_DIGITS {
            return Err(LoadError::TooLong);
        } else {
            text.to_owned()
        };
        Ok((written, end))
    }

    fn float(&self, text: &str) -> String {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        match (number, self.writer) {
            (Some(number), Writer::Dumps | Writer::CompactDumps) => repr_float(number),
            // orjson writes no plus.
            (Some(number), Writer::Orjson) => Number::from_f64(number)
                .map(|number| number.to_string().replace("e+", "e"))
                .unwrap_or_default(),
            (None, _) if text.starts_with('-') => self.not_finite("-Infinity").to_owned(),
            (None, _) => self.not_finite("Infinity").to_owned(),
        }
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
            let plain = self.slice(from, at);
            match self.writer {
                Writer::Dumps | Writer::CompactDumps => plain
                    .chars()
                    .for_each(|character| self.push(character, &mut out)),
                Writer::Orjson => out.push_str(plain),
            }
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
        self.push(character, out);
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
            Some(character) => self.push(character, out),
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

    fn push(&self, character: char, out: &mut String) {
        match character {
            '"' => out.push_str(r#"\""#),
            '\\' => out.push_str(r"\\"),
            '\u{8}' => out.push_str(r"\b"),
            '\u{c}' => out.push_str(r"\f"),
            '\n' => out.push_str(r"\n"),
            '\r' => out.push_str(r"\r"),
            '\t' => out.push_str(r"\t"),
            ' '..='~' => out.push(character),
            '\u{7f}'.. if self.writer == Writer::Orjson => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}
