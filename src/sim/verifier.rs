//! The simulated model's last words and their verifier: [`last_words`] ends with a right or a wrong answer,
//! [`Verdict::of`] finds it and compares it with the expected [`NumericAnswer`].

use std::fmt;

use super::draws::Draws;

const OPENINGS: [&str; 4] = [
    "The question gives everything that is needed. Taking the quantities in turn and doing the sum: ",
    "Working through it step by step, and checking the units on the way. ",
    "First what is known, then what is asked, then the calculation. ",
    "Reading it twice, the quantities are clear, and so is what to do with them. ",
];

/// The words before an answer.
pub(super) const ANSWER_MARK: &str = "The answer is ";

/// Real numbers this close, relative to the larger of 1 and their size, are the same answer.
const TOLERANCE: f64 = 1e-9;

/// An answer that is a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum NumericAnswer {
    /// A whole number.
    Int(i128),
    /// A finite number with a fraction, or too large for [`NumericAnswer::Int`].
    Real(f64),
}

impl NumericAnswer {
    /// Reads a number in JSON's notation.
    pub fn parse(text: &str) -> Option<Self> {
        if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return None;
        }
        let real = || {
            text.parse()
                .ok()
                .filter(|real: &f64| real.is_finite())
                .map(Self::Real)
        };
        text.parse().ok().map(Self::Int).or_else(real)
    }

    /// Compares two answers: whole numbers exactly, others within a relative 1e-9.
    pub fn same_as(self, other: Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            _ => {
                let (a, b) = (self.as_f64(), other.as_f64());
                (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1.0)
            }
        }
    }

    /// Returns a plausible wrong answer, never [`NumericAnswer::same_as`] this one: off by one, another operation on
    /// the first two numbers of the `question`, or a slip in the digits.
    pub fn mistaken(self, question: &str, draws: &mut Draws) -> Self {
        let slip = match draws.below(3) {
            0 => None,
            1 => self.other_operation(question, draws),
            _ => self.digit_slip(draws),
        };
        let off_by_one = || self.off_by_one(draws);
        slip.filter(|wrong| !wrong.same_as(self))
            .unwrap_or_else(off_by_one)
    }

    fn off_by_one(self, draws: &mut Draws) -> Self {
        let step = if draws.below(2) == 0 { 1 } else { -1 };
        match self {
            Self::Int(n) => Self::Int(n.checked_add(step).unwrap_or(0)),
            // One more would be the same answer within the tolerance.
            Self::Real(x) if x.abs() > 1e6 => Self::Real(x / 2.0),
            Self::Real(x) => Self::Real(x + step as f64),
        }
    }

    fn other_operation(self, question: &str, draws: &mut Draws) -> Option<Self> {
        let mut numbers = naturals(question);
        let (a, b) = (numbers.next()?, numbers.next()?);
        let results = [a + b, a * b, (a - b).abs()];
        let start = draws.below(results.len());
        let candidates = results.iter().cycle().skip(start).take(results.len());
        candidates
            .map(|n| Self::Int(*n))
            .find(|wrong| !wrong.same_as(self))
    }

    /// Swaps two neighbouring digits, or raises one by one.
    fn digit_slip(self, draws: &mut Draws) -> Option<Self> {
        let mut text = self.to_string().into_bytes();
        let places: Vec<usize> = (0..text.len())
            .filter(|i| text.get(*i).is_some_and(u8::is_ascii_digit))
            .collect();
        let place = *places.get(draws.below(places.len()))?;
        let (here, next) = (
            *text.get(place)?,
            text.get(place + 1).copied().unwrap_or(b'.'),
        );
        if next.is_ascii_digit() && next != here && next != b'0' {
            text.swap(place, place + 1);
        } else {
            *text.get_mut(place)? = b'1' + (here - b'0') % 9;
        }
        Self::parse(std::str::from_utf8(&text).ok()?)
    }

    fn as_f64(self) -> f64 {
        match self {
            Self::Int(n) => n as f64,
            Self::Real(x) => x,
        }
    }
}

impl fmt::Display for NumericAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => n.fmt(f),
            Self::Real(x) => x.fmt(f),
        }
    }
}

/// Returns the natural numbers of at most nine digits in the first 4 KB of a text.
fn naturals(text: &str) -> impl Iterator<Item = i128> {
    let head = text.as_bytes().get(..4096).unwrap_or(text.as_bytes());
    head.split(|byte| !byte.is_ascii_digit())
        .filter(|digits| (1..=9).contains(&digits.len()))
        .map(|digits| {
            digits
                .iter()
                .fold(0, |n, digit| n * 10 + i128::from(digit - b'0'))
        })
}

/// Finds the answer in a text: the number after the last "The answer is", with an optional currency sign and thousands
/// separators.
pub(super) fn extract_answer(text: &str) -> Option<NumericAnswer> {
    let (_, after) = text.rsplit_once(ANSWER_MARK)?;
    let after = after.trim_start_matches([' ', '$']);
    let end = after.find(|c: char| !c.is_ascii_digit() && !matches!(c, '-' | ',' | '.'));
    let number = after
        .get(..end.unwrap_or(after.len()))?
        .trim_end_matches(['.', ',']);
    NumericAnswer::parse(&number.replace(',', ""))
}

/// What the verifier makes of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Verdict {
    /// The answer in the text.
    pub extracted: Option<NumericAnswer>,
    /// The answer is right.
    pub correct: bool,
}

impl Verdict {
    /// Verifies the answer in a text. `by_chance` decides if no number is expected.
    pub(super) fn of(
        text: &str,
        expected: Option<NumericAnswer>,
        by_chance: impl FnOnce() -> bool,
    ) -> Self {
        let extracted = extract_answer(text);
        Self {
            extracted,
            correct: match expected {
                Some(expected) => extracted.is_some_and(|answer| answer.same_as(expected)),
                None => by_chance(),
            },
        }
    }

    /// 1 if right, else 0.
    pub(super) fn reward(&self) -> f64 {
        f64::from(u8::from(self.correct))
    }

    /// The answer as JSON text.
    pub(super) fn extracted_json(&self) -> String {
        self.extracted
            .map_or_else(|| "null".to_owned(), |answer| answer.to_string())
    }
}

/// Returns the end of what a model says to `question`, whose answer is `right` if it is a number: text that needs no
/// escapes in JSON.
pub(super) fn last_words<'a>(
    right: Option<NumericAnswer>,
    correct: bool,
    question: impl FnOnce() -> &'a str,
    mut draws: Draws,
) -> String {
    let opening = OPENINGS.get(draws.below(OPENINGS.len())).unwrap_or(&"");
    match right {
        None => format!("{opening}That is all there is to say."),
        Some(right) if correct => format!("{opening}{ANSWER_MARK}{right}."),
        Some(right) => {
            let wrong = right.mistaken(question(), &mut draws);
            format!("{opening}{ANSWER_MARK}{wrong}.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        for text in [
            "42",
            "-7",
            "0",
            "123456789012345678901234567890",
            "2.5",
            "-0.125",
        ] {
            assert_eq!(NumericAnswer::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            NumericAnswer::parse("1e3"),
            Some(NumericAnswer::Real(1000.0))
        );
        for text in ["", "x", "1e999", "NaN", "inf", "+1", "--1"] {
            assert_eq!(NumericAnswer::parse(text), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_are_compared_exactly_and_others_nearly() {
        let same = |a: &str, b: &str| {
            NumericAnswer::parse(a)
                .unwrap()
                .same_as(NumericAnswer::parse(b).unwrap())
        };
        assert!(!same("9007199254740993", "9007199254740992"));
        assert!(same("0.3", "0.30000000000000004"));
        assert!(same("2", "2.0"));
        assert!(!same("2", "2.001"));
    }

    #[test]
    fn the_answer_is_found_where_the_model_says_it() {
        let found = |text: &str| extract_answer(text).map(|number| number.to_string());
        for (text, answer) in [
            ("12 and 30. The answer is 42.", "42"),
            ("The answer is 41. No, wait. The answer is -42", "-42"),
            ("The answer is $1,250.50.", "1250.5"),
            ("The answer is 3 apples", "3"),
        ] {
            assert_eq!(found(text).as_deref(), Some(answer), "{text}");
        }
        for text in ["", "42", "The answer is forty-two.", "The answer is "] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn mistakes_are_wrong_and_of_several_kinds() {
        let question = r#"[{"role": "user", "content": "Ana has 12 boxes of 7 pens."}]"#;
        for text in [
            "84",
            "0",
            "-1",
            "7",
            "2.5",
            "1e15",
            "99",
            "170141183460469231731687303715884105727",
        ] {
            let right = NumericAnswer::parse(text).unwrap();
            let mut wrongs = std::collections::BTreeSet::new();
            for seed in 0..200 {
                let wrong = right.mistaken(question, &mut Draws::from_state(seed));
                assert!(!wrong.same_as(right), "{wrong} for {right}");
                wrongs.insert(wrong.to_string());
            }
            assert!(wrongs.len() >= 4, "{right}: {wrongs:?}");
        }
        let right = NumericAnswer::Int(84);
        let wrongs: Vec<NumericAnswer> = (0..200)
            .map(|seed| right.mistaken(question, &mut Draws::from_state(seed)))
            .collect();
        for wrong in [83, 85, 19, 5, 48] {
            assert!(wrongs.contains(&NumericAnswer::Int(wrong)), "{wrong}");
        }
    }
}
