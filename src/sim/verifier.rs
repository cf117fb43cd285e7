//! The simulated model's last words and their verifier: [`last_words`] ends with a right or a wrong answer, a number;
//! [`Verdict::of`] finds it and compares it with the expected one.

use super::draws::Draws;

const OPENINGS: [&str; 4] = [
    "The question gives everything that is needed. Taking the quantities in turn and doing the sum: ",
    "Working through it step by step, and checking the units on the way. ",
    "First what is known, then what is asked, then the calculation. ",
    "Reading it twice, the quantities are clear, and so is what to do with them. ",
];

/// The words before an answer.
pub(super) const ANSWER_MARK: &str = "The answer is ";

/// Numbers this close, relative to the larger of 1 and their size, are the same answer.
const TOLERANCE: f64 = 1e-9;

/// Reads a number in JSON's notation.
pub(super) fn number(text: &str) -> Option<f64> {
    let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let number: Option<f64> = text.parse().ok();
    number.filter(|number| is_number && number.is_finite())
}

fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1.0)
}

/// Returns a wrong answer that is near the right one.
fn mistaken(right: f64, draws: &mut Draws) -> f64 {
    let step = (right.abs() / 100.0).round().max(1.0);
    let steps = [-10.0, -1.0, 1.0, 10.0];
    right + step * steps.get(draws.below(steps.len())).unwrap_or(&1.0)
}

/// Finds the answer in a text: the number after the last "The answer is", with an optional currency sign and thousands
/// separators.
pub(super) fn extract_answer(text: &str) -> Option<f64> {
    let (_, after) = text.rsplit_once(ANSWER_MARK)?;
    let after = after.trim_start_matches([' ', '$']);
    let end = after.find(|c: char| !c.is_ascii_digit() && !matches!(c, '-' | ',' | '.'));
    let digits = after.get(..end.unwrap_or(after.len()))?;
    number(&digits.trim_end_matches(['.', ',']).replace(',', ""))
}

/// What the verifier makes of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Verdict {
    /// The answer in the text.
    pub extracted: Option<f64>,
    /// Whether the answer is right.
    pub correct: bool,
}

impl Verdict {
    /// Verifies the answer in a text. `by_chance` decides if no number is expected.
    pub(super) fn of(text: &str, expected: Option<f64>, by_chance: impl FnOnce() -> bool) -> Self {
        let extracted = extract_answer(text);
        Self {
            extracted,
            correct: match expected {
                Some(expected) => extracted.is_some_and(|answer| is_same(answer, expected)),
                None => by_chance(),
            },
        }
    }

    /// Returns 1 if right, else 0.
    pub(super) fn reward(&self) -> f64 {
        f64::from(u8::from(self.correct))
    }

    /// Returns the reward of a turn: 0 as long as there is no answer.
    pub(super) fn final_reward(&self) -> f64 {
        self.extracted.map_or(0.0, |_| self.reward())
    }

    /// Returns the answer as JSON text.
    pub(super) fn extracted_json(&self) -> String {
        self.extracted
            .map_or_else(|| "null".to_owned(), |answer| answer.to_string())
    }
}

/// Returns the end of what a model says, whose answer is `right` if it is a number: text that needs no escapes in JSON.
pub(super) fn last_words(right: Option<f64>, correct: bool, mut draws: Draws) -> String {
    let opening = OPENINGS.get(draws.below(OPENINGS.len())).unwrap_or(&"");
    let Some(right) = right else {
        return format!("{opening}That is all there is to say.");
    };
    let answer = if correct {
        right
    } else {
        mistaken(right, &mut draws)
    };
    format!("{opening}{ANSWER_MARK}{answer}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_json() {
        for text in ["42", "-7", "0", "2.5", "-0.125"] {
            assert_eq!(number(text).unwrap().to_string(), text);
        }
        assert_eq!(number("1e3"), Some(1000.0));
        for text in ["", "x", "1e999", "NaN", "inf", "+1", "--1"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn answers_are_compared_nearly() {
        assert!(is_same(0.3, 0.1 + 0.2));
        assert!(!is_same(2.0, 2.001));
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
        for right in [84.0, 0.0, -1.0, 7.0, 2.5, 1e15, 99.0, 1e30] {
            let mut wrongs = std::collections::BTreeSet::new();
            for seed in 0..200 {
                let wrong = mistaken(right, &mut Draws::from_state(seed));
                assert!(!is_same(wrong, right), "{wrong} for {right}");
                wrongs.insert(wrong.to_string());
            }
            assert_eq!(wrongs.len(), 4, "{right}: {wrongs:?}");
        }
    }
}
