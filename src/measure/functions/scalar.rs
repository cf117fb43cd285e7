//! What the scalar functions share: [`ScalarFunction`] declares one, [`Argument`] its arguments, from which casts and
//! documentation derive; and the struct columns that intervals are returned in.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, NullBufferBuilder, StructArray};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

/// An argument of a function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Argument {
    name: &'static str,
    data_type: DataType,
    about: &'static str,
}

pub(super) fn number(name: &'static str, about: &'static str) -> Argument {
    argument(name, DataType::Float64, about)
}

pub(super) fn integer(name: &'static str, about: &'static str) -> Argument {
    argument(name, DataType::Int64, about)
}

pub(super) fn text(name: &'static str, about: &'static str) -> Argument {
    argument(name, DataType::Utf8View, about)
}

pub(super) fn numbers(name: &'static str, about: &'static str) -> Argument {
    argument(name, list_of(DataType::Float64), about)
}

pub(super) fn texts(name: &'static str, about: &'static str) -> Argument {
    argument(name, list_of(DataType::Utf8View), about)
}

/// Declares an argument of any type, such as a map, which is not cast.
pub(super) fn argument(name: &'static str, data_type: DataType, about: &'static str) -> Argument {
    Argument {
        name,
        data_type,
        about,
    }
}

/// Returns the columns as an array, or an error if there are not `N`.
pub(super) fn exactly<const N: usize>(columns: &[ArrayRef]) -> Result<&[ArrayRef; N]> {
    columns
        .try_into()
        .map_err(|_| exec_datafusion_err!("{} columns instead of {N}", columns.len()))
}

/// Returns one of the columns of an aggregation.
pub(super) fn column(columns: &[ArrayRef], at: usize) -> Result<&ArrayRef> {
    columns
        .get(at)
        .ok_or_else(|| exec_datafusion_err!("no column {at}"))
}

/// Returns the type of lists of `item`.
pub(super) fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}

/// Returns the types to which the given arguments are cast.
pub(super) fn coerce(
    function: &str,
    arguments: &[Argument],
    given: &[DataType],
) -> Result<Vec<DataType>> {
    let call = syntax(function, arguments);
    if arguments.len() != given.len() {
        return plan_err!(
            "{call} takes {} arguments, not {}",
            arguments.len(),
            given.len()
        );
    }
    for (argument, given) in arguments.iter().zip(given) {
        if !accepts(&argument.data_type, given) {
            let (name, expected) = (argument.name, &argument.data_type);
            return plan_err!(
                "{call}: {name} is {given}; give {expected} or what casts to it without loss"
            );
        }
    }
    Ok(arguments
        .iter()
        .map(|argument| argument.data_type.clone())
        .collect())
}

fn accepts(expected: &DataType, given: &DataType) -> bool {
    match (expected, given) {
        (_, DataType::Null) => true,
        (expected, DataType::Dictionary(_, given)) => accepts(expected, given),
        (DataType::Float64, given) => given.is_numeric() || *given == DataType::Boolean,
        (DataType::Int64, given) => given.is_integer(),
        (DataType::Utf8View, given) => given.is_string(),
        (
            DataType::List(expected),
            DataType::List(given) | DataType::LargeList(given) | DataType::FixedSizeList(given, _),
        ) => accepts(expected.data_type(), given.data_type()),
        (expected @ DataType::Map(..), given) => expected.equals_datatype(given),
        _ => false,
    }
}

fn syntax(function: &str, arguments: &[Argument]) -> String {
    let names: Vec<&str> = arguments.iter().map(|argument| argument.name).collect();
    format!("{function}({})", names.join(", "))
}

pub(super) fn document(
    section: DocSection,
    function: &str,
    about: &str,
    arguments: &[Argument],
) -> Documentation {
    let documentation = Documentation::builder(section, about, syntax(function, arguments));
    arguments
        .iter()
        .fold(documentation, |documentation, argument| {
            documentation.with_argument(argument.name, argument.about)
        })
        .build()
}

/// Computes a column from the argument columns, which have the declared types.
pub(super) type Compute = fn(&[ArrayRef]) -> Result<ArrayRef>;

/// A scalar function, declared by its arguments and the computation of a column.
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
            documentation: document(section, name, about, &arguments),
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
        coerce(self.name, &self.arguments, given)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = |arg: &ColumnarValue| matches!(arg, ColumnarValue::Scalar(_));
        let constant = args.args.iter().all(constant);
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let computed = (self.compute)(&columns)?;
        Ok(if constant {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&computed, 0)?)
        } else {
            ColumnarValue::Array(computed)
        })
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// Returns the type of structs of numbers with these names.
pub(super) fn struct_of(names: &[&str]) -> DataType {
    DataType::Struct(fields(names))
}

fn fields(names: &[&str]) -> Fields {
    let field = |name: &&str| Field::new(*name, DataType::Float64, true);
    names.iter().map(field).collect()
}

/// Returns a column of structs of numbers; `None` is a null struct.
pub(super) fn structs<const N: usize>(
    names: [&str; N],
    rows: &[Option<[Option<f64>; N]>],
) -> Result<ArrayRef> {
    let column = |place: usize| -> ArrayRef {
        let of_row = |row: &Option<[Option<f64>; N]>| row.as_ref()?.get(place).copied().flatten();
        Arc::new(rows.iter().map(of_row).collect::<Float64Array>())
    };
    let mut valid = NullBufferBuilder::new(rows.len());
    rows.iter().for_each(|row| valid.append(row.is_some()));
    let columns = (0..N).map(column).collect();
    let structs = StructArray::try_new(fields(&names), columns, valid.finish())?;
    Ok(Arc::new(structs))
}
