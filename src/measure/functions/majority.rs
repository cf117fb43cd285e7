//! The scalar function `majority_at_each_k`.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;

use super::argument::{integer, list_of, numbers, texts};
use super::compensated::Compensated;
use super::first_k::length;
use super::number_lists::{ListWriter, NumberLists, list_range};
use super::pass_at_k::SCORES;
use super::scalar::ScalarFunction;

/// `majority_at_each_k(values DOUBLE[], answers VARCHAR[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2,
/// ..., `max_k` the score of the answer that most of the first k rollouts give, as NeMo Gym defines it:
/// among those that have an answer and the score, count pairs of both, so that one answer with two
/// scores is two candidates; the mean of the scores of the most frequent pairs (all that tie), and 0
/// where there is none. Answers are equal if their text is, see [`answer_text`](super::answer_text).
/// A null argument gives null.
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
            integer(
                "max_k",
                "The largest k, and the length of the list returned.",
            ),
        ],
        list_of(DataType::Float64),
        compute,
    )
}

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [values, answers, max_k] = columns else {
        return exec_err!("majority_at_each_k: {} columns instead of 3", columns.len());
    };
    let values = NumberLists::of(values)?;
    let wrong = || exec_datafusion_err!("{} instead of List(Utf8View)", answers.data_type());
    let answers = answers.as_list_opt::<i32>().ok_or_else(wrong)?;
    let texts = answers.values().as_string_view_opt().ok_or_else(wrong)?;
    let max_k = max_k.as_primitive::<Int64Type>();
    let mut lists = ListWriter::with_capacity(values.len());
    let mut votes = Votes::default();
    for row in 0..values.len() {
        let max_k = max_k.is_valid(row).then(|| max_k.value(row));
        let (Some(scores), Some(mut places), Some(max_k)) =
            (values.row(row), list_range(answers, row), max_k)
        else {
            lists.null_list();
            continue;
        };
        votes.clear();
        let mut scores = scores.fuse();
        for _ in 0..length("majority_at_each_k", max_k)? {
            let score = scores.next().flatten();
            let answer = places.next().and_then(|place| text(texts, place));
            if let (Some(score), Some(answer)) = (score, answer) {
                votes.add(answer, score);
            }
            lists.push(votes.winner());
        }
        lists.end_list()?;
    }
    lists.finish()
}

fn text(texts: &StringViewArray, place: usize) -> Option<&str> {
    texts.is_valid(place).then(|| texts.value(place))
}

/// The pairs of answer and score so far.
#[derive(Default)]
struct Votes<'a> {
    pairs: HashMap<(&'a str, u64), usize>,
    /// The scores of the pairs in the order of their first vote, and the votes.
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

    fn winner(&self) -> f64 {
        self.winner
    }
}
