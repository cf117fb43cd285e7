//! The scalar function `list_quantiles(values, probabilities)`.

use std::sync::Arc;

use arrow::array::{AsArray, Float64Builder, ListBuilder};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, scalar_doc_sections::DOC_SECTION_ARRAY,
};

use super::statistics::list;

/// `list_quantiles(values DOUBLE[], probabilities DOUBLE[]) -> DOUBLE[]`: the quantiles of a list,
/// without its nulls, interpolated linearly between the two values beside them, as
/// `numpy.quantile` does by default (type 7 of Hyndman and Fan, 1996). Null for a list without
/// values.
pub fn list_quantiles() -> ScalarUDF {
    let floats = list(DataType::Float64);
    ScalarUDF::from(Function {
        signature: Signature::exact(vec![floats.clone(), floats], Volatility::Immutable),
        documentation: Documentation::builder(
            DOC_SECTION_ARRAY,
            "Quantiles of a list, interpolated linearly.",
            "list_quantiles(values, probabilities)",
        )
        .with_argument("values", "Numbers in any order; nulls are passed over.")
        .with_argument("probabilities", "Between 0 and 1.")
        .build(),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    signature: Signature,
    documentation: Documentation,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        "list_quantiles"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(list(DataType::Float64))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [values, probabilities] = args.args.as_slice() else {
            return exec_err!("list_quantiles takes two arguments");
        };
        let lists = values.to_array(args.number_rows)?;
        let probabilities = probabilities.to_array(args.number_rows)?;
        let mut quantiles = ListBuilder::new(Float64Builder::new());
        let rows = lists.as_list::<i32>().iter();
        for (values, probabilities) in rows.zip(probabilities.as_list::<i32>().iter()) {
            let values = values.map(|values| {
                let values = values.as_primitive::<Float64Type>().iter();
                values.flatten().collect::<Vec<f64>>()
            });
            let Some(mut values) = values.filter(|values| !values.is_empty()) else {
                quantiles.append(false);
                continue;
            };
            values.sort_unstable_by(f64::total_cmp);
            for probability in probabilities
                .iter()
                .flat_map(|list| list.as_primitive::<Float64Type>())
            {
                let quantile = probability.map(|probability| quantile(&values, probability));
                quantiles.values().append_option(quantile.flatten());
            }
            quantiles.append(true);
        }
        Ok(ColumnarValue::Array(Arc::new(quantiles.finish())))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// Of sorted values; nothing for what is no probability.
fn quantile(sorted: &[f64], probability: f64) -> Option<f64> {
    if !(0.0..=1.0).contains(&probability) {
        return None;
    }
    let place = probability * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let lower = sorted.get(below)?;
    let upper = sorted.get(below + 1).unwrap_or(lower);
    Some(lower + (upper - lower) * (place - below as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        for (probability, expected) in [(0.0, 1.0), (0.5, 3.0), (0.9, 6.8), (1.0, 8.0)] {
            let got = quantile(&sorted, probability).unwrap();
            assert!((got - expected).abs() < 1e-12, "{probability}: {got}");
        }
        assert_eq!(quantile(&[5.0], 0.3), Some(5.0));
        assert_eq!(quantile(&sorted, 1.5), None);
    }
}
