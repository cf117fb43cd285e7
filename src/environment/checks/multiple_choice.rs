use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::answer_text::{EXPECTED_FIELD, Extract, default_field, field, last_boxed, unusable};
use super::{Check, CheckError, Judgement};

/// The answer chooses the expected letter.
///
/// The choice is the letter in the last `\boxed{}`; else what the last phrase such as "the answer is (B)" names; else
/// the last line, if it is a letter or begins with one as choices do; else a lone letter at the text's end.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MultipleChoice {
    /// The field of the sample's metadata that has the expected letter.
    expected_field: String,
    /// The letters that can be chosen. Default: `ABCDEFGHIJ`.
    letters: String,
    /// The number of the first choice, if the data has numbers instead of letters. Default: numbers are refused.
    first_number: Option<u64>,
    /// A regular expression whose last match has the letter: its first group if it has one. Default: the whole text.
    extract: Extract,
    /// The letters in upper case.
    #[serde(skip)]
    choices: Vec<char>,
}

impl Default for MultipleChoice {
    fn default() -> Self {
        Self {
            expected_field: default_field(),
            letters: "ABCDEFGHIJ".to_owned(),
            first_number: None,
            extract: Extract::default(),
            choices: Vec::new(),
        }
    }
}

/// A letter on its own, with the marks and words that may surround it.
static LONE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"^[\s*_$"'`(\[{]*(?:(?i:option|choice|answer|final answer)\s*:?[\s*_$"'`(\[{]*)?(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*\(?)?([A-Za-z])[\s*_$"'`)\]}.:!]*$"#,
    )
});

/// A choice with its text, as questions list them: "B) Paris", "(B) Paris", "B. Paris".
static LISTED: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^[\s*_]*(?:\(([A-Za-z])\)|([A-Z])[).:])[*_]*\s+\S"));

static STATED: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?i:\b(?:answer|choice|option)\b)(?i:\s+(?:is|would\s+be|should\s+be|must\s+be))?\s*:?[\s*_]*(?i:(?:option|choice)\s+)?[\s*_$"'`]*(?:\(\s*([A-Za-z])\s*\)|([A-Z])(?:$|[\s*_$"'`).,:;!\]-]))"#,
    )
});

static AT_END: LazyLock<Regex> =
    LazyLock::new(|| regex(r#"(?:\(([A-Za-z])\)|[\s*_$"'`]([A-Z]))[\s*_$"'`.!]*$"#));

fn regex(pattern: &str) -> Regex {
    #[expect(
        clippy::expect_used,
        reason = "the patterns are fixed, and tests use them"
    )]
    Regex::new(pattern).expect("the patterns of choices compile")
}

impl Check for MultipleChoice {
    fn prepare(&mut self) -> Result<(), CheckError> {
        self.choices = self.letters.to_uppercase().chars().collect();
        if self.choices.is_empty() || !self.choices.iter().all(char::is_ascii_alphabetic) {
            return Err(CheckError::Setting {
                name: "letters",
                problem: "has to be one or more of A to Z".to_owned(),
            });
        }
        Ok(())
    }

    fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let expected = self.expected(metadata)?;
        let chosen = self.extract.find(text).and_then(|text| self.chosen(text));
        Ok(Judgement {
            is_right: chosen == Some(expected),
            answer: chosen.map(String::from),
        })
    }
}

impl MultipleChoice {
    fn expected(&self, metadata: &Value) -> Result<char, CheckError> {
        let (name, value) = field(metadata, &self.expected_field, EXPECTED_FIELD)?;
        match value {
            Value::String(text) => self.lone(text).ok_or_else(|| {
                unusable(name, format!("is not one of the letters {}", self.letters))
            }),
            Value::Number(number) => {
                let Some(first) = self.first_number else {
                    let problem = "is a number, but `first_number` does not say which number the first choice has";
                    return Err(unusable(name, problem));
                };
                number
                    .as_u64()
                    .and_then(|number| number.checked_sub(first))
                    .and_then(|index| self.choices.get(usize::try_from(index).ok()?))
                    .copied()
                    .ok_or_else(|| unusable(name, "is not the number of a choice"))
            }
            _ => Err(unusable(name, "is not a letter")),
        }
    }

    fn chosen(&self, text: &str) -> Option<char> {
        last_boxed(text)
            .and_then(|boxed| self.lone(boxed))
            .or_else(|| self.stated(text))
            .or_else(|| {
                let line = text.lines().rfind(|line| !line.trim().is_empty())?;
                self.lone(line)
            })
            .or_else(|| self.letter(AT_END.captures(text.trim_end())?))
    }

    /// Returns the letter of a text that is a letter, or that quotes a choice.
    fn lone(&self, text: &str) -> Option<char> {
        LONE.captures(text)
            .and_then(|captures| self.letter(captures))
            .or_else(|| self.letter(LISTED.captures(text)?))
    }

    fn stated(&self, text: &str) -> Option<char> {
        let mut last = None;
        for captures in STATED.captures_iter(text) {
            // "The answer is A car": these two are words as well.
            let is_word = captures.get(2).is_some_and(|letter| {
                let after = text.get(letter.end()..).unwrap_or_default();
                matches!(letter.as_str(), "A" | "I") && goes_on(after)
            });
            if !is_word {
                last = self.letter(captures).or(last);
            }
        }
        last
    }

    fn letter(&self, captures: regex::Captures<'_>) -> Option<char> {
        let letter = captures
            .iter()
            .skip(1)
            .flatten()
            .find_map(|group| group.as_str().chars().next())?
            .to_ascii_uppercase();
        self.choices.contains(&letter).then_some(letter)
    }
}

/// Returns whether the next word of a sentence cannot follow a choice.
fn goes_on(after: &str) -> bool {
    const REASONS: [&str; 7] = ["because", "since", "as", "for", "and", "which", "but"];
    let Some(rest) = after.strip_prefix([' ', '\t']) else {
        return false;
    };
    let word = rest
        .split(|next: char| !next.is_alphanumeric())
        .next()
        .unwrap_or_default();
    word.starts_with(char::is_lowercase) && !REASONS.contains(&word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn prepared(mut check: MultipleChoice) -> MultipleChoice {
        check.prepare().unwrap();
        check
    }

    fn chosen(text: &str) -> Option<char> {
        prepared(MultipleChoice::default()).chosen(text)
    }

    #[test]
    fn choices_have_many_forms() {
        for text in [
            "B",
            "b",
            "(B)",
            "(b)",
            "B.",
            "B)",
            "**B**",
            "[B]",
            " B \n",
            "\"B\"",
            "$B$",
            "`B`",
            "B) Paris",
            "(B) Paris",
            "B. Paris",
            "B: Paris",
            "**B.** Paris",
            "Option B",
            "Answer: B",
            "answer: b",
            r"\boxed{B}",
            r"\boxed{\text{B}}",
            r"\boxed{\textbf{(B)}}",
            r"\boxed{(b)}",
            r"\boxed{B) Paris}",
            r"A is wrong, so \boxed{B}. C is too.",
            "The answer is B",
            "The answer is (B).",
            "the answer is (b), not (A)",
            "The correct answer is: B",
            "**Answer:** B",
            "The answer is **B**.",
            "The answer is option B.",
            "The correct option is B because A is not.",
            "The answer is A. No, wait: the answer is B.",
            "Final answer: B\n\nThat was easy.",
            "Answer: (B) Paris",
            "The answer would be B, as everyone knows",
            "Answer: $B$",
            "So I choose B",
            "After A and C are out, it must be (B).",
            "Thus **B**.",
            "Reasons.\n\nB",
        ] {
            assert_eq!(chosen(text), Some('B'), "{text}");
        }
    }

    #[test]
    fn words_are_no_choices() {
        for text in [
            "",
            "Paris",
            "The answer is Paris",
            "The answer is a car",
            "The answer is A car.",
            "answer: I think so",
            "the answer is Boston",
            "BB",
            "Z",
            "(Z)",
            "The answer is Z.",
            "A bee is an animal",
            "unobtainable",
            "5",
            r"\boxed{5}",
            "A or else nothing",
        ] {
            assert_eq!(chosen(text), None, "{text}");
        }
        assert_eq!(chosen("The answer is A because it is."), Some('A'));
        assert_eq!(chosen(r"The answer is C, so \boxed{42}"), Some('C'));
    }

    #[test]
    fn expected_choices_are_letters_or_counted() {
        let letters = prepared(MultipleChoice::default());
        let counted = prepared(MultipleChoice {
            first_number: Some(1),
            letters: "abcd".to_owned(),
            ..MultipleChoice::default()
        });
        for (check, expected) in [
            (&letters, json!("B")),
            (&letters, json!("(b)")),
            (&letters, json!("B. Paris")),
            (&counted, json!(2)),
            (&counted, json!("B")),
        ] {
            let judged = check
                .judge("B", &json!({"expected_answer": expected}))
                .unwrap();
            assert_eq!(
                judged,
                Judgement {
                    is_right: true,
                    answer: Some("B".to_owned())
                }
            );
            assert!(
                !check
                    .judge("C", &json!({"expected_answer": expected}))
                    .unwrap()
                    .is_right
            );
        }
        for (check, expected) in [
            (&letters, json!(2)),
            (&letters, json!("Paris")),
            (&letters, json!(["B"])),
            (&counted, json!(0)),
            (&counted, json!(5)),
            (&counted, json!("E")),
            (&counted, json!(1.5)),
            (&letters, json!("")),
        ] {
            let error = check
                .judge("B", &json!({"expected_answer": expected}))
                .unwrap_err();
            assert!(
                matches!(&error, CheckError::Unusable { field, .. } if field == "expected_answer"),
                "{expected}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_stated_letter_is_chosen_whatever_comes_before(before in "[a-z0-9 .\n]{0,80}", letter in "[A-J]") {
            let text = format!("{before}\nThe answer is ({letter}).");
            prop_assert_eq!(chosen(&text), letter.chars().next());
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            chosen(&text);
        }
    }
}
