//! [`ScalarFunction`]: what the scalar functions share.

use std::hash::{Hash, Hasher};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::argument::{self, Argument};

/// Computes a column from columns of the same length and of the types of the arguments.
pub(super) type Compute = fn(&[ArrayRef]) -> Result<ArrayRef>;

/// A function of a row.
#[derive(Debug)]
pub(super) struct ScalarFunction {
    name: &'static str,
    arguments: Vec<Argument>,
    returns: DataType,
    compute: Compute,
    signature: Signature,
    documentation: Documentation,
}

impl ScalarFunction {
    pub(super) fn udf(
        section: DocSection,
        name: &'static str,
        about: &str,
        arguments: Vec<Argument>,
        returns: DataType,
        compute: Compute,
    ) -> ScalarUDF {
        ScalarUDF::from(Self {
            name,
            documentation: argument::document(section, name, about, &arguments),
            arguments,
            returns,
            compute,
            signature: Signature::user_defined(Volatility::Immutable),
        })
    }
}

impl PartialEq for ScalarFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ScalarFunction {}

impl Hash for ScalarFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for ScalarFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        argument::coerce(self.name, &self.arguments, given)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = |arg: &ColumnarValue| matches!(arg, ColumnarValue::Scalar(_));
        let constant = args.args.iter().all(constant);
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let computed = (self.compute)(&columns)?;
        Ok(match constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&computed, 0)?),
            false => ColumnarValue::Array(computed),
        })
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}
