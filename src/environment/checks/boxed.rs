//! LaTeX's `\boxed{}`, where models put their final answer.

/// What is in the last complete `\boxed{}` or `\fbox{}` of a text. One pass, however many boxes stay open.
pub(super) fn last_boxed(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    // Where the content begins of each brace that is open; none for braces of anything else.
    let mut open: Vec<Option<usize>> = Vec::new();
    let mut last: Option<(usize, usize)> = None;
    let mut is_escaped = false;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'{' => {
                let before = text.get(..at).map_or("", str::trim_end);
                let is_box = before.ends_with("\\boxed") || before.ends_with("\\fbox");
                open.push(is_box.then_some(at + 1));
            }
            b'}' => {
                if let Some(Some(start)) = open.pop()
                    && last.is_none_or(|(other, _)| other < start)
                {
                    last = Some((start, at));
                }
            }
            _ => {}
        }
    }
    let (start, end) = last?;
    text.get(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_complete_box_counts() {
        for (text, expected) in [
            (r"\boxed{1}", Some("1")),
            (r"\boxed{1} and \boxed{\frac{1}{2}}.", Some(r"\frac{1}{2}")),
            (r"\fbox {a}", Some("a")),
            (r"\boxed{1} then \boxed{2", Some("1")),
            (r"\boxed{\{1\}}", Some(r"\{1\}")),
            (r"a } \boxed{}", Some("")),
            (r"\boxed 5", None),
            ("{5}", None),
            ("", None),
        ] {
            assert_eq!(last_boxed(text), expected, "{text}");
        }
    }

    #[test]
    fn many_open_boxes_take_no_longer_than_their_text() {
        let text = format!(r"\boxed{{7}}{}", r"\boxed{".repeat(100_000));
        assert_eq!(last_boxed(&text), Some("7"));
    }
}
