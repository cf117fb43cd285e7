//! Python's own rules, where NeMo Gym's prompts, files and messages depend on them.
//!
//! - [`is_truthy`], [`float`] and [`Key`] (equality) decide about values that stand as JSON text;
//! - [`repr_str`], [`repr_float`], [`repr_list`] and [`repr_dict`] print as `repr()` does, [`Value`] as `str()` does;
//! - [`json`] reads what `json.loads` reads, and writes it as `json.dumps` or orjson would;
//! - `Compensated` adds floats as `sum()` does;
//! - [`glob()`] is `glob.glob`, and [`Template`] is `str.format` over the fields of a task;
//! - [`programs`] are where virtual environments have them.
//!
//! `tests/data/python_values.jsonl` holds CPython's answers. Prompts, requests, task identities and the health checks use
//! this module. It is ours because the crates for it, `rustpython-format` and `rustpython-literal`, bring a dozen others,
//! among them Unicode tables of 2019, which decide what `repr` escapes.

mod glob;
pub mod json;
mod number;
mod repr;
mod spec;
mod sum;
mod template;
mod value;

pub use glob::glob;
pub use repr::{repr_dict, repr_float, repr_list, repr_str};
pub(crate) use sum::{Compensated, two_sum};
pub use template::{FillError, Template, TemplateError};
pub use value::{Key, MAX_DEPTH, Value};

use std::env;
use std::path::PathBuf;

use crate::json::unquote;

/// Returns the programs of this name in the active virtual environment, in `.venv` here and above, and the first on the `PATH`.
pub fn programs(name: &str) -> Vec<PathBuf> {
    let active = env::var_os("VIRTUAL_ENV").filter(|root| !root.is_empty());
    let here = env::current_dir().unwrap_or_default();
    let above = here.ancestors().map(|folder| folder.join(".venv"));
    let environments = active.map(PathBuf::from).into_iter().chain(above);
    let own = environments.map(|root| root.join("bin").join(name));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut on_path = env::split_paths(&path).map(|folder| folder.join(name));
    let own = own.filter(|program| program.is_file());
    own.chain(on_path.find(|program| program.is_file()))
        .collect()
}

/// Whether Python takes a value for true: `bool(json.loads(text))`. `json` is well-formed and has no space around it.
pub fn is_truthy(json: &str) -> bool {
    let inner = json.get(1..json.len().saturating_sub(1));
    let inner = inner.unwrap_or_default();
    match json.as_bytes().first() {
        None | Some(b'n' | b'f') => false,
        Some(b't') => true,
        Some(b'"') => !inner.is_empty(),
        Some(b'[' | b'{') => !inner.trim_ascii().is_empty(),
        Some(_) => json.parse::<f64>().is_ok_and(|number| number != 0.0),
    }
}

/// [`is_truthy`] of a value that is parsed already.
pub fn is_truthy_value(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// Python's `float()` of a JSON value; `None` where it raises an exception.
pub fn float(json: &str) -> Option<f64> {
    match json {
        "true" => Some(1.0),
        // An integer, which has no negative zero.
        "false" | "-0" => Some(0.0),
        _ if json.starts_with('"') => float_in(unquote(json)?.trim()),
        _ => json.parse().ok(),
    }
}

/// The number in a text, where digits may have an underscore between them.
fn float_in(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| {
        at.and_then(|at| bytes.get(at))
            .is_some_and(u8::is_ascii_digit)
    };
    let mut underscores = text.match_indices('_').map(|(at, _)| at);
    let between_digits =
        underscores.all(|at| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)));
    between_digits.then(|| text.replace('_', "").parse().ok())?
}

/// Whether Python's `str.strip()` removes a character: also four controls that Unicode does not call white space.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

#[cfg(test)]
mod tests;
