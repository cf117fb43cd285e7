//! [`Number`]: a number as people and models spell it.

use std::sync::LazyLock;

use regex::{Captures, Regex};

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
pub(super) struct Number {
    /// How the text spells it.
    pub spelled: String,
    /// The exact value; none of fractions.
    decimal: Option<Decimal>,
    /// The value to 64 bits. Of percents the number before the sign.
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

impl Number {
    /// Whether it equals `expected` to within `tolerance` or, if that is more, `relative` of the expected value.
    /// Numbers with a percent sign equal those without as they stand or as hundredths.
    pub fn equals(&self, expected: &Self, tolerance: f64, relative: f64) -> bool {
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
        // 64 bits are not enough to tell large integers apart.
        if let (Some(own), Some(other)) = (&self.decimal, &expected.decimal) {
            if own == other {
                return true;
            }
            if tolerance == 0.0 && relative == 0.0 {
                return false;
            }
        }
        // What arithmetic with 64 bits loses is no difference.
        let slack = expected.value.abs() * 1e-12;
        let most = tolerance.max(relative * expected.value.abs());
        (self.value - expected.value).abs() <= most + slack
    }
}

/// The numbers of a text in their order.
pub(super) fn numbers(text: &str) -> Vec<Number> {
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

/// A text without what LaTeX puts into numbers for the eye.
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

/// Whether digits belong to a name, an exponent, an index, a version or a date.
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

fn number(captures: &Captures<'_>, spelled: &str, is_difference: bool) -> Option<Number> {
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
    Some(Number {
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

    use super::*;

    fn spelled(text: &str) -> Vec<String> {
        numbers(text)
            .into_iter()
            .map(|number| number.spelled)
            .collect()
    }

    fn one(text: &str) -> Number {
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
