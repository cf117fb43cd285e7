//! The scalar function `rollout_info(result)`.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, scalar_doc_sections::DOC_SECTION_OTHER,
};
use indexmap::IndexMap;

use crate::json::{Object, ObjectError, quote};

const INDEX_KEYS: [&str; 2] = ["_ng_task_index", "_ng_rollout_index"];

/// `rollout_info(result VARCHAR) -> VARCHAR`: of an answer, a JSON object with the reward as it is and
/// every other number or boolean of `response.usage` and of the top level, in this order. Of two of
/// one name the one of the top level counts, at the place of the first; for the reward, the one of
/// the usage. Booleans become 0 or 1, but not a boolean reward. A field `rollout_id` comes first.
pub fn rollout_info() -> ScalarUDF {
    ScalarUDF::from(Function {
        signature: Signature::uniform(
            1,
            vec![DataType::Utf8View, DataType::Utf8, DataType::LargeUtf8],
            Volatility::Immutable,
        ),
        documentation: Documentation::builder(
            DOC_SECTION_OTHER,
            "The reward and the numbers of an answer, as a JSON object.",
            "rollout_info(result)",
        )
        .with_argument("result", "An answer, as JSON text.")
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
        "rollout_info"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.as_slice() {
            [ColumnarValue::Array(results)] => Ok(ColumnarValue::Array(infos(results)?)),
            [ColumnarValue::Scalar(result)] => {
                let infos = infos(&result.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(
                    &infos, 0,
                )?))
            }
            args => exec_err!("rollout_info takes one argument, not {}", args.len()),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

fn infos(results: &ArrayRef) -> Result<ArrayRef> {
    let mut infos = StringBuilder::new();
    let mut append = |result: Option<&str>| -> Result<()> {
        let info = result.map(info_of).transpose();
        let info = info.map_err(|e| exec_datafusion_err!("rollout_info: {e}"))?;
        infos.append_option(info);
        Ok(())
    };
    match results.data_type() {
        DataType::Utf8View => results.as_string_view().iter().try_for_each(&mut append)?,
        DataType::LargeUtf8 => results
            .as_string::<i64>()
            .iter()
            .try_for_each(&mut append)?,
        DataType::Utf8 => results
            .as_string::<i32>()
            .iter()
            .try_for_each(&mut append)?,
        other => return exec_err!("rollout_info takes text, not {other}"),
    }
    Ok(Arc::new(infos.finish()))
}

fn info_of(result: &str) -> Result<String, ObjectError> {
    let result = Object::parse(result)?;
    let mut info: IndexMap<&str, Cow<str>> = IndexMap::new();
    if let Some(reward) = result.get("reward") {
        info.insert("reward", exact(reward).unwrap_or(Cow::Borrowed(reward)));
    }
    let usage = result
        .get("response")
        .and_then(|response| Object::parse(response).ok());
    let usage = usage.as_ref().and_then(|response| response.get("usage"));
    let usage = usage.and_then(|usage| Object::parse(usage).ok());
    for (name, _, value) in usage.iter().flat_map(Object::iter) {
        if let Some(number) = number(value) {
            info.insert(name, number);
        }
    }
    for (name, _, value) in result.iter() {
        let own = name == "reward" || name == "response" || INDEX_KEYS.contains(&name);
        if let Some(number) = number(value).filter(|_| !own) {
            info.insert(name, number);
        }
    }
    if let Some(place) = info.get_index_of("rollout_id") {
        info.move_index(place, 0);
    }
    let fields: Vec<String> = info
        .iter()
        .map(|(name, value)| format!("{}:{value}", quote(name)))
        .collect();
    Ok(format!("{{{}}}", fields.join(",")))
}

/// A number as it is written, a boolean as 0 or 1.
fn number(value: &str) -> Option<Cow<'_, str>> {
    match value {
        "true" => Some("1".into()),
        "false" => Some("0".into()),
        _ => exact(value),
    }
}

/// A number as it is written, but as a float where it is an integer that 64 bits do not hold.
fn exact(value: &str) -> Option<Cow<'_, str>> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let integer = digits.bytes().all(|byte| byte.is_ascii_digit());
    let fits = value.parse::<i64>().is_ok() || value.parse::<u64>().is_ok();
    match value.parse::<f64>() {
        Ok(_) if value == "-0" => Some("0".into()),
        Ok(float) if integer && !fits => serde_json::to_string(&float).ok().map(Cow::Owned),
        _ => Some(value.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(result: &str) -> String {
        info_of(result).unwrap()
    }

    #[test]
    fn the_top_level_wins_over_the_usage_but_for_the_reward() {
        let result = r#"{"b": 1, "reward": true, "a": false, "text": "x", "_ng_task_index": 3,
            "response": {"usage": {"a": 7, "tokens": 1e3, "reward": 0.5, "details": {"n": 1}}}}"#;
        assert_eq!(info(result), r#"{"reward":0.5,"a":0,"tokens":1e3,"b":1}"#);
    }

    #[test]
    fn the_reward_stays_as_it_is() {
        for reward in [
            "null",
            "true",
            r#""0.5""#,
            "[1, 2]",
            "0.50",
            "9007199254740993",
        ] {
            let result = format!(r#"{{"reward": {reward}}}"#);
            assert_eq!(info(&result), format!(r#"{{"reward":{reward}}}"#));
        }
        assert_eq!(info("{}"), "{}");
    }

    #[test]
    fn integers_beyond_64_bits_become_floats() {
        assert_eq!(
            info(r#"{"a": 18446744073709551615, "b": 18446744073709551616, "c": -0}"#),
            r#"{"a":18446744073709551615,"b":1.8446744073709552e+19,"c":0}"#
        );
    }

    #[test]
    fn names_are_written_as_json() {
        assert_eq!(
            info(r#"{"a\"b": 1, "": 2, "rollout_id": 3}"#),
            r#"{"rollout_id":3,"a\"b":1,"":2}"#
        );
    }
}
