//! The scalar function `list_quantiles(values, probabilities)`.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_ARRAY;

use super::argument::{list_of, numbers};
use super::number_lists::{ListWriter, NumberLists};
use super::scalar::ScalarFunction;

/// `list_quantiles(values DOUBLE[], probabilities DOUBLE[]) -> DOUBLE[]`: the quantiles of a list,
/// without its nulls, interpolated linearly between the two values beside them, as
/// `numpy.quantile` does by default (type 7 of Hyndman and Fan, 1996). Null for a list without
/// values.
pub fn list_quantiles() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_ARRAY,
        "list_quantiles",
        "Quantiles of a list, interpolated linearly.",
        vec![
            numbers("values", "Numbers in any order; nulls are passed over."),
            numbers("probabilities", "Between 0 and 1."),
        ],
        list_of(DataType::Float64),
        compute,
    )
}

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [values, probabilities] = columns else {
        return exec_err!("list_quantiles: {} columns instead of 2", columns.len());
    };
    let (values, probabilities) = (NumberLists::of(values)?, NumberLists::of(probabilities)?);
    let mut quantiles = ListWriter::with_capacity(values.len());
    let mut sorted: Vec<f64> = Vec::new();
    for row in 0..values.len() {
        sorted.clear();
        sorted.extend(values.row(row).into_iter().flatten().flatten());
        if sorted.is_empty() {
            quantiles.null_list();
            continue;
        }
        sorted.sort_unstable_by(f64::total_cmp);
        for probability in probabilities.row(row).into_iter().flatten() {
            quantiles.push_option(probability.and_then(|share| quantile(&sorted, share)));
        }
        quantiles.end_list()?;
    }
    quantiles.finish()
}

/// Linear between the two numbers around the quantile; nothing of no numbers, and for what is no
/// probability.
pub(in crate::measure) fn quantile(ascending: &[f64], probability: f64) -> Option<f64> {
    if !(0.0..=1.0).contains(&probability) {
        return None;
    }
    let place = probability * ascending.len().checked_sub(1)? as f64;
    let (below, above) = (place.floor(), place.ceil());
    let low = ascending.get(below as usize)?;
    let high = ascending.get(above as usize)?;
    // From the nearer of the two, as numpy does.
    let share = place - below;
    Some(match share < 0.5 {
        true => low + (high - low) * share,
        false => high - (high - low) * (1.0 - share),
    })
}

/// The mean of the two numbers in the middle, or the one, as Python's `statistics` and pandas have it; nothing of no
/// numbers. `quantile` of 0.5 can differ in the last digit.
pub(in crate::measure) fn median(ascending: &[f64]) -> Option<f64> {
    let middle = ascending.len() / 2;
    let high = ascending.get(middle)?;
    match ascending.len() % 2 {
        1 => Some(*high),
        _ => Some((ascending.get(middle - 1)? + high) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_linear_between_numbers() {
        let numbers = [1.0, 2.0, 4.0, 8.0];
        for (probability, expected) in
            [(0.0, 1.0), (0.25, 1.75), (0.5, 3.0), (0.9, 6.8), (1.0, 8.0)]
        {
            let got = quantile(&numbers, probability).unwrap();
            assert!((got - expected).abs() < 1e-12, "{probability}: {got}");
        }
        assert_eq!(quantile(&[5.0], 0.3), Some(5.0));
        assert_eq!(quantile(&[1.0, f64::INFINITY], 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&numbers, 1.5), None);
        assert_eq!(median(&numbers), Some(3.0));
        assert_eq!(median(&numbers[..3]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
