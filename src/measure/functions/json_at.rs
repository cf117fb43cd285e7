//! The scalar functions `json_at(json, path)` and `json_text_at(json, path)`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringViewBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_OTHER;

use super::argument::text;
use super::scalar::{Compute, ScalarFunction};
use crate::json::{Path, unquote};

/// `json_at(json VARCHAR, path VARCHAR) -> VARCHAR`: the JSON text of the value at a path such as
/// `metadata.tags[0]`; null if there is none. An error for what is no path.
pub fn json_at() -> ScalarUDF {
    function(
        "json_at",
        "The JSON text of the value at a path within JSON text; null if there is none.",
        |columns| each(columns, Some),
    )
}

/// `json_text_at(json VARCHAR, path VARCHAR) -> VARCHAR`: the same, but of a string its text, and null
/// for a JSON null.
pub fn json_text_at() -> ScalarUDF {
    function(
        "json_text_at",
        "The value at a path within JSON text as text; null if there is none.",
        |columns| each(columns, plain),
    )
}

fn function(name: &'static str, about: &str, compute: Compute) -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_OTHER,
        name,
        about,
        vec![
            text("json", "JSON text."),
            text("path", "A path as a.b[0].c."),
        ],
        DataType::Utf8View,
        compute,
    )
}

/// The values found, each as `shown` gives it.
fn each(columns: &[ArrayRef], shown: fn(String) -> Option<String>) -> Result<ArrayRef> {
    let [texts, paths] = columns else {
        return exec_err!("a path into JSON: {} columns instead of 2", columns.len());
    };
    let mut parsed: HashMap<&str, Path> = HashMap::new();
    let mut found = StringViewBuilder::new();
    for (text, path) in texts.as_string_view().iter().zip(paths.as_string_view()) {
        let Some(path) = path else {
            found.append_null();
            continue;
        };
        let path = match parsed.entry(path) {
            Entry::Occupied(parsed) => parsed.into_mut(),
            Entry::Vacant(new) => {
                let path = Path::parse(path);
                new.insert(path.map_err(|error| DataFusionError::External(error.into()))?)
            }
        };
        let value = text.and_then(|text| path.find(text));
        found.append_option(value.and_then(shown));
    }
    Ok(Arc::new(found.finish()))
}

/// The text of a JSON string, nothing of a null, and of anything else its JSON text.
fn plain(value: String) -> Option<String> {
    if value == "null" {
        return None;
    }
    Some(match unquote(&value) {
        Some(text) => text.into_owned(),
        None => value,
    })
}
