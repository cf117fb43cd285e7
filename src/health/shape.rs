//! [`TRAJECTORY`]: the form of `ng_trajectory`, schema 1.0, and [`Shape::canonical`], which brings a value into it as
//! NeMo Gym's reader does: what stands for a value of another type becomes one, and what is missing is there with its
//! default.

use serde_json::{Map, Value};

use super::coercion::{flag, number, whole};

/// Why NeMo Gym cannot read something: the exception of Python's that it raises.
pub(super) type Unreadable = &'static str;

/// A JSON object.
pub(super) type Fields = Map<String, Value>;

/// An object's fields.
struct Shape {
    fields: &'static [Field],
    /// Fields of other names are left out. Elsewhere they are an error.
    is_open: bool,
    /// What holds between the fields.
    holds: fn(&Fields) -> bool,
}

struct Field {
    name: &'static str,
    kind: Kind,
    absent: Absent,
}

/// What a field is that is not there.
enum Absent {
    /// An error.
    Wrong,
    /// Null, which it may also be.
    Null,
    /// A text.
    Text(&'static str),
    /// An empty object or list.
    Empty,
}

enum Kind {
    Any,
    Text,
    Whole,
    /// Not below this.
    WholeFrom(i64),
    Number,
    /// Not below zero.
    Amount,
    Flag,
    OneOf(&'static [&'static str]),
    Object(&'static Shape),
    List(&'static Kind),
    /// An item of a conversation: NeMo Gym knows some thirty kinds, of which only the outline is looked at here.
    Item,
}

use Absent::{Empty, Null, Wrong};
use Kind::{Amount, Any, Flag, Item, List, Object, OneOf, WholeFrom};

const fn field(name: &'static str, kind: Kind, absent: Absent) -> Field {
    Field { name, kind, absent }
}

const fn closed(fields: &'static [Field], holds: fn(&Fields) -> bool) -> Shape {
    Shape {
        fields,
        is_open: false,
        holds,
    }
}

fn always(_: &Fields) -> bool {
    true
}

static MODEL: Shape = Shape {
    fields: &[
        field("type", OneOf(&["responses_api_models"]), Wrong),
        field("name", Kind::Text, Wrong),
    ],
    is_open: true,
    holds: always,
};

static REFERENCE: Shape = closed(
    &[
        field("model_call_id", Kind::Text, Null),
        field("model_ref", Object(&MODEL), Null),
        field("response_id", Kind::Text, Null),
    ],
    |reference| {
        text(reference, "model_call_id").is_some()
            || reference.get("model_ref").is_some_and(Value::is_object)
                && text(reference, "response_id").is_some()
    },
);

static TOKENS: Shape = closed(
    &[
        field("prompt_tokens", WholeFrom(0), Null),
        field("completion_tokens", WholeFrom(0), Null),
        field("reasoning_tokens", WholeFrom(0), Null),
        field("total_tokens", WholeFrom(0), Null),
        field("cached_tokens", WholeFrom(0), Null),
    ],
    always,
);

static METADATA: Shape = closed(
    &[
        field("response_id", Kind::Text, Null),
        field("model_ref", Object(&MODEL), Null),
        field("model", Kind::Text, Null),
        field("dialect", Kind::Text, Null),
        field("status_code", Kind::Whole, Null),
        field("response_status", Kind::Text, Null),
        field("finish_reason", Kind::Text, Null),
        field("upstream_attempted", Flag, Null),
        field("response_source", OneOf(&["upstream", "local"]), Null),
        field("upstream_status_code", Kind::Whole, Null),
        field("local_response_reason", Kind::Text, Null),
        field("error_category", Kind::Text, Null),
        field("latency_ttft_ms", Amount, Null),
    ],
    always,
);

static CALL: Shape = closed(
    &[
        field("model_call_id", Kind::Text, Null),
        field("started_at", Kind::Number, Null),
        field("completed_at", Kind::Number, Null),
        field("duration_ms", Amount, Null),
        field("request", Any, Null),
        field("response", Any, Null),
        field("response_metadata", Object(&METADATA), Empty),
        field("token_stats", Object(&TOKENS), Empty),
    ],
    always,
);

static TURN: Shape = closed(
    &[
        field("invocation_id", Kind::Text, Wrong),
        field("task_id", Kind::Text, Wrong),
        field("rollout_id", Kind::Text, Wrong),
        field("turn_no", WholeFrom(1), Wrong),
        field("timestamp", Kind::Number, Wrong),
        field("question", Any, Null),
        field("answer", Any, Null),
        field("reasoning_content", Any, Null),
        field("resolved", Flag, Null),
        field("step_count", WholeFrom(0), Wrong),
        field("model_calls", List(&Object(&REFERENCE)), Empty),
    ],
    always,
);

static INVOCATION: Shape = closed(
    &[
        field(
            "kind",
            OneOf(&["agent_invocation"]),
            Absent::Text("agent_invocation"),
        ),
        field("invocation_id", Kind::Text, Wrong),
        field("parent_invocation_id", Kind::Text, Null),
        field("spawned_by_tool_call_id", Kind::Text, Null),
        field(
            "status",
            OneOf(&["completed", "failed", "incomplete", "unknown"]),
            Absent::Text("unknown"),
        ),
        field("duration_ms", Amount, Null),
        field("error_type", Kind::Text, Null),
        field("model_calls", List(&Object(&REFERENCE)), Empty),
        field("conversation", List(&Item), Empty),
    ],
    always,
);

static TOOL_CALL: Shape = closed(
    &[
        field("kind", OneOf(&["tool_call"]), Absent::Text("tool_call")),
        field("invocation_id", Kind::Text, Wrong),
        field("tool_call_id", Kind::Text, Wrong),
        field("sandbox_id", Kind::Text, Null),
        field("tool_name", Kind::Text, Null),
        field("started_at", Kind::Number, Null),
        field("completed_at", Kind::Number, Null),
        field("duration_ms", Amount, Null),
        field(
            "timing_source",
            OneOf(&["executor", "artifact", "harness"]),
            Null,
        ),
        field(
            "status",
            OneOf(&[
                "completed",
                "failed",
                "timeout",
                "cancelled",
                "incomplete",
                "unknown",
            ]),
            Absent::Text("unknown"),
        ),
        field("error_type", Kind::Text, Null),
        field("output", Any, Null),
    ],
    |call| {
        let at = |name: &str| call.get(name).and_then(Value::as_f64);
        match (at("started_at"), at("completed_at")) {
            (Some(started), Some(completed)) => completed >= started,
            _ => true,
        }
    },
);

static GAP: Shape = closed(
    &[
        field("code", Kind::Text, Wrong),
        field("invocation_id", Kind::Text, Null),
        field("detail", Kind::Text, Null),
    ],
    always,
);

static TRAJECTORY: Shape = closed(
    &[
        field("schema_version", OneOf(&["1.0"]), Absent::Text("1.0")),
        field("task_id", Kind::Text, Wrong),
        field("rollout_id", Kind::Text, Wrong),
        field("invocations", List(&Object(&INVOCATION)), Empty),
        field("turns", List(&Object(&TURN)), Empty),
        field("model_calls", List(&Object(&CALL)), Empty),
        field("tool_calls", List(&Object(&TOOL_CALL)), Empty),
        field("gaps", List(&Object(&GAP)), Empty),
    ],
    has_identity,
);

/// Invocations, calls and turns can be told apart, and turns are of this rollout.
fn has_identity(trajectory: &Fields) -> bool {
    let invocations = objects(trajectory, "invocations").map(|found| text(found, "invocation_id"));
    let calls = objects(trajectory, "model_calls").filter_map(|call| text(call, "model_call_id"));
    let turns = || objects(trajectory, "turns");
    let numbers = turns().map(|turn| {
        (
            text(turn, "invocation_id"),
            turn.get("turn_no").and_then(Value::as_i64),
        )
    });
    let is_of_rollout = |turn: &Fields| {
        ["task_id", "rollout_id"]
            .iter()
            .all(|name| turn.get(*name) == trajectory.get(*name))
    };
    are_distinct(invocations)
        && are_distinct(calls)
        && are_distinct(numbers)
        && turns().all(is_of_rollout)
}

fn are_distinct<T: std::hash::Hash + Eq>(mut values: impl Iterator<Item = T>) -> bool {
    let mut seen = std::collections::HashSet::new();
    values.all(|value| seen.insert(value))
}

/// Levels of a value that NeMo Gym's writer goes down to.
const LEVELS: usize = 255;

/// A trajectory in its full form.
///
/// # Errors
/// It is none, or NeMo Gym could not write it.
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

/// The text of a field that has one that is not empty.
pub(super) fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let text = fields.get(name).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}

/// The objects of a list.
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
        for Field { name, kind, absent } in self.fields {
            let value = match (given.shift_remove(*name), absent) {
                (None, Wrong) => return None,
                (None | Some(Value::Null), Null) => Value::Null,
                (None, Absent::Text(text)) => Value::from(*text),
                (None, Empty) => kind.empty()?,
                (Some(value), _) => kind.canonical(value)?,
            };
            fields.insert((*name).to_owned(), value);
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
            Kind::Text => value.is_string().then_some(value),
            Kind::Whole => whole(&value).map(Value::Number),
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
            OneOf(names) => names
                .iter()
                .any(|name| value.as_str() == Some(name))
                .then_some(value),
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
