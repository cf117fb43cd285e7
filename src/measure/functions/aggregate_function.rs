//! [`AggregateFunction`]: what the aggregate functions share.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, not_impl_err};
use datafusion::logical_expr::aggregate_doc_sections::DOC_SECTION_STATISTICAL;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF,
    Signature, Volatility,
};

use super::argument::{self, Argument};
use super::group_states::{GroupStates, OneGroup};

/// Name, arguments and types of an aggregate function, and how to make the [`GroupStates`] of a call.
#[derive(Debug)]
pub(super) struct AggregateFunction<G> {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) arguments: Vec<Argument>,
    pub(super) returns: DataType,
    pub(super) state: Vec<(&'static str, DataType)>,
    pub(super) in_order: bool,
    pub(super) groups: fn(&AccumulatorArgs) -> Result<G>,
}

impl<G: GroupStates> AggregateFunction<G> {
    pub(super) fn udaf(self) -> AggregateUDF {
        AggregateUDF::from(Udaf {
            documentation: argument::document(
                DOC_SECTION_STATISTICAL,
                self.name,
                self.about,
                &self.arguments,
            ),
            signature: Signature::user_defined(Volatility::Immutable),
            function: self,
        })
    }

    fn groups(&self, args: &AccumulatorArgs) -> Result<G> {
        if args.is_distinct {
            return not_impl_err!(
                "{0}(DISTINCT ...); take {0} of a subquery with DISTINCT",
                self.name
            );
        }
        (self.groups)(args)
    }
}

#[derive(Debug)]
struct Udaf<G> {
    function: AggregateFunction<G>,
    signature: Signature,
    documentation: Documentation,
}

impl<G> PartialEq for Udaf<G> {
    fn eq(&self, other: &Self) -> bool {
        self.function.name == other.function.name
    }
}

impl<G> Eq for Udaf<G> {}

impl<G> Hash for Udaf<G> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.name.hash(state);
    }
}

impl<G: GroupStates> AggregateUDFImpl for Udaf<G> {
    fn name(&self) -> &str {
        self.function.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        argument::coerce(self.function.name, &self.function.arguments, given)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.function.returns.clone())
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |(name, data_type): &(&str, DataType)| {
            let name = format_state_name(args.name, name);
            Arc::new(Field::new(name, data_type.clone(), true))
        };
        Ok(self.function.state.iter().map(field).collect())
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        match self.function.in_order {
            true => AggregateOrderSensitivity::HardRequirement,
            false => AggregateOrderSensitivity::Insensitive,
        }
    }

    /// A planner that finds no reverse of a function drops its order too.
    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(OneGroup(self.function.groups(&args)?)))
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.function.groups(&args)?))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}
