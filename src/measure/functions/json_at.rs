//! The scalar functions `json_at(json, path)` and `json_text_at(json, path)`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringViewBuilder};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, scalar_doc_sections::DOC_SECTION_OTHER,
};

use crate::json::{Path, unquote};

/// `json_at(json VARCHAR, path VARCHAR) -> VARCHAR`: the JSON text of the value at a path such as
/// `metadata.tags[0]`; null if there is none. The path is the same in all rows.
pub fn json_at() -> ScalarUDF {
    function("json_at", false)
}

/// `json_text_at(json VARCHAR, path VARCHAR) -> VARCHAR`: the same, but of a string its text, and null
/// for a JSON null.
pub fn json_text_at() -> ScalarUDF {
    function("json_text_at", true)
}

fn function(name: &'static str, is_text: bool) -> ScalarUDF {
    ScalarUDF::from(Function {
        name,
        is_text,
        signature: Signature::string(2, Volatility::Immutable),
        documentation: Documentation::builder(
            DOC_SECTION_OTHER,
            match is_text {
                true => "The value at a path within JSON text as text; null if there is none.",
                false => {
                    "The JSON text of the value at a path within JSON text; null if there is none."
                }
            },
            format!("{name}(json, path)"),
        )
        .with_argument("json", "JSON text.")
        .with_argument("path", "A path as a.b[0].c.")
        .build(),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    name: &'static str,
    is_text: bool,
    signature: Signature,
    documentation: Documentation,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8View)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [json, ColumnarValue::Scalar(path)] = args.args.as_slice() else {
            return exec_err!(
                "{} takes JSON text and a path that is written in the query",
                self.name
            );
        };
        let Some(Some(path)) = path.try_as_str() else {
            return Ok(ColumnarValue::Scalar(ScalarValue::Utf8View(None)));
        };
        let path = Path::parse(path).map_err(|error| DataFusionError::External(error.into()))?;
        let texts = cast(&json.to_array(args.number_rows)?, &DataType::Utf8View)?;
        let mut found = StringViewBuilder::new();
        for text in texts.as_string_view() {
            let value = text.and_then(|text| path.find(text));
            found.append_option(match self.is_text {
                true => value.filter(|value| value != "null").map(plain),
                false => value,
            });
        }
        let found: ArrayRef = Arc::new(found.finish());
        Ok(ColumnarValue::Array(found))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// The text of a JSON string, and of anything else its JSON text.
fn plain(value: String) -> String {
    match unquote(&value) {
        Some(text) => text.into_owned(),
        None => value,
    }
}
