//! What a function takes: names, types, what is cast to them, and the documentation made of it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{DocSection, Documentation};

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

/// What is taken as it is, such as a map.
pub(super) fn argument(name: &'static str, data_type: DataType, about: &'static str) -> Argument {
    Argument {
        name,
        data_type,
        about,
    }
}

/// The type of lists of `item`.
pub(super) fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}

/// The types that the arguments given are cast to.
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
