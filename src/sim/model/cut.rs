//! Where a text ends early: [`cut`].

use serde::Deserialize;

/// The strings that end a text: one, several, or none.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
pub(super) enum Stop {
    One(String),
    Several(Vec<String>),
    #[default]
    None,
}

impl Stop {
    pub(super) fn strings(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
            Self::None => &[],
        }
    }
}

/// Why a text ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    /// All is said.
    Done,
    /// It met this stop string.
    Stopped(String),
    /// There were no tokens left.
    Length,
}

impl End {
    /// The reason in a chat or a completion.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Done | Self::Stopped(_) => "stop",
        }
    }

    /// The stop string.
    pub(super) fn stop_string(&self) -> Option<&str> {
        match self {
            Self::Stopped(stop) => Some(stop),
            _ => None,
        }
    }
}

/// Cuts a text before the first stop string, or after `most` words, whichever comes first.
pub(super) fn cut(text: &mut String, stop: &Stop, most: Option<u64>) -> End {
    let end = most.and_then(|most| end_of_word(text, most));
    if let Some(end) = end {
        text.truncate(end);
    }
    if let Some((at, stop)) = first_stop(text.as_bytes(), stop) {
        let stop = stop.to_owned();
        text.truncate(at);
        return End::Stopped(stop);
    }
    end.map_or(End::Done, |_| End::Length)
}

/// Where the first stop string begins, and which it is.
pub(super) fn first_stop<'a>(text: &[u8], stop: &'a Stop) -> Option<(usize, &'a str)> {
    let stops = stop.strings().iter().filter(|stop| !stop.is_empty());
    let places = stops.filter_map(|stop| {
        let at = memchr::memmem::find(text, stop.as_bytes())?;
        Some((at, stop.as_str()))
    });
    places.min_by_key(|(at, _)| *at)
}

/// Where the word ends that is the last of `most`, if there are more.
fn end_of_word(text: &str, most: u64) -> Option<usize> {
    let most = usize::try_from(most).ok()?;
    let mut words = text.split_ascii_whitespace();
    let last = match most.checked_sub(1) {
        Some(before) => words.nth(before)?,
        None => "",
    };
    words.next()?;
    if most == 0 {
        return Some(0);
    }
    Some(last.as_ptr() as usize + last.len() - text.as_ptr() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str, stop: &str, most: Option<u64>) -> (String, End) {
        let stop: Stop = serde_json::from_str(stop).unwrap();
        let mut text = text.to_owned();
        let end = cut(&mut text, &stop, most);
        (text, end)
    }

    #[test]
    fn a_text_ends_at_what_comes_first() {
        let text = "one two  three four";
        let stopped = |stop: &str| End::Stopped(stop.into());
        for (stop, most, left, end) in [
            ("null", None, text, End::Done),
            ("null", Some(4), text, End::Done),
            ("null", Some(3), "one two  three", End::Length),
            ("null", Some(0), "", End::Length),
            ("\"thr\"", None, "one two  ", stopped("thr")),
            (r#"["four", "two"]"#, None, "one ", stopped("two")),
            (r#"["four"]"#, Some(2), "one two", End::Length),
            (r#"["", "five"]"#, None, text, End::Done),
        ] {
            assert_eq!(
                parts(text, stop, most),
                (left.to_owned(), end),
                "{stop} {most:?}"
            );
        }
    }
}
