//! [`Numeric`].

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer_regex::{compile_extract, extract};
use super::boxed::last_boxed;
use super::expected::{default_field, texts, unusable};
use super::number::{Number, numbers};
use super::{CheckError, Judgement};

/// The answer's final number is the expected one.
///
/// The final number is that in the last `\boxed{}`, else what follows the last `####`, else the last number. A box
/// with anything but one number, such as a root or a pair, has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Numeric {
    /// The field of the sample's metadata that has the expected number, or a text that ends in it.
    pub expected_field: String,
    /// A regular expression whose last match has the answer: its first group if it has one. Default: the whole text.
    pub extract: Option<String>,
    /// How far the answer may be from the expected number. Default: 0.
    pub tolerance: f64,
    /// The same as a part of the expected number, 0.01 for one percent; the larger one counts. Default: 0.
    pub relative_tolerance: f64,
}

impl Default for Numeric {
    fn default() -> Self {
        Self {
            expected_field: default_field(),
            extract: None,
            tolerance: 0.0,
            relative_tolerance: 0.0,
        }
    }
}

#[derive(Debug)]
pub(super) struct PreparedNumeric {
    check: Numeric,
    extract: Option<Regex>,
}

impl Numeric {
    pub(super) fn prepare(self) -> Result<PreparedNumeric, CheckError> {
        for (name, value) in [
            ("tolerance", self.tolerance),
            ("relative_tolerance", self.relative_tolerance),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(CheckError::Setting {
                    name,
                    problem: format!("is {value}, not a number from 0"),
                });
            }
        }
        let extract = compile_extract(self.extract.as_deref())?;
        Ok(PreparedNumeric {
            check: self,
            extract,
        })
    }
}

impl PreparedNumeric {
    pub(super) fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let field = &self.check.expected_field;
        let expected = texts(metadata, field)?
            .iter()
            .map(|text| final_number(text).ok_or_else(|| unusable(field, "has no number")))
            .collect::<Result<Vec<Number>, _>>()?;
        let Some(answer) = extract(self.extract.as_ref(), text).and_then(final_number) else {
            return Ok(Judgement::none());
        };
        Ok(Judgement {
            is_right: expected.iter().any(|expected| {
                answer.equals(
                    expected,
                    self.check.tolerance,
                    self.check.relative_tolerance,
                )
            }),
            answer: Some(answer.spelled),
        })
    }
}

fn final_number(text: &str) -> Option<Number> {
    if let Some(boxed) = last_boxed(text) {
        return only_number(boxed);
    }
    let marked = text.lines().rev().find_map(|line| {
        let (_, after) = line.rsplit_once("####")?;
        // Headings have the same mark.
        let is_heading = after
            .trim_start_matches(|first: char| !first.is_alphanumeric() && first != '\\')
            .starts_with(char::is_alphabetic);
        (!is_heading).then(|| numbers(after).into_iter().next())?
    });
    marked.or_else(|| numbers(text).pop())
}

/// The number that a formula is, if it is one.
fn only_number(formula: &str) -> Option<Number> {
    const OPERATIONS: [&str; 12] = [
        r"\sqrt", r"\pi", r"\log", r"\ln", r"\sin", r"\cos", r"\tan", r"\infty", r"\pm", r"\cup",
        "√", "π",
    ];
    let side = ["=", r"\approx", "≈"]
        .into_iter()
        .fold(formula, |rest, sign| {
            rest.rsplit(sign).next().unwrap_or(rest)
        });
    if OPERATIONS.iter().any(|operation| side.contains(operation)) {
        return None;
    }
    let mut numbers = numbers(side);
    let last = numbers.pop();
    last.filter(|_| numbers.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judge(text: &str, expected: Value) -> (bool, Option<String>) {
        let check = Numeric::default().prepare().unwrap();
        let judged = check
            .judge(text, &json!({"expected_answer": expected}))
            .unwrap();
        (judged.is_right, judged.answer)
    }

    #[test]
    fn the_final_number_counts() {
        for (text, answer) in [
            ("42", Some("42")),
            ("First 3, then 5.", Some("5")),
            (r"It is \boxed{7}, as 3 + 4.", Some("7")),
            (r"\boxed{x = 7}", Some("7")),
            (r"\boxed{\$1{,}234.5}", Some("$1,234.5")),
            (r"\boxed{5\text{ m}^2}", Some("5")),
            (r"\boxed{90^\circ}", Some("90")),
            (r"\boxed{-\frac{1}{2}}", Some(r"-\frac{1}{2}")),
            (r"3 is \boxed{(1, 2)}", None),
            (r"3 is \boxed{\sqrt{2}}", None),
            (r"3 is \boxed{2\pi}", None),
            (r"3 is \boxed{none}", None),
            ("reason 1\n#### 18\ntoday is the 3rd", Some("18")),
            ("#### $1,000", Some("$1,000")),
            ("#### Step 1\nIt is 9", Some("9")),
            ("#### 4\n#### Notes 5", Some("4")),
            ("The answer is 12.", Some("12")),
            ("**12**", Some("12")),
            ("(12)", Some("12")),
            ("", None),
            ("twelve", None),
        ] {
            assert_eq!(judge(text, json!(0.125)).1.as_deref(), answer, "{text}");
        }
    }

    #[test]
    fn expected_numbers_have_many_forms() {
        for (text, expected) in [
            ("42", json!(42)),
            ("0.5", json!(0.5)),
            ("1/2", json!(0.5)),
            ("12", json!("they paid 3 * 4 = 12\n#### 12")),
            ("7", json!([6, "7"])),
            ("1000", json!("1,000")),
            ("18446744073709551615", json!(u64::MAX)),
        ] {
            assert!(judge(text, expected.clone()).0, "{text} {expected}");
            assert!(!judge("-3", expected.clone()).0, "{expected}");
        }
    }

    #[test]
    fn expected_values_without_a_number_name_their_field() {
        let check = Numeric::default().prepare().unwrap();
        for value in [json!("none"), json!({}), json!([1, "x"]), json!(true)] {
            let error = check
                .judge("1", &json!({"expected_answer": value}))
                .unwrap_err();
            assert!(
                matches!(&error, CheckError::Unusable { field, .. } if field == "expected_answer")
            );
        }
    }

    #[test]
    fn settings_say_where_the_number_is_and_how_near() {
        let check = Numeric {
            extract: Some("(?i)total: (.*)".to_owned()),
            tolerance: 0.5,
            ..Numeric::default()
        };
        let judged = check
            .prepare()
            .unwrap()
            .judge("Total: 9.6\nthanks 2", &json!({"expected_answer": 10}))
            .unwrap();
        assert_eq!(
            judged,
            Judgement {
                is_right: true,
                answer: Some("9.6".to_owned())
            }
        );
    }
}
