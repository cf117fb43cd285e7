//! Why a text is not the JSON that it should be.

use super::scan::MAX_DEPTH;

/// Where and why a text is not one JSON value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at column {column}")]
pub struct SyntaxError {
    /// What is wrong there.
    pub problem: Problem,
    /// The place, in characters, the first being 1.
    pub column: usize,
}

/// What makes a text malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the variants are")]
pub enum Problem {
    #[error("there is no JSON value; remove the blank line,")]
    Empty,
    #[error("a UTF-8 byte order mark is not allowed; save the file without it,")]
    ByteOrderMark,
    #[error("the text ends in the middle of a value")]
    UnexpectedEnd,
    /// Something else where a value must start; also `NaN` and `Infinity`.
    #[error("expected a JSON value")]
    ExpectedValue,
    #[error("expected a string key")]
    ExpectedKey,
    #[error("expected ':'")]
    ExpectedColon,
    #[error("expected ',' or ']'")]
    ExpectedCommaOrBracket,
    #[error("expected ',' or '}}'")]
    ExpectedCommaOrBrace,
    #[error("a trailing comma is not allowed")]
    TrailingComma,
    #[error("there is more text after the value")]
    TrailingText,
    /// `01`.
    #[error("a number with a leading zero is not allowed")]
    LeadingZero,
    /// `-`, `1.` or `1e`.
    #[error("expected a digit")]
    ExpectedDigit,
    #[error("the number is too large for a 64-bit float")]
    Overflow,
    /// U+0000 to U+001F in a string.
    #[error("a control character in a string must be escaped")]
    ControlCharacter,
    /// A backslash before something that has no meaning.
    #[error("unknown escape sequence in a string")]
    Escape,
    #[error("a lone surrogate is not a character")]
    LoneSurrogate,
    #[error("the value nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Why a text is not a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// It is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// It is JSON, but another type; what it is.
    #[error("expected an object, got {0}")]
    NotAnObject(&'static str),
}

/// A text that is not a [`Path`](super::Path).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no path; write it as a.b[0].c")]
pub struct PathError(pub(super) String);
