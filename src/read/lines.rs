//! [`Lines`]: the lines of an input, one at a time, from one buffer.

use std::io::{self, Read};

use memchr::memchr2;

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;
/// The longest line that is read, in bytes: far above any request, and a bound on the buffer.
const LONGEST: usize = 1 << 30;

/// One line without its line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub text: &'a [u8],
    /// Its line number in the input, from 1.
    pub number: u64,
    /// Whether a line end followed; the last line may have none.
    pub terminated: bool,
}

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The input cannot be read further, or its compression is damaged.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is longer than the limit.
    #[error("the next line is longer than {LONGEST} bytes; is this a file of JSON lines?")]
    TooLong,
}

/// Splits an input at LF, CRLF and lone CR.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The part of the buffer that is filled and not yet returned.
    from: usize,
    to: usize,
    ended: bool,
    /// Whether the previous line ended with CR, so that an LF after it belongs to its line end.
    after_return: bool,
    number: u64,
    longest: usize,
}

impl<R: Read> Lines<R> {
    pub fn new(input: R) -> Self {
        Self::with_sizes(input, CHUNK, LONGEST)
    }

    fn with_sizes(input: R, chunk: usize, longest: usize) -> Self {
        Self {
            input,
            buffer: vec![0; chunk],
            from: 0,
            to: 0,
            ended: false,
            after_return: false,
            number: 0,
            longest,
        }
    }

    /// Returns the number of the last line that was returned.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn next(&mut self) -> Result<Option<Line<'_>>, LineError> {
        if self.after_return {
            if self.from == self.to {
                self.fill()?;
            }
            self.from += usize::from(self.pending().first() == Some(&b'\n'));
            self.after_return = false;
        }
        let mut searched = 0;
        let (length, terminated) = loop {
            let pending = self.pending();
            if let Some(at) = memchr2(b'\n', b'\r', pending.get(searched..).unwrap_or_default()) {
                self.after_return = pending.get(searched + at) == Some(&b'\r');
                break (searched + at, true);
            }
            searched = pending.len();
            if self.ended {
                if searched == 0 {
                    return Ok(None);
                }
                break (searched, false);
            }
            if searched > self.longest {
                return Err(LineError::TooLong);
            }
            self.fill()?;
        };
        let start = self.from;
        self.from += length + usize::from(terminated);
        self.number += 1;
        Ok(Some(Line {
            text: self.buffer.get(start..start + length).unwrap_or_default(),
            number: self.number,
            terminated,
        }))
    }

    fn pending(&self) -> &[u8] {
        self.buffer.get(self.from..self.to).unwrap_or_default()
    }

    fn fill(&mut self) -> Result<(), LineError> {
        self.buffer.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        if self.to == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let free = self.buffer.get_mut(self.to..).unwrap_or_default();
        let read = loop {
            match self.input.read(free) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.to += read;
        self.ended = read == 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            let (now, later) = self.0.split_at(count);
            buffer[..count].copy_from_slice(now);
            self.0 = later;
            Ok(count)
        }
    }

    fn lines(text: &str, step: usize) -> Vec<(String, u64, bool)> {
        let mut lines = Lines::with_sizes(Trickle(text.as_bytes(), step), 2, 1 << 20);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push((
                String::from_utf8(line.text.to_vec()).unwrap(),
                line.number,
                line.terminated,
            ));
        }
        all
    }

    #[test]
    fn all_line_ends_count_once_wherever_the_input_pauses() {
        for step in 1..8 {
            let found = lines("a\nbb\r\n\rccc\n\r\n\u{2028}d\u{b}", step);
            let expected = ["a", "bb", "", "ccc", "", "\u{2028}d\u{b}"];
            assert_eq!(
                found.iter().map(|line| line.0.as_str()).collect::<Vec<_>>(),
                expected
            );
            assert_eq!(
                found.iter().map(|line| line.1).collect::<Vec<_>>(),
                [1, 2, 3, 4, 5, 6]
            );
            assert_eq!(found.iter().filter(|line| !line.2).count(), 1);
            assert!(!found[5].2);

            assert_eq!(lines("x\r", step), [("x".to_owned(), 1, true)]);
            assert_eq!(lines("x\r\n", step), [("x".to_owned(), 1, true)]);
            assert_eq!(lines("", step), []);
            assert_eq!(lines("\n", step), [(String::new(), 1, true)]);
        }
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let mut lines = Lines::with_sizes(io::repeat(b'x'), 16, 1000);
        assert!(matches!(lines.next(), Err(LineError::TooLong)));
        assert!(lines.buffer.len() <= 2048);
    }
}
