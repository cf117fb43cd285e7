use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde::Deserialize;
use serde_json::Value;

use super::answer_text::{Extract, field, last_fenced, unusable};
use super::{Check, CheckError, Judgement};

const DEFAULT_FIELD: &str = "schema";

const PATTERN_SIZE_LIMIT: usize = 1 << 20;

/// The answer is JSON that fits a schema, of the configuration or of the sample.
///
/// The JSON is the last fence that is labelled `json`, else the last fence, else the whole text. References in a schema
/// lead to the schema itself: nothing is read from files or from the network. Patterns have no lookaround and no
/// references to groups, so that none can take forever.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JsonSchema {
    /// The schema, if it is the same for all samples.
    schema: Option<Value>,
    /// The field of the sample's metadata that has the schema, or its text. Default: `schema`.
    schema_field: Option<String>,
    /// A regular expression whose last match has the JSON: its first group if it has one. Default: the whole text.
    extract: Extract,
    /// [`Self::schema`], compiled.
    #[serde(skip)]
    compiled: Option<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    validator: Validator,
    shape: SchemaShape,
}

impl Check for JsonSchema {
    fn prepare(&mut self) -> Result<(), CheckError> {
        let setting = |problem: String| CheckError::Setting {
            name: "schema",
            problem,
        };
        if self.schema.is_some() && self.schema_field.is_some() {
            return Err(setting("is set, and so is `schema_field`".to_owned()));
        }
        let compiled = self.schema.as_ref().map(compile).transpose();
        self.compiled = compiled.map_err(setting)?;
        Ok(())
    }

    fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let own;
        let schema = match &self.compiled {
            Some(schema) => schema,
            None => {
                own = self.of_sample(metadata)?;
                &own
            }
        };
        let Some(text) = self.extract.find(text) else {
            return Ok(Judgement::default());
        };
        let json = last_fenced(text, "json");
        let Ok(value) = serde_json::from_str::<Value>(json) else {
            return Ok(Judgement::default());
        };
        Ok(Judgement {
            is_right: schema.fits(&value)?,
            answer: Some(json.to_owned()),
        })
    }
}

impl JsonSchema {
    fn of_sample(&self, metadata: &Value) -> Result<Compiled, CheckError> {
        let name = self.schema_field.as_deref().unwrap_or(DEFAULT_FIELD);
        let parsed;
        let (_, value) = field(metadata, name, "schema_field")?;
        let schema = match value {
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
    let shape = SchemaShape::of(schema)?;
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
    let validator = with_stack(shape.levels(0), build).ok_or("nests too deeply")??;
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

/// The deepest nesting of a schema, or of an answer.
const MAX_DEPTH: usize = 64;
/// The deepest recursion of a validator: schemas refer to themselves, once for each level of the answer.
/// A level takes less than 2 KiB of stack even without optimisation.
const MAX_LEVELS: usize = 64 * 1024;
/// Levels that fit the stack of any thread.
const FEW_LEVELS: usize = 256;
/// The stack for `MAX_LEVELS` levels. Untouched pages take no memory.
const STACK_BYTES: usize = 256 << 20;

/// The most steps of a validator for one value of an answer.
const MAX_STEPS: u64 = 200_000;
/// The most references of a schema with unknown targets: at most two to the power of this many
/// ways go through them.
const MAX_UNKNOWN: usize = 16;

/// The properties of a schema that bound the recursion of its validator.
#[derive(Debug, Clone, Copy)]
struct SchemaShape {
    depth: usize,
    references: usize,
}

impl SchemaShape {
    fn of(schema: &Value) -> Result<Self, String> {
        let depth = depth(schema)
            .ok_or_else(|| format!("nests deeper than {MAX_DEPTH} arrays and objects"))?;
        let shape = Self {
            depth,
            references: references(schema),
        };
        if shape.levels(0) > MAX_LEVELS {
            return Err(format!(
                "has more references than {MAX_LEVELS} levels of calls allow"
            ));
        }
        Ok(shape)
    }

    /// Returns the most levels for an answer of this depth. Between references a validator descends the schema; it can
    /// take each reference once without going down the answer.
    fn levels(self, answer_depth: usize) -> usize {
        if self.references == 0 {
            return self.depth;
        }
        (self.references + 1)
            .saturating_mul(self.depth)
            .saturating_mul(answer_depth + 1)
    }
}

/// Returns how deep arrays and objects nest, up to [`MAX_DEPTH`].
fn depth(value: &Value) -> Option<usize> {
    fn deepest<'a>(mut inner: impl Iterator<Item = &'a Value>, left: usize) -> Option<usize> {
        let left = left.checked_sub(1)?;
        let most = inner.try_fold(0, |most, value| Some(within(value, left)?.max(most)))?;
        Some(1 + most)
    }
    fn within(value: &Value, left: usize) -> Option<usize> {
        match value {
            Value::Array(items) => deepest(items.iter(), left),
            Value::Object(fields) => deepest(fields.values(), left),
            _ => Some(0),
        }
    }
    within(value, MAX_DEPTH)
}

/// Returns the number of references in a schema that nests no deeper than [`MAX_DEPTH`].
fn references(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(references).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let is_reference =
                    matches!(name.as_str(), "$ref" | "$dynamicRef" | "$recursiveRef");
                usize::from(is_reference) + references(value)
            })
            .sum(),
        _ => 0,
    }
}

/// Refuses a schema whose validator could take forever: references that lead to references, two each time,
/// double the work each time. A validator caches its results only for references that lead back to themselves.
fn check_steps(schema: &Value) -> Result<(), String> {
    let mut counter = StepCounter {
        schema,
        known: HashMap::new(),
        has_unknown: false,
    };
    let steps = counter.steps(schema);
    if steps > MAX_STEPS {
        return Err(format!(
            "takes more than {MAX_STEPS} steps through its references"
        ));
    }
    if counter.has_unknown && references(schema) > MAX_UNKNOWN {
        return Err(format!(
            "has more than {MAX_UNKNOWN} references, not all of the form `#/...`"
        ));
    }
    Ok(())
}

struct StepCounter<'a> {
    schema: &'a Value,
    /// The steps of each reference's target, by its address; 0 while they are being counted.
    known: HashMap<*const Value, u64>,
    has_unknown: bool,
}

impl StepCounter<'_> {
    fn steps(&mut self, value: &Value) -> u64 {
        match value {
            Value::Array(items) => items
                .iter()
                .fold(0, |sum, item| sum.saturating_add(self.steps(item))),
            Value::Object(fields) => fields.iter().fold(1, |sum, (name, value)| {
                let steps = match (name.as_str(), value) {
                    ("$defs" | "definitions" | "components", _) => 0,
                    ("$ref", Value::String(reference)) => self.steps_of_target(reference),
                    ("$dynamicRef" | "$recursiveRef", Value::String(_)) => {
                        self.has_unknown = true;
                        0
                    }
                    _ => self.steps(value),
                };
                u64::saturating_add(sum, steps)
            }),
            _ => 0,
        }
    }

    fn steps_of_target(&mut self, reference: &str) -> u64 {
        let schema = self.schema;
        let target = reference
            .strip_prefix('#')
            .and_then(|pointer| schema.pointer(pointer));
        let Some(target) = target else {
            self.has_unknown = true;
            return 0;
        };
        let address = std::ptr::from_ref(target);
        if let Some(steps) = self.known.get(&address) {
            return *steps;
        }
        self.known.insert(address, 0);
        let steps = self.steps(target);
        self.known.insert(address, steps);
        steps
    }
}

/// Runs `work`, which recurses up to `levels` deep, with a large enough stack. Returns none if there is no such stack.
fn with_stack<T: Send>(levels: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    if levels <= FEW_LEVELS {
        return Some(work());
    }
    if levels > MAX_LEVELS {
        return None;
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("json-schema".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .ok()?
            .join()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judge(text: &str, schema: Value) -> Result<Judgement, CheckError> {
        JsonSchema::default().judge(text, &json!({"schema": schema}))
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
        let mut check = JsonSchema {
            schema: Some(json!({"type": "array"})),
            extract: Extract::of("=(.*)"),
            ..JsonSchema::default()
        };
        check.prepare().unwrap();
        assert!(check.judge("x=[]", &Value::Null).unwrap().is_right);
        assert!(
            !check
                .judge("x={}", &json!({"schema": true}))
                .unwrap()
                .is_right
        );
        assert_eq!(
            check.judge("[]", &Value::Null).unwrap(),
            Judgement::default()
        );
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
        assert_eq!(judge(&nested(100_000), tree).unwrap(), Judgement::default());
        for circle in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ] {
            judge("1", circle).unwrap();
        }
    }

    /// The longest paths through accepted schemas stay within the stack.
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

    /// Without a cache of results, this would take two to the power of 60 steps.
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
