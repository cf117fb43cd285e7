//! Markdown's fences around what an answer gives.

/// The content of the last fence that is labelled `label`, or else of the last fence, or else the whole text, without
/// the white space around it. A fence that the text's end cuts off is none.
pub(super) fn last_fenced<'a>(text: &'a str, label: &str) -> &'a str {
    let mut labelled = None;
    let mut any = None;
    let mut open: Option<(usize, bool)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let Some(info) = line.trim().strip_prefix("```") else {
            continue;
        };
        match open.take() {
            Some((begin, is_labelled)) => {
                let content = text.get(begin..start);
                any = content;
                if is_labelled {
                    labelled = content;
                }
            }
            None => {
                let word = info.split_whitespace().next().unwrap_or_default();
                open = Some((at, word.eq_ignore_ascii_case(label)));
            }
        }
    }
    labelled.or(any).unwrap_or(text).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_labelled_fence_goes_first() {
        for (text, expected) in [
            (" {} ", "{}"),
            ("a\n```json\n1\n```\nb\n```json\n2\n```", "2"),
            ("```JSON title\n1\n```\n```python\nx\n```", "1"),
            ("```\n1\n```\n", "1"),
            ("  ```json\r\n1\r\n  ```\r\n", "1"),
            ("```json\n1", "```json\n1"),
            ("```json\n1\n```\n```json\n2", "1"),
        ] {
            assert_eq!(last_fenced(text, "json"), expected, "{text:?}");
        }
    }
}
