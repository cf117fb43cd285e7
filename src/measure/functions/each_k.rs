//! Functions of a task's scores that return one number for each k: `pass_at_each_k`, `pass_hat_each_k`, `best_of_each_k`,
//! `mean_of_each_first_k`, `std_of_each_first_k` and `majority_at_each_k`.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, Float64Builder, StringViewArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;

use super::double_double::AllAmong;
use super::lists::{NumberLists, list_range, lists};
use super::scalar::{ScalarFunction, exactly, integer, list_of, numbers, texts};
use super::summary_each::Moments;
use crate::python::Compensated;

/// `pass_at_each_k(values DOUBLE[]) -> DOUBLE[]`: pass@k of a task for k = 1, 2, ..., n, with n the
/// number of scores that are not null.
///
/// If every score is 0 or 1, the unbiased estimator `1 - C(wrong, k) / C(n, k)` (M. Chen et al.,
/// "Evaluating Large Language Models Trained on Code", 2021, equation 1), with the quotient rounded
/// once; otherwise the maximum of the first k scores, as in NeMo Gym. A null list gives null.
pub fn pass_at_each_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "pass_at_each_k",
        "pass@k for each k up to the number of scores: the unbiased estimator \
         1 - C(wrong, k) / C(n, k) if every score is 0 or 1, else the maximum of the first k.",
        vec![numbers("values", SCORES)],
        list_of(DataType::Float64),
        |columns| each_k(columns, one_right, first_maxima),
    )
}

/// `pass_hat_each_k(values DOUBLE[]) -> DOUBLE[]`: pass^k of a task for k = 1, 2, ..., n: the
/// probability that k rollouts drawn from the n are all right, `C(c, k) / C(n, k)`, rounded once
/// (S. Yao et al., "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains",
/// 2024, section 3). Null where a score is neither 0 nor 1.
pub fn pass_hat_each_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "pass_hat_each_k",
        "pass^k for each k up to the number of scores: C(right, k) / C(n, k), the probability that \
         k rollouts are all right; null if a score is neither 0 nor 1.",
        vec![numbers("values", SCORES)],
        list_of(DataType::Float64),
        |columns| {
            let all_right = |n, right| AllAmong::new(n, right).collect();
            each_k(columns, all_right, |_, _| None)
        },
    )
}

const SCORES: &str =
    "The scores of a task's rollouts in order; null where a rollout lacks the score.";

const MAX_K: &str = "The largest k, and the length of the list returned.";

/// Returns how many scores are 1, if all are 0 or 1.
fn right_ones(scores: &[f64]) -> Option<u64> {
    scores.iter().try_fold(0, |right, &score| match score {
        0.0 => Some(right),
        1.0 => Some(right + 1),
        _ => None,
    })
}

/// Returns the probability that at least one of k drawn rollouts is right, for each k.
fn one_right(n: u64, right: u64) -> Vec<f64> {
    AllAmong::new(n, n - right).map(|none| 1.0 - none).collect()
}

/// Returns a list for each row, computed from its scores that are not null. `binary` returns the list for `n` scores
/// of 0 and 1 by the number of right ones; `others` writes the list for other scores.
fn each_k(
    columns: &[ArrayRef],
    binary: impl Fn(u64, u64) -> Vec<f64>,
    others: impl Fn(&mut [f64], &mut Float64Builder) -> Option<()>,
) -> Result<ArrayRef> {
    let [values] = exactly(columns)?;
    let values = NumberLists::of(values)?;
    let mut seen: HashMap<(u64, u64), Vec<f64>> = HashMap::new();
    let mut scores: Vec<f64> = Vec::new();
    lists(values.len(), |row, list| {
        let Some(row) = values.row(row) else {
            return Ok(None);
        };
        scores.clear();
        scores.extend(row.flatten());
        let Some(right) = right_ones(&scores) else {
            return Ok(others(&mut scores, list));
        };
        let n = scores.len() as u64;
        let known = seen.entry((n, right)).or_insert_with(|| binary(n, right));
        list.append_slice(known);
        Ok(Some(()))
    })
}

fn first_maxima(scores: &mut [f64], list: &mut Float64Builder) -> Option<()> {
    let mut maximum = scores.first().copied().unwrap_or_default();
    for &mut score in scores {
        if score > maximum {
            maximum = score;
        }
        list.append_value(maximum);
    }
    Some(())
}

/// `best_of_each_k(values DOUBLE[]) -> DOUBLE[]`: for k = 1, 2, ..., n the expected maximum of k
/// scores drawn without replacement from the n that are not null:
/// `sum_i C(i - 1, k - 1) / C(n, k) * v_(i)` over the scores in ascending order, because `v_(i)` is the
/// maximum of that many of the `C(n, k)` subsets. It is the unbiased estimator of the mean of the
/// best of k, and equals pass@k where every score is 0 or 1; elsewhere the time grows with the square
/// of n. A null list gives null.
pub fn best_of_each_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "best_of_each_k",
        "The expected maximum of k scores drawn without replacement, for each k up to the number of \
         scores: the mean for k = 1, the maximum for k = n.",
        vec![numbers("values", SCORES)],
        list_of(DataType::Float64),
        |columns| each_k(columns, one_right, expected_maxima),
    )
}

fn expected_maxima(scores: &mut [f64], list: &mut Float64Builder) -> Option<()> {
    // The mean is summed in the order of the rollouts, before the scores are sorted.
    let sum: Compensated = scores.iter().copied().collect();
    list.append_value(sum.total() / scores.len() as f64);
    scores.sort_unstable_by(|a, b| b.total_cmp(a));
    (2..=scores.len()).for_each(|k| list.append_value(expected_maximum(scores, k)));
    Some(())
}

/// Returns the expected maximum of `k` scores, which are in descending order. The largest is the maximum of
/// `k / n` of the subsets; each smaller one, the i-th from below, of `(i - k) / (i - 1)` times as many.
fn expected_maximum(descending: &[f64], k: usize) -> f64 {
    let n = descending.len();
    let mut share = k as f64 / n as f64;
    let mut sum = Compensated::default();
    for (&score, i) in descending.iter().zip((k..=n).rev()) {
        if share == 0.0 {
            break;
        }
        sum.add(share * score);
        share *= (i - k) as f64 / (i - 1) as f64;
    }
    sum.total()
}

/// `mean_of_each_first_k(values DOUBLE[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2, ..., `max_k` the
/// mean of the scores in the first k positions, which is Python's `sum()` divided by their number; null
/// until there is one. Past the end of the list the mean stays the same. A null argument gives null.
pub fn mean_of_each_first_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "mean_of_each_first_k",
        "The mean of the scores among the first k rollouts, for each k up to max_k.",
        vec![numbers("values", SCORES), integer("max_k", MAX_K)],
        list_of(DataType::Float64),
        |columns| first_scores("mean_of_each_first_k", columns, |moments, _| moments.mean()),
    )
}

/// `std_of_each_first_k(values DOUBLE[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2, ..., `max_k` the
/// sample standard deviation (ddof 1) of the scores in the first k positions; null for fewer than two.
/// For the first 1,000 scores it is `sqrt(sum((score - mean)^2) / (n - 1))` with Python's `sum()`. Past
/// the end of the list it stays the same. A null argument gives null.
pub fn std_of_each_first_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "std_of_each_first_k",
        "The sample standard deviation of the scores among the first k rollouts, for each k up to max_k.",
        vec![numbers("values", SCORES), integer("max_k", MAX_K)],
        list_of(DataType::Float64),
        |columns| first_scores("std_of_each_first_k", columns, std),
    )
}

/// Beyond this many scores, one pass over them replaces a sum for each k; the results agree within a few bits.
const TWO_PASSES: usize = 1_000;

fn std(moments: &Moments, scores: &[f64]) -> Option<f64> {
    if scores.len() > TWO_PASSES {
        return moments.std();
    }
    let mean = moments.mean()?;
    let squares = scores.iter().map(|score| (score - mean) * (score - mean));
    let squares: Compensated = squares.collect();
    (scores.len() > 1).then(|| (squares.total() / (scores.len() - 1) as f64).sqrt())
}

/// Computes a statistic of the scores in the first k positions, for each k.
fn first_scores(
    function: &str,
    columns: &[ArrayRef],
    statistic: impl Fn(&Moments, &[f64]) -> Option<f64>,
) -> Result<ArrayRef> {
    let [values, max_k] = exactly(columns)?;
    let (mut moments, mut scores, mut last) = (Moments::default(), Vec::new(), None);
    each_first_k(function, [values, max_k], |_, k, score| {
        if k == 0 {
            (moments, last) = (Moments::default(), None);
            scores.clear();
        }
        if let Some(score) = score {
            moments.add(score);
            scores.push(score);
            last = statistic(&moments, &scores);
        }
        Some(last)
    })
}

/// Returns a list for each row: for each k from 1 to the row's `max_k`, the number that `next` returns for the row, k
/// and the score at k. A call with k = 0 begins a row; it is null if the call returns `None` or an argument is null.
fn each_first_k(
    function: &str,
    [values, max_k]: [&ArrayRef; 2],
    mut next: impl FnMut(usize, i64, Option<f64>) -> Option<Option<f64>>,
) -> Result<ArrayRef> {
    let values = NumberLists::of(values)?;
    let max_k = max_k.as_primitive::<Int64Type>();
    lists(values.len(), |row, list| {
        let (Some(scores), true) = (values.row(row), max_k.is_valid(row)) else {
            return Ok(None);
        };
        let max_k = max_k.value(row);
        if max_k < 0 {
            return exec_err!("{function}: max_k = {max_k}; give 0 or more");
        }
        let mut scores = scores.fuse();
        let begun = next(row, 0, None);
        for k in (1..=max_k).filter(|_| begun.is_some()) {
            list.append_option(next(row, k, scores.next().flatten()).flatten());
        }
        Ok(begun.map(|_| ()))
    })
}

/// `majority_at_each_k(values DOUBLE[], answers VARCHAR[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2,
/// ..., `max_k` the score of the most frequent answer among the first k rollouts, as NeMo Gym defines it.
/// It counts pairs of answer and score (an answer with two scores is two candidates) and returns the mean
/// score of the most frequent pairs, all that tie; 0 if no rollout has both. Answers are equal if their
/// texts are, see [`answer_text`](super::answer_text). A null argument gives null.
pub fn majority_at_each_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "majority_at_each_k",
        "The score of the most frequent answer among the first k rollouts, for each k up to max_k; \
         the mean score of those that tie, 0 without answers.",
        vec![
            numbers("values", SCORES),
            texts(
                "answers",
                "Their answers in the same order; null where a rollout has none.",
            ),
            integer("max_k", MAX_K),
        ],
        list_of(DataType::Float64),
        majorities,
    )
}

fn majorities(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [values, answers, max_k] = exactly(columns)?;
    let wrong = || exec_datafusion_err!("{} instead of List(Utf8View)", answers.data_type());
    let answers = answers.as_list_opt::<i32>().ok_or_else(wrong)?;
    let texts = answers.values().as_string_view_opt().ok_or_else(wrong)?;
    let mut votes = Votes::default();
    let mut places = 0..0;
    each_first_k("majority_at_each_k", [values, max_k], |row, k, score| {
        if k == 0 {
            places = list_range(answers, row)?;
            votes.clear();
            return Some(None);
        }
        let answer = places.next().and_then(|place| text(texts, place));
        if let (Some(score), Some(answer)) = (score, answer) {
            votes.add(answer, score);
        }
        Some(Some(votes.winner))
    })
}

fn text(texts: &StringViewArray, place: usize) -> Option<&str> {
    texts.is_valid(place).then(|| texts.value(place))
}

/// The votes for pairs of answer and score so far.
#[derive(Default)]
struct Votes<'a> {
    pairs: HashMap<(&'a str, u64), usize>,
    /// Score and votes of each pair, in the order of their first vote.
    counts: Vec<(f64, usize)>,
    most: usize,
    winner: f64,
}

impl<'a> Votes<'a> {
    fn clear(&mut self) {
        self.pairs.clear();
        self.counts.clear();
        self.most = 0;
        self.winner = 0.0;
    }

    fn add(&mut self, answer: &'a str, score: f64) {
        // 0.0 and -0.0 are one score.
        let key = (answer, (score + 0.0).to_bits());
        let place = *self.pairs.entry(key).or_insert(self.counts.len());
        if place == self.counts.len() {
            self.counts.push((score, 0));
        }
        let Some((score, votes)) = self.counts.get_mut(place) else {
            return;
        };
        *votes += 1;
        if *votes > self.most {
            self.most = *votes;
            self.winner = *score;
        } else if *votes == self.most {
            let tied = self.counts.iter().filter(|(_, votes)| *votes == self.most);
            let count = tied.clone().count();
            let sum: Compensated = tied.map(|(score, _)| *score).collect();
            self.winner = sum.total() / count as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use proptest::prelude::*;

    fn descending(mut scores: Vec<f64>) -> Vec<f64> {
        scores.sort_unstable_by(|a, b| b.total_cmp(a));
        scores
    }

    fn binomial(n: usize, k: usize) -> BigInt {
        (0..k).fold(BigInt::from(1), |binomial, i| binomial * (n - i) / (i + 1))
    }

    proptest! {
        #[test]
        fn it_is_the_exact_expectation(scores in prop::collection::vec(0.0..1.0, 1..40)) {
            let scores = descending(scores);
            let n = scores.len();
            let mut before = 0.0;
            for k in 1..=n {
                let terms = scores.iter().rev().enumerate().filter(|(i, _)| i + 1 >= k);
                let sum: BigRational = terms
                    .map(|(i, score)| {
                        let score = BigRational::from_float(*score).unwrap();
                        score * BigRational::new(binomial(i, k - 1), binomial(n, k))
                    })
                    .sum();
                let value = expected_maximum(&scores, k);
                let error = (BigRational::from_float(value).unwrap() - &sum) / sum;
                let bound = BigRational::from_float(1e-14).unwrap();
                prop_assert!(error < bound && -error < bound, "{value}");
                prop_assert!(value >= before * (1.0 - 1e-14));
                before = value;
            }
            prop_assert_eq!(expected_maximum(&scores, n), scores[0]);
        }
    }

    #[test]
    fn ten_thousand_scores_keep_their_digits() {
        // The expected maximum of k out of 1, ..., n is k (n + 1) / (k + 1).
        let n = 10_000;
        let scores: Vec<f64> = (1..=n).rev().map(f64::from).collect();
        for k in [1, 2, 3, 10, 100, 5_000, 9_999, 10_000] {
            let expected = f64::from(k) * f64::from(n + 1) / f64::from(k + 1);
            let value = expected_maximum(&scores, k as usize);
            assert!(
                (value - expected).abs() < 1e-12 * expected,
                "{k}: {value} {expected}"
            );
        }
    }
}
