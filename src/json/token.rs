//! The scanner's steps over words, numbers and strings.

use super::scan::Scanner;
use super::syntax_error::{Problem, SyntaxError};

/// What a string's text looks like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    Plain,
    Escaped,
}

impl Scanner<'_> {
    pub(super) fn literal(&mut self, word: &str) -> Result<(), SyntaxError> {
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

    pub(super) fn number(&mut self) -> Result<(), SyntaxError> {
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
    pub(super) fn string(&mut self) -> Result<Spelling, SyntaxError> {
        let mut spelling = Spelling::Plain;
        self.at += 1;
        loop {
            self.at += plain_prefix(self.bytes.get(self.at..).unwrap_or_default());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(spelling);
                }
                Some(b'\\') => {
                    spelling = Spelling::Escaped;
                    self.escape()?;
                }
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
