//! Arguments for a call that a JSON schema allows: [`arguments`].

use serde_json::{Map, Value, json};

use super::super::draws::Draws;

/// Schemas that are nested deeper, or refer to themselves, get nothing more.
const DEPTH: usize = 8;

const WORDS: [&str; 12] = [
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "juniper",
    "kelp", "lagoon",
];

/// Arguments that the schema of a tool's parameters allows: types, `required`, `enum`, `const`,
/// bounds and lengths, nested objects and lists, alternatives and references within the schema.
pub(super) fn arguments(schema: &Value, draws: &mut Draws) -> Value {
    match value(schema, schema, draws, DEPTH) {
        object @ Value::Object(_) => object,
        _ => json!({}),
    }
}

fn value(schema: &Value, root: &Value, draws: &mut Draws, depth: usize) -> Value {
    let Some(depth) = depth.checked_sub(1) else {
        return Value::Null;
    };
    if let Some(constant) = schema.get("const") {
        return constant.clone();
    }
    if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
        let choice = choices.get(draws.below(choices.len()));
        return choice.cloned().unwrap_or_default();
    }
    let referred = schema.get("$ref").and_then(Value::as_str);
    if let Some(referred) = referred.and_then(|path| root.pointer(path.strip_prefix('#')?)) {
        return value(referred, root, draws, depth);
    }
    let alternatives = ["anyOf", "oneOf", "allOf"];
    let alternatives = alternatives
        .iter()
        .find_map(|key| schema.get(key)?.as_array());
    if let Some(first) = alternatives.and_then(|all| all.first()) {
        return value(first, root, draws, depth);
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds
            .iter()
            .find_map(|kind| kind.as_str().filter(|kind| *kind != "null")),
        kind => kind.and_then(Value::as_str),
    };
    match kind {
        Some("string") => json!(string(schema, draws)),
        Some("integer") => json!(bounded(schema, draws, 1).round() as i64),
        Some("number") => json!(bounded(schema, draws, 4)),
        Some("boolean") => json!(draws.below(2) == 0),
        Some("null") => Value::Null,
        Some("array") => list(schema, root, draws, depth),
        Some("object") => object(schema, root, draws, depth),
        _ if schema.get("properties").is_some() => object(schema, root, draws, depth),
        _ => json!(string(schema, draws)),
    }
}

fn object(schema: &Value, root: &Value, draws: &mut Draws, depth: usize) -> Value {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|n| n == name));
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut object = Map::new();
    for (name, schema) in properties.into_iter().flatten() {
        if is_required(name) || (depth > 1 && draws.below(2) == 0) {
            object.insert(name.clone(), value(schema, root, draws, depth));
        }
    }
    Value::Object(object)
}

fn list(schema: &Value, root: &Value, draws: &mut Draws, depth: usize) -> Value {
    let length = |key, default| schema.get(key).and_then(Value::as_u64).unwrap_or(default);
    let least = length("minItems", 0).min(100);
    let most = length("maxItems", least + 2).clamp(least, least + 2);
    let count = least as usize + draws.below((most - least) as usize + 1);
    let any = json!({"type": "integer"});
    let items = schema.get("items").filter(|items| items.is_object());
    let items = items.unwrap_or(&any);
    (0..count)
        .map(|_| value(items, root, draws, depth))
        .collect()
}

fn string(schema: &Value, draws: &mut Draws) -> String {
    let length = |key| schema.get(key)?.as_u64();
    let mut text = WORDS
        .get(draws.below(WORDS.len()))
        .copied()
        .unwrap_or_default()
        .to_owned();
    let least = length("minLength").unwrap_or(0).min(10_000) as usize;
    while text.len() < least {
        text.push('x');
    }
    if let Some(most) = length("maxLength") {
        text.truncate(most as usize);
    }
    text
}

/// A number within the schema's bounds, a multiple of 1 / `parts`.
fn bounded(schema: &Value, draws: &mut Draws, parts: u32) -> f64 {
    let parts = f64::from(parts);
    let bound = |key| schema.get(key).and_then(Value::as_f64);
    let step = 1.0 / parts;
    let least = bound("minimum").or_else(|| Some(bound("exclusiveMinimum")? + step));
    let most = bound("maximum").or_else(|| Some(bound("exclusiveMaximum")? - step));
    let (least, most) = match (least, most) {
        (Some(least), Some(most)) => (least, most),
        (Some(least), None) => (least, least + 99.0),
        (None, Some(most)) => (most - 99.0, most),
        (None, None) => (0.0, 99.0),
    };
    let steps = ((most - least) * parts).clamp(0.0, 1000.0) as usize;
    least.ceil().min(most) + draws.below(steps + 1).min(steps) as f64 * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_valid() {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 9},
                "code": {"type": "string", "maxLength": 2},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 3},
                "above": {"type": "integer", "exclusiveMinimum": 5},
                "share": {"type": "number", "minimum": 0, "maximum": 1},
                "exact": {"type": "boolean"},
                "kind": {"const": 7},
                "maybe": {"type": ["null", "integer"]},
                "either": {"anyOf": [{"type": "boolean"}, {"type": "string"}]},
                "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "minItems": 1},
                "tree": {"$ref": "#/$defs/tree"},
            },
            "required": ["city", "days", "share", "exact", "places", "kind"],
            "additionalProperties": false,
            "$defs": {
                "place": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                    "required": ["x", "y"],
                },
                "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}},
            },
        });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let mut draws = Draws::from_state(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let arguments = arguments(&schema, &mut draws);
            assert!(validator.is_valid(&arguments), "{arguments}");
            seen.insert(arguments.to_string());
        }
        assert!(seen.len() > 100);
    }

    #[test]
    fn a_schema_of_nothing_takes_nothing() {
        let mut draws = Draws::from_state(1);
        for schema in [
            json!({}),
            json!({"type": "object"}),
            json!(null),
            json!({"type": "string"}),
        ] {
            assert_eq!(arguments(&schema, &mut draws), json!({}));
        }
    }
}
