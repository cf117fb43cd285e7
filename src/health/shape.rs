//! [`TRAJECTORY`]: the form of `ng_trajectory`, schema 1.0, and [`Shape::canonical`], which brings a value into it as
//! NeMo Gym's reader does: values are converted to the right type, and missing fields get their defaults.

use serde_json::{Map, Number, Value};

/// Why NeMo Gym cannot read something: the name of the Python exception that it raises.
pub(super) type Unreadable = &'static str;

/// A JSON object.
pub(super) type Fields = Map<String, Value>;

/// The form of an object.
struct Shape {
    fields: &'static [FieldRule],
    /// Whether unknown fields are dropped. Otherwise they are an error.
    is_open: bool,
    /// What must hold between the fields.
    holds: fn(&Fields) -> bool,
}

/// The names of fields, separated by spaces, their kind, and what a missing field becomes.
type FieldRule = (&'static str, Kind, Absent);

/// What a missing field becomes.
enum Absent {
    /// An error.
    Wrong,
    /// Null. An explicit null is allowed too.
    Null,
    /// A text.
    Default(&'static str),
    /// An empty object or list.
    Empty,
}

enum Kind {
    Any,
    Text,
    Whole,
    /// A whole number not below this.
    WholeFrom(i64),
    Number,
    /// A number not below zero.
    Amount,
    Flag,
    /// One of these words.
    OneOf(&'static str),
    Object(&'static Shape),
    List(&'static Kind),
    /// An item of a conversation. NeMo Gym knows some thirty kinds; only the outline is checked here.
    Item,
}

use Absent::{Default, Empty, Null, Wrong};
use Kind::{Amount, Any, Flag, Item, List, Object, OneOf, Text, Whole, WholeFrom};

const fn closed(fields: &'static [FieldRule]) -> Shape {
    checked(fields, |_| true)
}

const fn checked(fields: &'static [FieldRule], holds: fn(&Fields) -> bool) -> Shape {
    Shape {
        fields,
        is_open: false,
        holds,
    }
}

static MODEL: Shape = Shape {
    fields: &[
        ("type", OneOf("responses_api_models"), Wrong),
        ("name", Text, Wrong),
    ],
    is_open: true,
    holds: |_| true,
};

static REFERENCE: Shape = checked(
    &[
        ("model_call_id response_id", Text, Null),
        ("model_ref", Object(&MODEL), Null),
    ],
    |reference| {
        text(reference, "model_call_id").is_some()
            || reference.get("model_ref").is_some_and(Value::is_object)
                && text(reference, "response_id").is_some()
    },
);

static TOKENS: Shape = closed(&[(
    "prompt_tokens completion_tokens reasoning_tokens total_tokens cached_tokens",
    WholeFrom(0),
    Null,
)]);

static METADATA: Shape = closed(&[
    ("response_id model dialect response_status", Text, Null),
    (
        "finish_reason local_response_reason error_category",
        Text,
        Null,
    ),
    ("status_code upstream_status_code", Whole, Null),
    ("model_ref", Object(&MODEL), Null),
    ("upstream_attempted", Flag, Null),
    ("response_source", OneOf("upstream local"), Null),
    ("latency_ttft_ms", Amount, Null),
]);

static CALL: Shape = closed(&[
    ("model_call_id", Text, Null),
    ("started_at completed_at", Kind::Number, Null),
    ("duration_ms", Amount, Null),
    ("request response", Any, Null),
    ("response_metadata", Object(&METADATA), Empty),
    ("token_stats", Object(&TOKENS), Empty),
]);

static TURN: Shape = closed(&[
    ("invocation_id task_id rollout_id", Text, Wrong),
    ("turn_no", WholeFrom(1), Wrong),
    ("timestamp", Kind::Number, Wrong),
    ("question answer reasoning_content", Any, Null),
    ("resolved", Flag, Null),
    ("step_count", WholeFrom(0), Wrong),
    ("model_calls", List(&Object(&REFERENCE)), Empty),
]);

static INVOCATION: Shape = closed(&[
    (
        "kind",
        OneOf("agent_invocation"),
        Default("agent_invocation"),
    ),
    ("invocation_id", Text, Wrong),
    (
        "parent_invocation_id spawned_by_tool_call_id error_type",
        Text,
        Null,
    ),
    (
        "status",
        OneOf("completed failed incomplete unknown"),
        Default("unknown"),
    ),
    ("duration_ms", Amount, Null),
    ("model_calls", List(&Object(&REFERENCE)), Empty),
    ("conversation", List(&Item), Empty),
]);

static TOOL_CALL: Shape = checked(
    &[
        ("kind", OneOf("tool_call"), Default("tool_call")),
        ("invocation_id tool_call_id", Text, Wrong),
        ("sandbox_id tool_name error_type", Text, Null),
        ("started_at completed_at", Kind::Number, Null),
        ("duration_ms", Amount, Null),
        ("timing_source", OneOf("executor artifact harness"), Null),
        (
            "status",
            OneOf("completed failed timeout cancelled incomplete unknown"),
            Default("unknown"),
        ),
        ("output", Any, Null),
    ],
    |call| {
        let at = |name: &str| call.get(name).and_then(Value::as_f64);
        match (at("started_at"), at("completed_at")) {
            (Some(started), Some(completed)) => completed >= started,
            _ => true,
        }
    },
);

static GAP: Shape = closed(&[("code", Text, Wrong), ("invocation_id detail", Text, Null)]);

static TRAJECTORY: Shape = checked(
    &[
        ("schema_version", OneOf("1.0"), Default("1.0")),
        ("task_id rollout_id", Text, Wrong),
        ("invocations", List(&Object(&INVOCATION)), Empty),
        ("turns", List(&Object(&TURN)), Empty),
        ("model_calls", List(&Object(&CALL)), Empty),
        ("tool_calls", List(&Object(&TOOL_CALL)), Empty),
        ("gaps", List(&Object(&GAP)), Empty),
    ],
    has_identity,
);

/// Whether invocations, calls and turns are distinct, and turns belong to this rollout.
fn has_identity(trajectory: &Fields) -> bool {
    let invocations = objects(trajectory, "invocations").map(|found| text(found, "invocation_id"));
    let calls = objects(trajectory, "model_calls").filter_map(|call| text(call, "model_call_id"));
    let turns = || objects(trajectory, "turns");
    let number = |turn: &Fields| turn.get("turn_no").and_then(Value::as_i64);
    let numbers = turns().map(|turn| (text(turn, "invocation_id"), number(turn)));
    let is_same = |turn: &Fields, name: &str| turn.get(name) == trajectory.get(name);
    are_distinct(invocations)
        && are_distinct(calls)
        && are_distinct(numbers)
        && turns().all(|turn| is_same(turn, "task_id") && is_same(turn, "rollout_id"))
}

fn are_distinct<T: std::hash::Hash + Eq>(mut values: impl Iterator<Item = T>) -> bool {
    let mut seen = std::collections::HashSet::new();
    values.all(|value| seen.insert(value))
}

/// The levels of nesting that NeMo Gym's writer supports.
const LEVELS: usize = 255;

/// Returns a value as a trajectory with all its fields.
///
/// # Errors
/// The value is not a trajectory, or NeMo Gym could not write it.
pub(super) fn trajectory(value: Value) -> Result<Fields, Unreadable> {
    let trajectory = TRAJECTORY.canonical(value).ok_or("ValidationError")?;
    let mut values = ["turns", "model_calls", "tool_calls"]
        .into_iter()
        .flat_map(|list| objects(&trajectory, list))
        .flat_map(Fields::values);
    let is_shallow = values.all(|value| is_within(value, LEVELS));
    drop(values);
    is_shallow.then_some(trajectory).ok_or("ValueError")
}

fn is_within(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return false;
    };
    match value {
        Value::Array(items) => items.iter().all(|item| is_within(item, below)),
        Value::Object(fields) => fields.values().all(|value| is_within(value, below)),
        _ => true,
    }
}

/// Returns the text of a field, unless it is empty or missing.
pub(super) fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let text = fields.get(name).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}

/// Returns the objects of a list.
pub(super) fn objects<'a>(fields: &'a Fields, name: &str) -> impl Iterator<Item = &'a Fields> {
    let items = fields.get(name).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(Value::as_object)
}

impl Shape {
    fn canonical(&self, value: Value) -> Option<Fields> {
        let Value::Object(mut given) = value else {
            return None;
        };
        let mut fields = Fields::new();
        let rules = self.fields.iter();
        let rules = rules.flat_map(|(names, kind, absent)| {
            names.split(' ').map(move |name| (name, kind, absent))
        });
        for (name, kind, absent) in rules {
            let value = match (given.shift_remove(name), absent) {
                (None, Wrong) => return None,
                (None | Some(Value::Null), Null) => Value::Null,
                (None, Default(text)) => Value::from(*text),
                (None, Empty) => kind.empty()?,
                (Some(value), _) => kind.canonical(value)?,
            };
            fields.insert(name.to_owned(), value);
        }
        let is_known = self.is_open || given.is_empty();
        (is_known && (self.holds)(&fields)).then_some(fields)
    }
}

impl Kind {
    fn empty(&self) -> Option<Value> {
        match self {
            Object(shape) => shape
                .canonical(Value::Object(Fields::new()))
                .map(Value::Object),
            _ => Some(Value::Array(Vec::new())),
        }
    }

    fn canonical(&self, value: Value) -> Option<Value> {
        match self {
            Any => Some(value),
            Text => value.is_string().then_some(value),
            Whole => whole(&value).map(Value::Number),
            WholeFrom(least) => {
                let number = whole(&value)?;
                let is_enough = number.as_i64().is_none_or(|number| number >= *least);
                is_enough.then_some(Value::Number(number))
            }
            Kind::Number => number(&value).map(Value::from),
            Amount => number(&value)
                .filter(|amount| *amount >= 0.0)
                .map(Value::from),
            Flag => flag(&value).map(Value::Bool),
            OneOf(names) => {
                let is_one = names.split(' ').any(|name| value == name);
                is_one.then_some(value)
            }
            Object(shape) => shape.canonical(value).map(Value::Object),
            List(kind) => match value {
                Value::Array(items) => {
                    let items = items.into_iter().map(|item| kind.canonical(item));
                    items.collect::<Option<_>>().map(Value::Array)
                }
                _ => None,
            },
            Item => {
                let item = value.as_object()?;
                (item.contains_key("type") || item.contains_key("role")).then_some(value)
            }
        }
    }
}

/// Converts a value to a whole number as Pydantic does.
fn whole(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().filter(|number| number.fract() == 0.0)?;
            // Below 2^63 the number is exact; no count is larger.
            (number.abs() < 9.2e18).then_some(Number::from(number as i64))
        }
        Value::Number(number) => Some(number.clone()),
        Value::Bool(flag) => Some(Number::from(u8::from(*flag))),
        Value::String(text) => {
            let text = text.trim();
            let text = match text.split_once('.') {
                Some((whole, zeros)) if zeros.bytes().all(|digit| digit == b'0') => whole,
                _ => text,
            };
            text.parse::<i64>().ok().map(Number::from)
        }
        _ => None,
    }
}

/// Converts a value to a number as Pydantic does.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Converts a value to a boolean as Pydantic does.
fn flag(value: &Value) -> Option<bool> {
    let text = match value {
        Value::Bool(flag) => return Some(*flag),
        // A negative zero is zero.
        Value::Number(number) => (number.as_f64()? + 0.0).to_string(),
        Value::String(text) => text.to_ascii_lowercase(),
        _ => return None,
    };
    match text.as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_other_types_stand_for_numbers_and_flags() {
        for (given, expected) in [
            (json!(7), Some(7)),
            (json!(7.0), Some(7)),
            (json!(" 7 "), Some(7)),
            (json!("7.00"), Some(7)),
            (json!(true), Some(1)),
            (json!(7.5), None),
            (json!("7.5"), None),
            (json!("seven"), None),
            (json!(null), None),
        ] {
            let read = whole(&given).and_then(|number| number.as_i64());
            assert_eq!(read, expected, "{given}");
        }
        assert_eq!(number(&json!("1e3")), Some(1000.0));
        assert_eq!(number(&json!([])), None);
        assert_eq!(flag(&json!("OFF")), Some(false));
        assert_eq!(flag(&json!(1.0)), Some(true));
        assert_eq!(flag(&json!(2)), None);
    }
}
