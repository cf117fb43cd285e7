//! [`JsonSchema`].

use jsonschema::{PatternOptions, Validator};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer_regex::{compile_extract, extract};
use super::expected::{field, unusable};
use super::fence::last_fenced;
use super::schema_limits::{Shape, check_steps, depth, with_stack};
use super::{CheckError, Judgement};

const DEFAULT_FIELD: &str = "schema";

const PATTERN_SIZE_LIMIT: usize = 1 << 20;

/// The answer is JSON that fits a schema, of the configuration or of the sample.
///
/// The JSON is the last fence that is labelled `json`, else the last fence, else the whole text. References in a schema
/// lead to the schema itself: nothing is read from files or from the network. Patterns have no lookaround and no
/// references to groups, so that none can take forever.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
pub struct JsonSchema {
    /// The schema, where it is the same for all samples.
    pub schema: Option<Value>,
    /// The field of the sample's metadata that has the schema, or its text. Default: `schema`.
    pub schema_field: Option<String>,
    /// A regular expression whose last match has the JSON: its first group if it has one. Default: the whole text.
    pub extract: Option<String>,
}

#[derive(Debug)]
pub(super) struct PreparedJsonSchema {
    schema_field: String,
    schema: Option<Compiled>,
    extract: Option<Regex>,
}

#[derive(Debug)]
struct Compiled {
    validator: Validator,
    shape: Shape,
}

impl JsonSchema {
    pub(super) fn prepare(self) -> Result<PreparedJsonSchema, CheckError> {
        let setting = |problem: String| CheckError::Setting {
            name: "schema",
            problem,
        };
        if self.schema.is_some() && self.schema_field.is_some() {
            return Err(setting("is set, and so is `schema_field`".to_owned()));
        }
        let schema = self
            .schema
            .as_ref()
            .map(|schema| compile(schema).map_err(setting))
            .transpose()?;
        Ok(PreparedJsonSchema {
            extract: compile_extract(self.extract.as_deref())?,
            schema_field: self
                .schema_field
                .unwrap_or_else(|| DEFAULT_FIELD.to_owned()),
            schema,
        })
    }
}

impl PreparedJsonSchema {
    pub(super) fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let own;
        let schema = match &self.schema {
            Some(schema) => schema,
            None => {
                own = self.of_sample(metadata)?;
                &own
            }
        };
        let Some(text) = extract(self.extract.as_ref(), text) else {
            return Ok(Judgement::none());
        };
        let json = last_fenced(text, "json");
        let Ok(value) = serde_json::from_str::<Value>(json) else {
            return Ok(Judgement::none());
        };
        Ok(Judgement {
            is_right: schema.fits(&value)?,
            answer: Some(json.to_owned()),
        })
    }

    fn of_sample(&self, metadata: &Value) -> Result<Compiled, CheckError> {
        let name = &self.schema_field;
        let parsed;
        let schema = match field(metadata, name)? {
            Value::String(text) => {
                parsed = serde_json::from_str::<Value>(text).map_err(|error| {
                    unusable(name, format!("is not the text of JSON ({error})"))
                })?;
                &parsed
            }
            schema => schema,
        };
        compile(schema).map_err(|problem| unusable(name, problem))
    }
}

fn compile(schema: &Value) -> Result<Compiled, String> {
    let shape = Shape::of(schema)?;
    let patterns = PatternOptions::regex()
        .size_limit(PATTERN_SIZE_LIMIT)
        .dfa_size_limit(PATTERN_SIZE_LIMIT);
    let build = || {
        check_steps(schema)?;
        jsonschema::options()
            .offline()
            .with_pattern_options(patterns)
            .build(schema)
            .map_err(|error| format!("is no usable JSON schema ({error})"))
    };
    let validator =
        with_stack(shape.levels(0), build).ok_or("takes more stack than there is")??;
    Ok(Compiled { validator, shape })
}

impl Compiled {
    fn fits(&self, value: &Value) -> Result<bool, CheckError> {
        let costly = || {
            CheckError::TooCostly(
                "it nests too deep for a schema with so many references: simplify the schema"
                    .to_owned(),
            )
        };
        let levels = self.shape.levels(depth(value).ok_or_else(costly)?);
        with_stack(levels, || Ok(self.validator.is_valid(value))).ok_or_else(costly)?
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judge(text: &str, schema: Value) -> Result<Judgement, CheckError> {
        JsonSchema::default()
            .prepare()
            .unwrap()
            .judge(text, &json!({"schema": schema}))
    }

    #[test]
    fn answers_fit_or_do_not() {
        let person = json!({"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"], "additionalProperties": false});
        for (text, is_right, answer) in [
            ("{\"age\": 3}", true, Some("{\"age\": 3}")),
            (
                "Here:\n```json\n{\"age\": 3}\n```\nDone",
                true,
                Some("{\"age\": 3}"),
            ),
            ("```\n{\"age\": 3}\n```", true, Some("{\"age\": 3}")),
            ("{\"age\": -3}", false, Some("{\"age\": -3}")),
            (
                "{\"age\": 3, \"x\": 1}",
                false,
                Some("{\"age\": 3, \"x\": 1}"),
            ),
            ("{}", false, Some("{}")),
            ("It is {\"age\": 3}", false, None),
            ("", false, None),
            ("```json\n{\"age\": 3\n```", false, None),
        ] {
            for schema in [person.clone(), json!(person.to_string())] {
                let judged = judge(text, schema).unwrap();
                assert_eq!(
                    (judged.is_right, judged.answer.as_deref()),
                    (is_right, answer),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_fixed_schema_needs_no_field() {
        let check = JsonSchema {
            schema: Some(json!({"type": "array"})),
            extract: Some("=(.*)".to_owned()),
            ..JsonSchema::default()
        };
        let check = check.prepare().unwrap();
        assert!(check.judge("x=[]", &Value::Null).unwrap().is_right);
        assert!(
            !check
                .judge("x={}", &json!({"schema": true}))
                .unwrap()
                .is_right
        );
        assert_eq!(check.judge("[]", &Value::Null).unwrap(), Judgement::none());
    }

    #[test]
    fn schemas_that_do_not_compile_name_their_field() {
        let mut deep = json!(true);
        for _ in 0..65 {
            deep = json!({"not": deep});
        }
        for schema in [
            json!({"type": "nothing"}),
            json!(3),
            json!("{"),
            deep,
            json!({"$ref": "http://127.0.0.1:1/schema.json"}),
            json!({"$ref": "file:///etc/hostname"}),
            json!({"$ref": "other.json"}),
            json!({"pattern": "("}),
            json!({"pattern": "(a{1000}){1000}"}),
        ] {
            let error = judge("1", schema).unwrap_err();
            assert!(
                matches!(&error, CheckError::Unusable { field, .. } if field == "schema"),
                "{error}"
            );
        }
    }

    #[test]
    fn schemas_may_refer_to_themselves() {
        let tree = json!({"type": "object", "properties": {"in": {"$ref": "#"}}, "additionalProperties": false});
        let nested =
            |depth: usize| format!("{}{{}}{}", "{\"in\":".repeat(depth), "}".repeat(depth));
        assert!(judge(&nested(50), tree.clone()).unwrap().is_right);
        assert!(
            !judge(&nested(50).replace("{}", "1"), tree.clone())
                .unwrap()
                .is_right
        );
        assert!(matches!(
            judge(&nested(100), tree.clone()),
            Err(CheckError::TooCostly(_))
        ));
        assert_eq!(judge(&nested(100_000), tree).unwrap(), Judgement::none());
        for circle in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ] {
            judge("1", circle).unwrap();
        }
    }

    /// The longest ways through schemas that are let through stay within the stack.
    #[test]
    fn chains_of_references_are_within_the_stack_or_refused() {
        let chain = |count: usize, end: Value| {
            let mut defs = serde_json::Map::new();
            for index in 0..count {
                defs.insert(
                    format!("d{index}"),
                    json!({"allOf": [{"$ref": format!("#/$defs/d{}", index + 1)}]}),
                );
            }
            defs.insert(format!("d{count}"), end);
            json!({"$defs": defs, "$ref": "#/$defs/d0"})
        };
        let last = || json!({"type": ["object", "integer"], "properties": {"in": {"$ref": "#"}}});
        let text = format!("{}1{}", "{\"in\":".repeat(40), "}".repeat(40));
        assert!(judge(&text, chain(300, last())).unwrap().is_right);
        assert!(judge("1", chain(10_000, last())).unwrap().is_right);
        assert!(judge("1", chain(30_000, last())).is_err());
    }

    #[test]
    fn schemas_that_take_too_many_steps_are_refused() {
        let doubled = |count: usize, reference: fn(usize) -> Value| {
            let mut defs = serde_json::Map::new();
            for index in 0..count {
                let next = reference(index + 1);
                defs.insert(
                    format!("d{index}"),
                    json!({"$anchor": format!("d{index}"), "allOf": [next, next]}),
                );
            }
            defs.insert(
                format!("d{count}"),
                json!({"$anchor": format!("d{count}"), "type": "integer"}),
            );
            json!({"$defs": defs, "$ref": "#/$defs/d0"})
        };
        let pointer = |index: usize| json!({"$ref": format!("#/$defs/d{index}")});
        let anchor = |index: usize| json!({"$ref": format!("#d{index}")});
        assert!(judge("1", doubled(5, pointer)).unwrap().is_right);
        assert!(!judge("true", doubled(5, anchor)).unwrap().is_right);
        for schema in [doubled(60, pointer), doubled(60, anchor)] {
            let error = judge("1", schema).unwrap_err();
            assert!(matches!(error, CheckError::Unusable { .. }), "{error}");
        }
    }

    /// Without memory of what was judged, this would take two to the power of 60 steps.
    #[test]
    fn recursion_that_doubles_is_judged_once_for_each_level() {
        let inner = json!({"properties": {"in": {"$ref": "#"}}});
        let schema = json!({"type": "object", "allOf": [inner, inner]});
        let nested = |end: &str| format!("{}{end}{}", "{\"in\":".repeat(60), "}".repeat(60));
        assert!(judge(&nested("{}"), schema.clone()).unwrap().is_right);
        assert!(!judge(&nested("1"), schema).unwrap().is_right);
    }

    #[test]
    fn patterns_are_searched_in_linear_time_or_refused() {
        let text = json!("a".repeat(10_000) + "b").to_string();
        assert!(
            !judge(&text, json!({"pattern": "^(a|aa)+$"}))
                .unwrap()
                .is_right
        );
        let error = judge(&text, json!({"pattern": "^(?=(a|aa)+$)\\1"})).unwrap_err();
        assert!(matches!(error, CheckError::Unusable { .. }), "{error}");
    }
}
