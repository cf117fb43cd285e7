//! How far a validator that calls itself may go.

use std::collections::HashMap;

use serde_json::Value;

/// How deep a schema, or an answer, may nest.
pub(super) const MAX_DEPTH: usize = 64;
/// How many levels a validator may be deep in calls: schemas refer to themselves, once for each level of the answer.
/// A level takes less than 2 KiB of stack even without optimisation.
const MAX_LEVELS: usize = 64 * 1024;
/// Levels that fit the stack of any thread.
const FEW_LEVELS: usize = 256;
/// The stack for as many levels as are allowed. Pages that are not reached take no memory.
const STACK_BYTES: usize = 256 << 20;

/// How many steps a value may take at one place of an answer.
const MAX_STEPS: u64 = 200_000;
/// How many references a schema may have where it is unknown what they lead to: at most two to the power of this many
/// ways go through them.
const MAX_UNKNOWN: usize = 16;

/// What of a schema says how deep its validator may call itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    depth: usize,
    references: usize,
}

impl Shape {
    pub fn of(schema: &Value) -> Result<Self, String> {
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

    /// The most levels for an answer of this depth. Between two references a validator goes down the schema; it can
    /// take each reference once without going down the answer.
    pub fn levels(self, answer_depth: usize) -> usize {
        if self.references == 0 {
            return self.depth;
        }
        (self.references + 1)
            .saturating_mul(self.depth)
            .saturating_mul(answer_depth + 1)
    }
}

/// How deep arrays and objects nest, up to [`MAX_DEPTH`].
pub(super) fn depth(value: &Value) -> Option<usize> {
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

/// How many references a schema that nests no deeper than [`MAX_DEPTH`] has.
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

/// Says why not where a validator of this schema could take forever: references that lead to references, two each time,
/// double the work with each. A validator remembers what it judged for references that lead back to themselves only.
pub(super) fn check_steps(schema: &Value) -> Result<(), String> {
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
    /// The steps of what references lead to, by its address; 0 while they are being counted.
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

/// Runs `work`, which calls itself up to `levels` deep, where there is stack for it; none where there is not.
pub(super) fn with_stack<T: Send>(levels: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
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
