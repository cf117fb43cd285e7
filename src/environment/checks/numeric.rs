use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde::Deserialize;
use serde_json::Value;

use super::answer_text::{Extract, default_field, expected_texts, last_boxed, unusable};
use super::{Check, CheckError, Judgement};

/// The answer's final number is the expected one.
///
/// The final number is the one in the last `\boxed{}`, else the one after the last `####`, else the last number. A box
/// with anything but one number, such as a root or a pair, has none.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Numeric {
    /// The field of the sample's metadata that has the expected number, or a text that ends in it.
    expected_field: String,
    /// A regular expression whose last match has the answer: its first group if it has one. Default: the whole text.
    extract: Extract,
    /// The largest difference between the answer and the expected number. Default: 0.
    tolerance: f64,
    /// The tolerance as a fraction of the expected number, such as 0.01; the larger tolerance counts. Default: 0.
    relative_tolerance: f64,
}

impl Default for Numeric {
    fn default() -> Self {
        Self {
            expected_field: default_field(),
            extract: Extract::default(),
            tolerance: 0.0,
            relative_tolerance: 0.0,
        }
    }
}

impl Check for Numeric {
    fn prepare(&mut self) -> Result<(), CheckError> {
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
        Ok(())
    }

    fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let (field, expected) = expected_texts(metadata, &self.expected_field)?;
        let expected = expected
            .iter()
            .map(|text| final_number(text).ok_or_else(|| unusable(field, "has no number")))
            .collect::<Result<Vec<SpelledNumber>, _>>()?;
        let Some(answer) = self.extract.find(text).and_then(final_number) else {
            return Ok(Judgement::default());
        };
        Ok(Judgement {
            is_right: expected
                .iter()
                .any(|expected| answer.equals(expected, self.tolerance, self.relative_tolerance)),
            answer: Some(answer.spelled),
        })
    }
}

fn final_number(text: &str) -> Option<SpelledNumber> {
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

/// Returns the number of a formula that is nothing but a number.
fn only_number(formula: &str) -> Option<SpelledNumber> {
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

/// A number without a sign: with or without commas between thousands.
const DIGITS: &str = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)";

static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!(
        r"(?x)
        (?P<sign>[-+])? [$€£¥]?
        (?:
            (?: (?P<frac_whole>[0-9]+) \s* )? \\frac \s*
                (?: \{{ \s* (?P<frac_top>[-+]?{DIGITS}) \s* \}} | (?P<frac_top_digit>[0-9]) ) \s*
                (?: \{{ \s* (?P<frac_bottom>{DIGITS}) \s* \}} | (?P<frac_bottom_digit>[0-9]) )
            | (?: (?P<whole>[0-9]+) \s+ )? (?P<top>{DIGITS}) \s* / \s* (?P<bottom>{DIGITS})
            | (?P<decimal>{DIGITS})
                (?: [eE] (?P<exponent>[-+]?[0-9]{{1,4}})
                  | \s* (?: \\times | \\cdot | × | · | \* | x ) \s* 10 (?: \^ | \*\* ) \{{? \s* (?P<power>[-+]?[0-9]{{1,4}}) \s* \}}? )?
        )
        (?P<percent> \s* % )?"
    );
    #[expect(clippy::expect_used, reason = "the pattern is fixed, and tests use it")]
    Regex::new(&pattern).expect("the pattern of numbers compiles")
});

/// A number that was found in a text.
#[derive(Debug, Clone, PartialEq)]
struct SpelledNumber {
    /// The spelling in the text.
    spelled: String,
    /// The exact value; none for fractions.
    decimal: Option<Decimal>,
    /// The value as a 64-bit float. For percentages, the number before the sign.
    value: f64,
    is_percent: bool,
}

/// 0.DIGITS times ten to the power of `exponent`, in its only spelling without zeros on either side.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl SpelledNumber {
    /// Returns whether `self` equals `expected` to within `tolerance` or, if larger, `relative` of the expected value.
    /// A number with a percent sign also equals its hundredth without the sign.
    fn equals(&self, expected: &Self, tolerance: f64, relative: f64) -> bool {
        if self.is_percent == expected.is_percent {
            return self.is_near(expected, tolerance, relative);
        }
        let (scaled, other) = if self.is_percent {
            (self.hundredth(), expected.clone())
        } else {
            (self.clone(), expected.hundredth())
        };
        self.is_near(expected, tolerance, relative) || scaled.is_near(&other, tolerance, relative)
    }

    fn hundredth(&self) -> Self {
        Self {
            decimal: self.decimal.clone().map(|decimal| Decimal {
                exponent: decimal.exponent - if decimal.digits.is_empty() { 0 } else { 2 },
                ..decimal
            }),
            value: self.value / 100.0,
            ..self.clone()
        }
    }

    fn is_near(&self, expected: &Self, tolerance: f64, relative: f64) -> bool {
        // 64-bit floats cannot tell large integers apart.
        if let (Some(own), Some(other)) = (&self.decimal, &expected.decimal) {
            if own == other {
                return true;
            }
            if tolerance == 0.0 && relative == 0.0 {
                return false;
            }
        }
        // Rounding of 64-bit floats is not a difference.
        let slack = expected.value.abs() * 1e-12;
        let most = tolerance.max(relative * expected.value.abs());
        (self.value - expected.value).abs() <= most + slack
    }
}

/// Returns the numbers of a text, in order.
fn numbers(text: &str) -> Vec<SpelledNumber> {
    let text = plain(text);
    let mut numbers = Vec::new();
    let mut at = 0;
    while let Some(captures) = NUMBER.captures_at(&text, at) {
        let Some(found) = captures.get(0) else {
            break;
        };
        at = found.end();
        let before = text.get(..found.start()).unwrap_or_default();
        let after = text.get(found.end()..).unwrap_or_default();
        if is_part(before, found.as_str(), after) {
            continue;
        }
        let is_difference = before
            .ends_with(|last: char| last.is_alphanumeric() || matches!(last, ')' | '}' | ']'));
        numbers.extend(number(&captures, found.as_str(), is_difference));
    }
    numbers
}

/// Removes the LaTeX that only formats numbers.
fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for (spelling, plain) in [
        ("{,}", ","),
        (r"\!", ""),
        (r"\,", ""),
        (r"\$", "$"),
        (r"\%", "%"),
        (r"\dfrac", r"\frac"),
        (r"\tfrac", r"\frac"),
        ("\u{2212}", "-"),
        ("\u{202f}", ""),
    ] {
        if text.contains(spelling) {
            text = text.replace(spelling, plain);
        }
    }
    text
}

/// Returns whether digits belong to a name, an exponent, an index, a version or a date.
fn is_part(before: &str, found: &str, after: &str) -> bool {
    let is_digit = |last: char| last.is_ascii_digit();
    let is_signed = found.starts_with(['-', '+']);
    let raised = before.strip_suffix('{').unwrap_or(before);
    raised.ends_with(['^', '_'])
        || (!is_signed && before.ends_with(|last: char| last.is_alphanumeric()))
        || before
            .strip_suffix(['.', '/'])
            .is_some_and(|before| before.ends_with(is_digit))
        || after.starts_with(is_digit)
        || after
            .strip_prefix('/')
            .is_some_and(|after| found.contains('/') && after.starts_with(is_digit))
}

fn number(captures: &Captures<'_>, spelled: &str, is_difference: bool) -> Option<SpelledNumber> {
    let group = |name: &str| captures.name(name).map(|found| found.as_str());
    let is_negative = group("sign") == Some("-") && !is_difference;
    let sign = if is_negative { -1.0 } else { 1.0 };
    let top = group("frac_top")
        .or(group("frac_top_digit"))
        .or(group("top"));
    let (decimal, value) = if let Some(top) = top {
        let bottom = group("frac_bottom")
            .or(group("frac_bottom_digit"))
            .or(group("bottom"))?;
        let whole = group("frac_whole")
            .or(group("whole"))
            .map_or(Some(0.0), float)?;
        let (top, bottom) = (float(top)?, float(bottom)?);
        if bottom == 0.0 {
            return None;
        }
        (None, sign * (whole + top / bottom))
    } else {
        let digits = group("decimal")?;
        let exponent = group("exponent")
            .or(group("power"))
            .map_or(Some(0), |text| text.parse().ok())?;
        let decimal = Decimal::new(is_negative, digits, exponent);
        let value = sign * float(&format!("{digits}e{exponent}"))?;
        (Some(decimal), value)
    };
    let spelled = if is_difference {
        spelled.trim_start_matches(['-', '+'])
    } else {
        spelled
    };
    Some(SpelledNumber {
        spelled: spelled.to_owned(),
        decimal,
        value,
        is_percent: group("percent").is_some(),
    })
}

fn float(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

impl Decimal {
    fn new(is_negative: bool, text: &str, exponent: i64) -> Self {
        let text = text.replace(',', "");
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        let all = format!("{whole}{part}");
        let leading = all.len() - all.trim_start_matches('0').len();
        let digits = all.trim_matches('0').to_owned();
        if digits.is_empty() {
            return Self {
                is_negative: false,
                digits,
                exponent: 0,
            };
        }
        Self {
            is_negative,
            digits,
            exponent: exponent + whole.len() as i64 - leading as i64,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn judge(text: &str, expected: Value) -> (bool, Option<String>) {
        let check = Numeric::default();
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
        let check = Numeric::default();
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
            extract: Extract::of("(?i)total: (.*)"),
            tolerance: 0.5,
            ..Numeric::default()
        };
        let judged = check
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

    fn spelled(text: &str) -> Vec<String> {
        numbers(text)
            .into_iter()
            .map(|number| number.spelled)
            .collect()
    }

    fn one(text: &str) -> SpelledNumber {
        let numbers = numbers(text);
        assert_eq!(numbers.len(), 1, "{text}: {numbers:?}");
        numbers[0].clone()
    }

    #[test]
    fn numbers_are_found_as_they_are_spelled() {
        for (text, expected) in [
            ("", vec![]),
            ("no number", vec![]),
            ("1, 2 and 3.", vec!["1", "2", "3"]),
            ("$1,234.50 of £7", vec!["$1,234.50", "£7"]),
            ("x=-5", vec!["-5"]),
            ("7-5", vec!["7", "5"]),
            ("x2, H_2, m^2, m^{-2}", vec![]),
            ("v1.2.3", vec![]),
            ("1.2.3", vec!["1.2"]),
            ("12/31/2020", vec![]),
            ("3/4 of 5", vec!["3/4", "5"]),
            ("1/0", vec![]),
            (
                "6.02e23, 3 \\times 10^{8}, 2*10**-3",
                vec!["6.02e23", "3 \\times 10^{8}", "2*10**-3"],
            ),
            ("50% and 5\\%", vec!["50%", "5%"]),
            (
                "\\dfrac{1}{2} \\frac12 -\\frac{3}{4}",
                vec!["\\frac{1}{2}", "\\frac12", "-\\frac{3}{4}"],
            ),
            ("a list:\n- 3 apples", vec!["3"]),
            ("5kg", vec!["5"]),
            ("..5", vec![".5"]),
        ] {
            assert_eq!(spelled(text), expected, "{text}");
        }
    }

    #[test]
    fn spellings_of_one_number_are_equal() {
        for (one_way, other) in [
            ("1234", "1,234.00"),
            ("1{,}234", "1\\,234"),
            ("0.5", ".50"),
            ("1/2", "0.5"),
            ("\\frac{1}{3}", "2/6"),
            ("1 1/2", "1.5"),
            ("1\\frac{1}{2}", "3/2"),
            ("-\\frac{1}{2}", "\\frac{-1}{2}"),
            ("3\\times10^8", "300000000"),
            ("1e-3", "0.001"),
            ("50%", "0.5"),
            ("50%", "50"),
            ("50 \\%", "1/2"),
            ("\u{2212}7", "-7"),
            ("-0", "0.0"),
            ("+3", "3"),
            ("$5", "5"),
            (
                "123456789012345678901234567890",
                "123,456,789,012,345,678,901,234,567,890",
            ),
        ] {
            let (one_way, other) = (one(one_way), one(other));
            assert!(one_way.equals(&other, 0.0, 0.0), "{one_way:?} {other:?}");
            assert!(other.equals(&one_way, 0.0, 0.0), "{other:?} {one_way:?}");
        }
    }

    #[test]
    fn other_numbers_are_not_equal() {
        for (one_way, other) in [
            ("1", "-1"),
            ("9007199254740993", "9007199254740992"),
            ("0.333", "1/3"),
            ("50%", "0.05"),
            ("50%", "0.5%"),
            ("1e9999", "1e9998"),
            ("1e9999", "1e9998%"),
        ] {
            assert!(
                !one(one_way).equals(&one(other), 0.0, 0.0),
                "{one_way} {other}"
            );
        }
    }

    #[test]
    fn tolerances_widen_what_is_equal() {
        for (answer, expected, tolerance, relative, is_equal) in [
            ("3.14", "3.14159", 0.01, 0.0, true),
            ("3.1", "3.14159", 0.01, 0.0, false),
            ("0.3", "0.2", 0.1, 0.0, true),
            ("101", "100", 0.0, 0.01, true),
            ("102", "100", 0.0, 0.01, false),
            ("-101", "-100", 0.0, 0.01, true),
            ("1e9999", "1e9998", 1.0, 0.0, false),
        ] {
            assert_eq!(
                one(answer).equals(&one(expected), tolerance, relative),
                is_equal,
                "{answer}"
            );
        }
    }

    proptest! {
        #[test]
        fn integers_equal_themselves_and_no_other(number: i64, other: i64) {
            let (own, other_number) = (one(&number.to_string()), one(&other.to_string()));
            let with_zero = one(&format!("{number}.0"));
            prop_assert!(own.equals(&with_zero, 0.0, 0.0));
            prop_assert_eq!(own.equals(&other_number, 0.0, 0.0), number == other);
        }

        #[test]
        fn floats_equal_what_they_are_printed_as(number in prop::num::f64::NORMAL) {
            let scientific = one(&format!("{number:e}"));
            prop_assert!(one(&number.to_string()).equals(&scientific, 0.0, 0.0));
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            numbers(&text);
        }
    }
}
