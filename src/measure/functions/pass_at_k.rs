//! The scalar functions `pass_at_each_k`, `pass_hat_each_k`, `pass_at_k` and `pass_hat_k`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;

use super::all_among::AllAmong;
use super::argument::{integer, list_of, numbers};
use super::number_lists::{ListWriter, NumberLists};
use super::scalar::ScalarFunction;

/// `pass_at_each_k(values DOUBLE[]) -> DOUBLE[]`: pass@k of a task for k = 1, 2, ..., n, with n the
/// number of scores that are not null.
///
/// If every score is 0 or 1, the unbiased estimator `1 - C(wrong, k) / C(n, k)` (M. Chen et al.,
/// "Evaluating Large Language Models Trained on Code", 2021, equation 1), with the quotient rounded
/// once; otherwise the maximum of the first k scores, as NeMo Gym has it. A null list gives null.
pub fn pass_at_each_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "pass_at_each_k",
        "pass@k for each k up to the number of scores: the unbiased estimator \
         1 - C(wrong, k) / C(n, k) if every score is 0 or 1, else the maximum of the first k.",
        vec![numbers("values", SCORES)],
        list_of(DataType::Float64),
        |columns| each_k(columns, Attempts::OneRight, first_maxima),
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
            each_k(columns, Attempts::AllRight, |_, lists| {
                lists.null_list();
                Ok(())
            })
        },
    )
}

/// `pass_at_k(n BIGINT, c BIGINT, k BIGINT) -> DOUBLE`: `1 - C(n - c, k) / C(n, k)` of `c` right
/// rollouts out of `n`. Null for `k > n`; an error for `c` outside 0 to `n` and for `k < 1`.
pub fn pass_at_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "pass_at_k",
        "pass@k from counts: 1 - C(n - c, k) / C(n, k); null if k > n.",
        counts(),
        DataType::Float64,
        |columns| {
            one_k("pass_at_k", columns, |n, c, k| {
                1.0 - AllAmong::new(n, n - c).of(k)
            })
        },
    )
}

/// `pass_hat_k(n BIGINT, c BIGINT, k BIGINT) -> DOUBLE`: `C(c, k) / C(n, k)` of `c` right rollouts
/// out of `n`. Null for `k > n`; an error for `c` outside 0 to `n` and for `k < 1`.
pub fn pass_hat_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "pass_hat_k",
        "pass^k from counts: C(c, k) / C(n, k); null if k > n.",
        counts(),
        DataType::Float64,
        |columns| one_k("pass_hat_k", columns, |n, c, k| AllAmong::new(n, c).of(k)),
    )
}

pub(super) const SCORES: &str =
    "The scores of a task's rollouts in order; null where a rollout lacks the score.";

fn counts() -> Vec<super::argument::Argument> {
    vec![
        integer("n", "Number of rollouts."),
        integer("c", "Number of right ones among them."),
        integer("k", "Number of attempts."),
    ]
}

/// How many of the scores are 1, if they all are 0 or 1.
fn right_ones(scores: &[f64]) -> Option<u64> {
    scores.iter().try_fold(0, |right, &score| match score {
        0.0 => Some(right),
        1.0 => Some(right + 1),
        _ => None,
    })
}

/// What is asked of k rollouts that are drawn.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attempts {
    /// At least one is right.
    OneRight,
    /// All are right.
    AllRight,
}

/// The lists for scores of 0 and 1 that a batch has already seen, by number and right ones.
#[derive(Default)]
struct Seen(HashMap<(u64, u64), Range<usize>>);

impl Seen {
    /// Writes the list of a row.
    fn write(
        &mut self,
        n: u64,
        right: u64,
        attempts: Attempts,
        lists: &mut ListWriter,
    ) -> Result<()> {
        if let Some(same) = self.0.get(&(n, right)) {
            lists.push_again(same.clone());
            lists.end_list()?;
            return Ok(());
        }
        match attempts {
            Attempts::OneRight => {
                AllAmong::new(n, n - right).for_each(|none| lists.push(1.0 - none))
            }
            Attempts::AllRight => AllAmong::new(n, right).for_each(|all| lists.push(all)),
        }
        let written = lists.end_list()?;
        self.0.insert((n, right), written);
        Ok(())
    }
}

/// For each row the list for its scores that are not null; `others` writes it where one is neither 0
/// nor 1.
pub(super) fn each_k(
    columns: &[ArrayRef],
    attempts: Attempts,
    others: impl Fn(&mut [f64], &mut ListWriter) -> Result<()>,
) -> Result<ArrayRef> {
    let [values] = columns else {
        return exec_err!("{} columns instead of 1", columns.len());
    };
    let values = NumberLists::of(values)?;
    let mut lists = ListWriter::with_capacity(values.len());
    let mut seen = Seen::default();
    let mut scores: Vec<f64> = Vec::new();
    for row in 0..values.len() {
        let Some(row) = values.row(row) else {
            lists.null_list();
            continue;
        };
        scores.clear();
        scores.extend(row.flatten());
        match right_ones(&scores) {
            Some(right) => seen.write(scores.len() as u64, right, attempts, &mut lists)?,
            None => others(&mut scores, &mut lists)?,
        }
    }
    lists.finish()
}

fn first_maxima(scores: &mut [f64], lists: &mut ListWriter) -> Result<()> {
    let mut maximum = scores.first().copied().unwrap_or_default();
    for &mut score in scores {
        if score > maximum {
            maximum = score;
        }
        lists.push(maximum);
    }
    lists.end_list()?;
    Ok(())
}

/// Up to here every integer is a double.
const MAX_COUNT: i64 = 1 << 53;

fn one_k(
    function: &str,
    columns: &[ArrayRef],
    of: impl Fn(u64, u64, u64) -> f64,
) -> Result<ArrayRef> {
    let [n, c, k] = columns else {
        return exec_err!("{function}: {} columns instead of 3", columns.len());
    };
    let [n, c, k] = [n, c, k].map(|column| column.as_primitive::<Int64Type>());
    let rows = n.iter().zip(c).zip(k);
    let values = rows.map(|((n, c), k)| {
        let (Some(n), Some(c), Some(k)) = (n, c, k) else {
            return Ok(None);
        };
        if !(0..=n).contains(&c) || n > MAX_COUNT {
            return exec_err!(
                "{function}: c = {c} right ones of n = {n}; c must be from 0 to n, and n at most 2^53"
            );
        }
        if k < 1 {
            return exec_err!("{function}: k = {k}; count attempts from 1");
        }
        Ok((k <= n).then(|| of(n.unsigned_abs(), c.unsigned_abs(), k.unsigned_abs())))
    });
    let values: Float64Array = values.collect::<Result<_>>()?;
    Ok(Arc::new(values))
}
