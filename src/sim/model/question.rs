//! What the simulated model knows: [`right_answer`].

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::super::arithmetic::Number;
use super::super::row::Row;

/// The questions that it has learnt by heart.
static LEARNT: LazyLock<HashMap<String, Number>> = LazyLock::new(|| {
    let tasks = include_str!("../../../tests/data/example_tasks.jsonl").lines();
    tasks.filter_map(learnt).collect()
});

fn learnt(task: &str) -> Option<(String, Number)> {
    #[derive(Deserialize)]
    struct Message {
        content: String,
    }
    let row = Row::parse(task).ok()?;
    let messages: Vec<Message> = serde_json::from_str(row.question()).ok()?;
    Some((messages.into_iter().next()?.content, row.expected()?))
}

/// The right answer to a question: that of an example task which the text holds, the value of a
/// formula such as `3 + 4 * 5`, or else what the numbers in the text suggest: the product of two that
/// have "of", "each" or "times" between them, or the sum of all.
pub(super) fn right_answer(text: &str) -> Option<Number> {
    let learnt = LEARNT.get(text.trim()).or_else(|| {
        let holds = |(question, _): &(&String, &Number)| text.contains(question.as_str());
        LEARNT.iter().find(holds).map(|(_, answer)| answer)
    });
    learnt.copied().or_else(|| calculated(text))
}

fn calculated(text: &str) -> Option<Number> {
    let numbers = numbers(text);
    let mut operations = numbers.iter().map(|number| operation(number.before));
    let _ = operations.next();
    let operations: Vec<Option<char>> = operations.collect();
    if let Some(first) = operations.iter().position(Option::is_some) {
        let values = numbers.iter().skip(first).map(|number| number.value);
        return formula(values, operations.into_iter().skip(first).map_while(|o| o));
    }
    let product = |before: &str| {
        ["of", "each", "times"]
            .iter()
            .any(|word| before.split_ascii_whitespace().any(|w| w == *word))
    };
    let value = match numbers.as_slice() {
        [a, b] if product(b.before) => a.value.checked_mul(b.value),
        [] => None,
        all => all
            .iter()
            .try_fold(0_i128, |sum, number| sum.checked_add(number.value)),
    };
    value.map(Number::Int)
}

/// A natural number in a text, and what stands between it and the one before.
struct Found<'a> {
    before: &'a str,
    value: i128,
}

fn numbers(text: &str) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, digits) = rest.split_at(start);
        let end = digits.find(|c: char| !c.is_ascii_digit());
        let (digits, after) = digits.split_at(end.unwrap_or(digits.len()));
        // A number beyond all bounds is not asked for.
        if let Ok(value) = digits.parse() {
            found.push(Found { before, value });
        }
        rest = after;
    }
    found
}

fn operation(between: &str) -> Option<char> {
    match between.trim() {
        "+" | "plus" => Some('+'),
        "-" | "\u{2212}" | "minus" => Some('-'),
        "*" | "x" | "\u{d7}" | "times" => Some('*'),
        "/" | "\u{f7}" | "divided by" => Some('/'),
        _ => None,
    }
}

/// Products and quotients come before sums and differences.
fn formula(
    mut values: impl Iterator<Item = i128>,
    operations: impl Iterator<Item = char>,
) -> Option<Number> {
    let (mut sum, mut term) = (0.0, values.next()? as f64);
    let (mut whole_sum, mut whole_term) = (Some(0_i128), Some(term as i128));
    for (operation, value) in operations.zip(values) {
        let real = value as f64;
        match operation {
            '*' => {
                term *= real;
                whole_term = whole_term.and_then(|term| term.checked_mul(value));
            }
            '/' => {
                term /= real;
                let divides = |term: &i128| term.checked_rem(value) == Some(0);
                whole_term = whole_term.filter(divides).map(|term| term / value);
            }
            _ => {
                sum += term;
                whole_sum = whole_sum
                    .zip(whole_term)
                    .and_then(|(a, b)| a.checked_add(b));
                let sign = if operation == '-' { -1 } else { 1 };
                term = real * sign as f64;
                whole_term = value.checked_mul(sign);
            }
        }
    }
    let whole = whole_sum
        .zip(whole_term)
        .and_then(|(a, b)| a.checked_add(b));
    let real = || Some(sum + term).filter(|real| real.is_finite());
    whole.map(Number::Int).or_else(|| real().map(Number::Real))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: &str) -> Option<String> {
        right_answer(question).map(|number| number.to_string())
    }

    #[test]
    fn every_example_is_known() {
        let tasks = include_str!("../../../tests/data/example_tasks.jsonl").lines();
        for task in tasks {
            let (question, expected) = learnt(task).unwrap();
            assert_eq!(right_answer(&question), Some(expected), "{question}");
            let wrapped = format!("<user>{question}</user>\n<assistant>");
            assert_eq!(right_answer(&wrapped), Some(expected));
        }
    }

    #[test]
    fn formulas_are_worked_out() {
        for (question, right) in [
            ("What is 3 + 4?", "7"),
            ("What is 3 + 4 * 5 - 1?", "22"),
            ("Task 9: 7 minus 12", "-5"),
            ("1 / 4", "0.25"),
            ("12 / 4", "3"),
            ("10000000000000000000000 + 1", "10000000000000000000001"),
            ("6 rows of 7?", "42"),
            ("2 and 3 and 4", "9"),
        ] {
            assert_eq!(answer(question).as_deref(), Some(right), "{question}");
        }
        for question in ["", "How are you?", "1 / 0"] {
            assert_eq!(answer(question), None, "{question}");
        }
    }
}
