//! Regular expressions that other people wrote.

use regex::{Regex, RegexBuilder};

use super::CheckError;

/// Bytes that a compiled expression, or the cache of its search, may take.
const SIZE_LIMIT: usize = 1 << 20;
const NEST_LIMIT: u32 = 64;

/// Compiles `pattern` within limits, else says why not.
pub(super) fn compile(pattern: &str, ignore_case: bool) -> Result<Regex, String> {
    RegexBuilder::new(pattern)
        .case_insensitive(ignore_case)
        .size_limit(SIZE_LIMIT)
        .dfa_size_limit(SIZE_LIMIT)
        .nest_limit(NEST_LIMIT)
        .build()
        .map_err(|error| format!("is no usable regular expression ({error})"))
}

/// The setting `extract`, which finds the answer in a longer text.
pub(super) fn compile_extract(pattern: Option<&str>) -> Result<Option<Regex>, CheckError> {
    pattern
        .map(|pattern| {
            compile(pattern, false).map_err(|problem| CheckError::Setting {
                name: "extract",
                problem,
            })
        })
        .transpose()
}

/// The first group of the last match, or the match itself where the expression has no group: models come to their
/// answer at the end. Without an expression the whole text.
pub(super) fn extract<'a>(regex: Option<&Regex>, text: &'a str) -> Option<&'a str> {
    let Some(regex) = regex else {
        return Some(text);
    };
    let captures = regex.captures_iter(text).last()?;
    let group = usize::from(regex.captures_len() > 1);
    captures.get(group).map(|found| found.as_str())
}
