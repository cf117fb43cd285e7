/// A sum and its accumulated rounding error, as `sum()` of Python 3.12 and later (A. Neumaier,
/// "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", ZAMM 54, 1974):
/// `t = s + x; c += error of that addition; s = t`, and `s + c` in the end.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Compensated {
    pub(crate) sum: f64,
    pub(crate) errors: f64,
}

impl Compensated {
    pub(crate) fn add(&mut self, value: f64) {
        let (sum, error) = two_sum(self.sum, value);
        self.sum = sum;
        self.errors += error;
    }

    /// Adds another sum with its rounding error.
    pub(crate) fn merge(&mut self, other: Self) {
        self.add(other.sum);
        self.errors += other.errors;
    }

    /// Returns the sum. The rounding error of an infinite sum means nothing.
    pub(crate) fn total(self) -> f64 {
        if self.errors.is_finite() {
            self.sum + self.errors
        } else {
            self.sum
        }
    }
}

impl FromIterator<f64> for Compensated {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut sum = Self::default();
        values.into_iter().for_each(|value| sum.add(value));
        sum
    }
}

/// Returns the rounded sum and its rounding error.
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let from_b = sum - a;
    (sum, (a - (sum - from_b)) + (b - from_b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `cs_add` and `cs_to_double` of CPython's `bltinmodule.c`.
    fn python_sum(values: &[f64]) -> f64 {
        let (mut high, mut low) = (0.0f64, 0.0f64);
        for &value in values {
            let total = high + value;
            if high.abs() >= value.abs() {
                low += (high - total) + value;
            } else {
                low += (value - total) + high;
            }
            high = total;
        }
        if low != 0.0 && low.is_finite() {
            high + low
        } else {
            high
        }
    }

    proptest! {
        #[test]
        fn every_bit_is_that_of_python(values in prop::collection::vec(
            prop_oneof![-1e3..1e3, Just(0.1), Just(1e16), Just(-1e16), any::<f64>()], 0..50))
        {
            let sum: Compensated = values.iter().copied().collect();
            let (sum, python) = (sum.total(), python_sum(&values));
            prop_assert!(sum.to_bits() == python.to_bits() || sum.is_nan() && python.is_nan(), "{sum} {python}");
        }
    }

    #[test]
    fn lost_digits_come_back() {
        let sum: Compensated = [1.0, 1e100, 1.0, -1e100].into_iter().collect();
        assert_eq!(sum.total(), 2.0);
        let sum: Compensated = [f64::INFINITY, 1.0].into_iter().collect();
        assert_eq!(sum.total(), f64::INFINITY);
    }
}
