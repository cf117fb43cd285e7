//! Sums rounded as NumPy rounds them: by halves, down to parts of at most 128 terms.
//!
//! Rounding errors so grow with the logarithm of the length, and which terms are added to which
//! follows from the length alone:
//!
//! ```text
//!                 [0, 1000)
//!            ┌────────┴────────┐
//!        [0, 496)         [496, 1000)
//!       ┌────┴────┐       ┌────┴────┐
//!   [0, 248) [248, 496) ...        ...      down to 128 terms
//! ```

/// Longest part that is summed without halving it.
const PART: usize = 128;
/// Accumulators within a part.
const LANES: usize = 8;

/// The sum of `term(0)` to `term(len - 1)`, as `numpy.add.reduce` rounds it.
pub(in crate::measure) fn pairwise_sum(len: usize, term: impl Fn(usize) -> f64) -> f64 {
    0.0 + sum(0, len, &term)
}

fn sum(start: usize, len: usize, term: &impl Fn(usize) -> f64) -> f64 {
    if len <= PART {
        return part(start, len, term);
    }
    let half = len / 2;
    let half = half - half % LANES;
    sum(start, half, term) + sum(start + half, len - half, term)
}

/// Eight lanes, combined as a tree, then the rest one by one.
fn part(start: usize, len: usize, term: &impl Fn(usize) -> f64) -> f64 {
    let (mut total, mut next) = (0.0, 0);
    if len >= LANES {
        let mut lanes: [f64; LANES] = std::array::from_fn(|lane| term(start + lane));
        next = LANES;
        while next + LANES <= len {
            for (lane, total) in lanes.iter_mut().enumerate() {
                *total += term(start + next + lane);
            }
            next += LANES;
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        total = ((a + b) + (c + d)) + ((e + f) + (g + h));
    }
    (next..len).fold(total, |total, at| total + term(start + at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, read off its recursive form.
    fn defined(terms: &[f64]) -> f64 {
        let len = terms.len();
        if len > 128 {
            let half = len / 2 - (len / 2) % 8;
            let (low, high) = terms.split_at(half);
            return defined(low) + defined(high);
        }
        let blocks = if len < 8 { 0 } else { len / 8 * 8 };
        let lane = |lane: usize| {
            let column = terms[..blocks].iter().skip(lane).step_by(8);
            column.copied().reduce(|sum, term| sum + term).unwrap()
        };
        let pair = |first: usize| lane(first) + lane(first + 1);
        let sum = match blocks {
            0 => 0.0,
            _ => (pair(0) + pair(2)) + (pair(4) + pair(6)),
        };
        terms[blocks..].iter().fold(sum, |sum, term| sum + term)
    }

    #[test]
    fn ten_tenths_are_one() {
        assert_eq!(pairwise_sum(10, |_| 0.1), 1.0);
        assert_eq!(pairwise_sum(0, |_| 0.1), 0.0);
    }

    proptest! {
        #[test]
        fn it_is_what_is_defined(terms in prop::collection::vec(-1e3..1e3, 0..1000)) {
            prop_assert_eq!(pairwise_sum(terms.len(), |at| terms[at]), 0.0 + defined(&terms));
        }
    }
}
