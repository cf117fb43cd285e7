//! The aggregate function `pairwise_sum(value, position, length)`.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, Signature,
    Volatility, scalar_doc_sections::DOC_SECTION_MATH,
};

use super::groups::{PairwiseGroups, PairwiseOne};

/// `pairwise_sum(value DOUBLE, position BIGINT, length BIGINT) -> DOUBLE`: the sum of an array of
/// `length` elements, with `value` at `position` (from 0) and zero where no row is, rounded as NumPy
/// rounds it: by halves down to 128 elements, in eight lanes below. The order and the partitions in
/// which rows arrive make no difference to any bit of it.
///
/// A row whose value or position is null is passed over; a group without any other row gives null.
pub fn pairwise_sum() -> AggregateUDF {
    AggregateUDF::from(Function {
        signature: Signature::exact(
            vec![DataType::Float64, DataType::Int64, DataType::Int64],
            Volatility::Immutable,
        ),
        documentation: Documentation::builder(
            DOC_SECTION_MATH,
            "Sum of an array given element by element, rounded as NumPy rounds it.",
            "pairwise_sum(value, position, length)",
        )
        .with_argument(
            "value",
            "The element; one that is not given counts as zero.",
        )
        .with_argument("position", "Its position in the array, from 0.")
        .with_argument("length", "Number of elements, the same in every row.")
        .build(),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    signature: Signature,
    documentation: Documentation,
}

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}

impl AggregateUDFImpl for Function {
    fn name(&self) -> &str {
        "pairwise_sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |name: &str, data_type: DataType| {
            Arc::new(Field::new(
                format_state_name(args.name, name),
                data_type,
                true,
            ))
        };
        Ok(vec![
            field("length", DataType::Int64),
            field("starts", list(DataType::Int64)),
            field("lens", list(DataType::Int64)),
            field("sums", list(DataType::Float64)),
        ])
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::<PairwiseOne>::default())
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::<PairwiseGroups>::default())
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// One group is a special case of many.
impl Accumulator for PairwiseOne {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |column| column.len());
        self.0.update_batch(values, &vec![0; rows], None, 1)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let rows = states.first().map_or(0, |column| column.len());
        self.0.merge_batch(states, &vec![0; rows], 1)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.0.take_one()?, 0)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let columns = self.0.take_one_state()?;
        columns
            .iter()
            .map(|column| ScalarValue::try_from_array(column, 0))
            .collect()
    }

    fn size(&self) -> usize {
        GroupsAccumulator::size(&self.0)
    }
}
