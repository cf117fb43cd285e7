//! [`validate`] and the [`Scanner`] under it: one pass over a text that builds nothing and never recurses.

use super::error::{Problem, SyntaxError};

/// The deepest nesting of arrays and objects that is still well-formed.
pub const MAX_DEPTH: usize = 1024;

const WORDS: usize = MAX_DEPTH / 64;

/// Checks that `text` is exactly one JSON value, by the rules of orjson: a number may not overflow a 64-bit float,
/// surrogates come in pairs, and nesting ends at [`MAX_DEPTH`].
///
/// # Errors
/// The first violation and its place.
pub fn validate(text: &str) -> Result<(), SyntaxError> {
    let mut scanner = Scanner::new(text);
    scanner.begin()?;
    scanner.value()?;
    scanner.end()
}

/// A position in a text, and the brackets that are open there.
pub(super) struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    pub(super) at: usize,
    /// One bit per open bracket, set for an object.
    objects: [u64; WORDS],
    depth: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
            objects: [0; WORDS],
            depth: 0,
        }
    }

    /// The text between two positions that this scanner has stopped at.
    pub(super) fn slice(&self, from: usize, to: usize) -> &'a str {
        self.text.get(from..to).unwrap_or_default()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Goes on by one byte if it is `expected`.
    pub(super) fn take(&mut self, expected: u8) -> bool {
        let found = self.peek() == Some(expected);
        self.at += usize::from(found);
        found
    }

    pub(super) fn whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Goes to the first byte of the value.
    pub(super) fn begin(&mut self) -> Result<(), SyntaxError> {
        if self.text.starts_with('\u{feff}') {
            return Err(self.error(Problem::ByteOrderMark));
        }
        self.whitespace();
        match self.peek() {
            Some(_) => Ok(()),
            None => Err(self.error(Problem::Empty)),
        }
    }

    /// Checks that nothing follows the value.
    pub(super) fn end(&mut self) -> Result<(), SyntaxError> {
        self.whitespace();
        match self.peek() {
            Some(_) => Err(self.error(Problem::TrailingText)),
            None => Ok(()),
        }
    }

    pub(super) fn error(&self, problem: Problem) -> SyntaxError {
        self.error_at(self.at, problem)
    }

    fn error_at(&self, at: usize, problem: Problem) -> SyntaxError {
        let before = self.bytes.get(..at).unwrap_or(self.bytes);
        let continuation = |byte: &&u8| **byte & 0xc0 == 0x80;
        let column = 1 + before.len() - before.iter().filter(continuation).count();
        let is_cut_off = at >= self.bytes.len() && problem != Problem::Empty;
        let problem = if is_cut_off {
            Problem::UnexpectedEnd
        } else {
            problem
        };
        SyntaxError { problem, column }
    }

    pub(super) fn open(&mut self, object: bool) -> Result<(), SyntaxError> {
        let Some(word) = self.objects.get_mut(self.depth / 64) else {
            return Err(self.error(Problem::TooDeep));
        };
        let bit = 1 << (self.depth % 64);
        *word = if object { *word | bit } else { *word & !bit };
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    pub(super) fn close(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    fn in_object(&self) -> bool {
        let innermost = self.depth - 1;
        self.objects
            .get(innermost / 64)
            .is_some_and(|word| word >> (innermost % 64) & 1 == 1)
    }

    /// A key and its colon; gives the key with its quotes.
    pub(super) fn key(&mut self) -> Result<&'a str, SyntaxError> {
        self.whitespace();
        let from = self.at;
        match self.peek() {
            Some(b'"') => {}
            Some(b'}') => return Err(self.error(Problem::TrailingComma)),
            _ => return Err(self.error(Problem::ExpectedKey)),
        }
        self.string()?;
        let key = self.slice(from, self.at);
        self.whitespace();
        if !self.take(b':') {
            return Err(self.error(Problem::ExpectedColon));
        }
        Ok(key)
    }

    /// One value with everything in it.
    pub(super) fn value(&mut self) -> Result<(), SyntaxError> {
        let outside = self.depth;
        loop {
            self.whitespace();
            match self.peek() {
                Some(b'"') => self.string()?,
                Some(b'{') => {
                    self.open(true)?;
                    self.whitespace();
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        continue;
                    }
                    self.close();
                }
                Some(b'[') => {
                    self.open(false)?;
                    self.whitespace();
                    if self.peek() != Some(b']') {
                        continue;
                    }
                    self.close();
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                _ => return Err(self.error(Problem::ExpectedValue)),
            }
            if !self.next_in(outside)? {
                return Ok(());
            }
        }
    }

    /// After a value: closes what ends here, and says whether another value follows within the outermost one.
    fn next_in(&mut self, outside: usize) -> Result<bool, SyntaxError> {
        while self.depth > outside {
            self.whitespace();
            match (self.in_object(), self.peek()) {
                (true, Some(b',')) => {
                    self.at += 1;
                    self.key()?;
                    return Ok(true);
                }
                (false, Some(b',')) => {
                    self.at += 1;
                    self.whitespace();
                    if self.peek() == Some(b']') {
                        return Err(self.error(Problem::TrailingComma));
                    }
                    return Ok(true);
                }
                (true, Some(b'}')) | (false, Some(b']')) => self.close(),
                (true, _) => return Err(self.error(Problem::ExpectedCommaOrBrace)),
                (false, _) => return Err(self.error(Problem::ExpectedCommaOrBracket)),
            }
        }
        Ok(false)
    }

    fn literal(&mut self, word: &str) -> Result<(), SyntaxError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(());
        }
        let cut_off = word.as_bytes().starts_with(rest);
        Err(self.error(if cut_off {
            Problem::UnexpectedEnd
        } else {
            Problem::ExpectedValue
        }))
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == from {
            Err(self.error(Problem::ExpectedDigit))
        } else {
            Ok(())
        }
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        // Numbers with fewer whole digits and no exponent are below the largest float.
        const SAFE_DIGITS: usize = 308;

        let from = self.at;
        self.take(b'-');
        let whole = self.at;
        let zero = self.peek() == Some(b'0');
        self.digits()?;
        let whole_digits = self.at - whole;
        if zero && whole_digits > 1 {
            return Err(self.error_at(from, Problem::LeadingZero));
        }
        if self.take(b'.') {
            self.digits()?;
        }
        let exponent = self.take(b'e') || self.take(b'E');
        if exponent {
            if !self.take(b'-') {
                self.take(b'+');
            }
            self.digits()?;
        }
        if exponent || whole_digits > SAFE_DIGITS {
            let value: f64 = self.slice(from, self.at).parse().unwrap_or(f64::INFINITY);
            if value.is_infinite() {
                return Err(self.error_at(from, Problem::Overflow));
            }
        }
        Ok(())
    }

    /// A string with its quotes.
    fn string(&mut self) -> Result<(), SyntaxError> {
        self.at += 1;
        loop {
            self.at += plain_prefix(self.bytes.get(self.at..).unwrap_or_default());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.error(Problem::ControlCharacter)),
                None => return Err(self.error(Problem::UnexpectedEnd)),
            }
        }
    }

    fn escape(&mut self) -> Result<(), SyntaxError> {
        let from = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => {
                self.at += 1;
                match self.hex()? {
                    0xd800..=0xdbff => {
                        let paired = self.take(b'\\')
                            && self.take(b'u')
                            && (0xdc00..=0xdfff).contains(&self.hex()?);
                        if paired {
                            Ok(())
                        } else {
                            Err(self.error_at(from, Problem::LoneSurrogate))
                        }
                    }
                    0xdc00..=0xdfff => Err(self.error_at(from, Problem::LoneSurrogate)),
                    _ => Ok(()),
                }
            }
            _ => Err(self.error(Problem::Escape)),
        }
    }

    fn hex(&mut self) -> Result<u32, SyntaxError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.error(Problem::Escape));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }
}

/// The number of bytes before the first quote, backslash or control character: most of every request, so eight
/// at a time.
fn plain_prefix(bytes: &[u8]) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The high bit of each zero byte; above the lowest of them bits can be wrong, which is why only that counts.
    let zeros = |word: u64| word.wrapping_sub(LOW) & !word & HIGH;

    let (words, rest) = bytes.as_chunks::<8>();
    for (position, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let control = word.wrapping_sub(LOW * 0x20) & !word & HIGH;
        let found = control
            | zeros(word ^ (LOW * u64::from(b'"')))
            | zeros(word ^ (LOW * u64::from(b'\\')));
        if found != 0 {
            return position * 8 + (found.trailing_zeros() / 8) as usize;
        }
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    words.len() * 8 + rest.iter().position(special).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Option<Problem> {
        validate(text).err().map(|error| error.problem)
    }

    #[test]
    fn well_formed_values_pass() {
        for text in [
            "0",
            "-0",
            "-0.0",
            "1E5",
            "1e+5",
            "0e999",
            "1e-400",
            "1.7976931348623157e308",
            " \t\r\n1 \n",
            "null",
            "true",
            "false",
            "[]",
            "{}",
            "[[],{}]",
            r#"{"a" :1 , "b":[1,2]}"#,
            r#""\ud83d\ude00\/\u0000""#,
            "\"\u{7f}\"",
            "\"\u{2028}ü\"",
            &"9".repeat(308),
            &format!("0.{}1", "0".repeat(400)),
        ] {
            assert_eq!(problem(text), None, "{text}");
        }
    }

    #[test]
    fn malformed_values_say_why() {
        for (text, expected) in [
            ("", Problem::Empty),
            (" \n", Problem::Empty),
            ("\u{feff}{}", Problem::ByteOrderMark),
            ("NaN", Problem::ExpectedValue),
            ("Infinity", Problem::ExpectedValue),
            ("-Infinity", Problem::ExpectedDigit),
            ("nul", Problem::UnexpectedEnd),
            ("nulL", Problem::ExpectedValue),
            ("\u{a0}1", Problem::ExpectedValue),
            ("\u{b}1", Problem::ExpectedValue),
            ("1e400", Problem::Overflow),
            ("-1e400", Problem::Overflow),
            ("1.7976931348623159e308", Problem::Overflow),
            (&"9".repeat(309), Problem::Overflow),
            ("01", Problem::LeadingZero),
            ("-00", Problem::LeadingZero),
            ("1.", Problem::UnexpectedEnd),
            ("[1.]", Problem::ExpectedDigit),
            (".5", Problem::ExpectedValue),
            ("+1", Problem::ExpectedValue),
            ("[1,]", Problem::TrailingComma),
            (r#"{"a":1,}"#, Problem::TrailingComma),
            ("{1:2}", Problem::ExpectedKey),
            (r#"{"a" 1}"#, Problem::ExpectedColon),
            (r#"{"a":1]"#, Problem::ExpectedCommaOrBrace),
            ("[1}", Problem::ExpectedCommaOrBracket),
            ("{}{}", Problem::TrailingText),
            ("[", Problem::UnexpectedEnd),
            (r#"{"a""#, Problem::UnexpectedEnd),
            ("\"a", Problem::UnexpectedEnd),
            ("\"\t\"", Problem::ControlCharacter),
            ("\"123456\u{1}\"", Problem::ControlCharacter),
            (r#""\x""#, Problem::Escape),
            (r#""\u12g4""#, Problem::Escape),
            (r#""\ud800""#, Problem::LoneSurrogate),
            (r#""\udc00""#, Problem::LoneSurrogate),
            (r#""\ud83d\u0041""#, Problem::LoneSurrogate),
            (r#"{"\ud800":1}"#, Problem::LoneSurrogate),
        ] {
            assert_eq!(problem(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn nesting_ends_at_the_limit() {
        let arrays = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let objects = |depth: usize| r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth);
        assert_eq!(problem(&arrays(MAX_DEPTH)), None);
        assert_eq!(problem(&objects(MAX_DEPTH)), None);
        assert_eq!(problem(&arrays(MAX_DEPTH + 1)), Some(Problem::TooDeep));
        assert_eq!(problem(&objects(MAX_DEPTH + 1)), Some(Problem::TooDeep));
        assert_eq!(problem(&"[".repeat(1_000_000)), Some(Problem::TooDeep));
    }

    #[test]
    fn the_column_counts_characters() {
        let error = validate("{\"é\": tru}").unwrap_err();
        assert_eq!((error.problem, error.column), (Problem::ExpectedValue, 7));
        assert_eq!(error.to_string(), "expected a JSON value at column 7");
    }

    #[test]
    fn special_bytes_are_found_at_every_offset() {
        for length in 0..40 {
            for special in [b'"', b'\\', 0x1f, 0] {
                let mut bytes = vec![0xc3; length];
                bytes.push(special);
                bytes.extend([b'"'; 9]);
                assert_eq!(plain_prefix(&bytes), length);
            }
            assert_eq!(plain_prefix(&vec![b' '; length]), length);
        }
    }
}
