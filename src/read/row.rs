//! Transformations of one row on its way to a task that depend on no other row, and [`Overrides`].

use serde_json::{Map, Value};

use super::errors::Kind;
use super::prompt::Prompt;
use super::task::ReadOptions;
use crate::config::{InterpolationError, SeedField, resolve};
use crate::json::{Object, ObjectError, quote, unquote};
use crate::python::is_truthy;
use crate::request::{AGENT_REF, MESSAGE_LOG, RESPONSES_CREATE_PARAMS};

/// Why a row cannot become a task.
pub(super) type Refusal = (Kind, String);

fn invalid(what: impl Into<String>) -> Refusal {
    (Kind::Task, what.into())
}

/// Reads a line, and sets its input from the prompt, if there is one, or from its question, if rows may be just that.
pub(super) fn parse<'a>(line: &'a [u8], options: &ReadOptions) -> Result<Object<'a>, Refusal> {
    let text = std::str::from_utf8(line).map_err(|error| {
        let at = error.valid_up_to() + 1;
        (
            Kind::Malformed,
            format!("the line is not UTF-8 from byte {at} on; convert the file to UTF-8"),
        )
    })?;
    let mut row = Object::parse(text).map_err(|error| match error {
        ObjectError::Syntax(error) => (Kind::Malformed, error.to_string()),
        ObjectError::NotAnObject(_) => invalid(format!("{error}; a task is a JSON object")),
    })?;
    if let Some(prompt) = &options.prompt {
        fill_prompt(&mut row, prompt)?;
    }
    if options.plain_questions {
        fill_question(&mut row)?;
    }
    Ok(row)
}

/// The fields that hold the question of a plain row; the first one that a row has counts.
const QUESTIONS: [&str; 5] = ["messages", "prompt", "question", "problem", "input"];

/// The fields that hold the choices of a plain row.
const CHOICES: [&str; 2] = ["choices", "options"];

/// Sets the row's input from its question, unless the row has a request or a conversation already.
fn fill_question(row: &mut Object<'_>) -> Result<(), Refusal> {
    if row.contains(RESPONSES_CREATE_PARAMS) || row.contains(MESSAGE_LOG) {
        return Ok(());
    }
    let value = |name: &&str| row.get(name).filter(|text| *text != "null");
    let Some(name) = QUESTIONS.iter().find(|name| value(name).is_some()) else {
        let names = QUESTIONS.map(|name| format!("`{name}`")).join(", ");
        return Err(invalid(format!(
            "it has no question: add a field {names} or {RESPONSES_CREATE_PARAMS}, or make one of other fields with \
             --prompt-config"
        )));
    };
    let question = value(name).unwrap_or_default();
    let input = match unquote(question) {
        Some(text) if text.trim().is_empty() => {
            return Err(invalid(format!("its `{name}` is empty")));
        }
        Some(text) => {
            let lists = CHOICES.iter().find_map(value);
            let choices = lists.and_then(|list| serde_json::from_str::<Vec<String>>(list).ok());
            let letters = 'A'..='Z';
            let choices = choices.iter().flatten().zip(letters);
            let lines = choices.map(|(choice, letter)| format!("\n{letter}) {choice}"));
            match lines.collect::<String>() {
                lines if lines.is_empty() => question.to_owned(),
                lines => quote(&format!("{text}\n{lines}")),
            }
        }
        None if question.starts_with('[') => question.to_owned(),
        None => {
            let what = format!("its `{name}` is neither a text nor a list of messages");
            return Err(invalid(what));
        }
    };
    row.set(RESPONSES_CREATE_PARAMS, format!("{{\"input\":{input}}}"));
    Ok(())
}

/// Sets the row's input from the prompt's templates.
fn fill_prompt(row: &mut Object<'_>, prompt: &Prompt) -> Result<(), Refusal> {
    let mut params = match row.get(RESPONSES_CREATE_PARAMS) {
        Some(params) => parse_params(params)?,
        None => Object::default(),
    };
    if params.get("input").is_some_and(is_truthy) {
        return Err((Kind::PromptConflict, String::new()));
    }
    let messages = prompt
        .messages(row)
        .map_err(|error| (Kind::Prompt, error.to_string()))?;
    params.set("input", messages);
    let params = params.to_string();
    row.set(RESPONSES_CREATE_PARAMS, params);
    Ok(())
}

/// Returns the name in the row's own `agent_ref`. It may be empty; null counts as missing.
pub(super) fn agent_name(row: &Object<'_>) -> Result<String, Refusal> {
    let missing = || (Kind::NoAgent, String::new());
    let agent_ref = row
        .get(AGENT_REF)
        .filter(|text| is_truthy(text))
        .ok_or_else(missing)?;
    let agent_ref =
        Object::parse(agent_ref).map_err(|error| invalid(format!("{AGENT_REF}: {error}")))?;
    let name = agent_ref
        .get("name")
        .filter(|name| *name != "null")
        .ok_or_else(missing)?;
    match name.as_bytes().first() {
        Some(b'[' | b'{') => Err(invalid(format!("{AGENT_REF}.name must be a string"))),
        // A number is kept: only the head server knows whether such an agent exists.
        _ => Ok(unquote(name).map_or_else(|| name.to_owned(), |name| name.into_owned())),
    }
}

/// Sets the overrides in the row's parameters. Every task needs parameters, unless it has a `message_log`.
pub(super) fn apply_overrides(row: &mut Object<'_>, overrides: &Overrides) -> Result<(), Refusal> {
    if !row.contains(RESPONSES_CREATE_PARAMS) && row.contains(MESSAGE_LOG) {
        row.set(RESPONSES_CREATE_PARAMS, "{}");
    }
    let params = row.get(RESPONSES_CREATE_PARAMS);
    let params = params.ok_or_else(|| {
        invalid(format!(
            "{RESPONSES_CREATE_PARAMS} is missing; a task needs it"
        ))
    })?;
    if overrides.is_empty() && params.starts_with('{') {
        return Ok(());
    }
    let mut params = parse_params(params)?;
    overrides.apply(&mut params);
    let params = params.to_string();
    row.set(RESPONSES_CREATE_PARAMS, params);
    Ok(())
}

/// Refuses options that would change the request of a taskset's row: the request belongs to the taskset's server.
pub(super) fn refuse_changes(options: &ReadOptions) -> Result<(), Refusal> {
    let refuse = |what: &str| {
        Err(invalid(format!(
            "{what} is not possible for a row of a taskset (with task_id and task_input)"
        )))
    };
    if !options.overrides.is_empty() {
        return refuse("setting responses_create_params");
    }
    match options.seed {
        Some(_) => refuse("num_repeats_add_seed"),
        None => Ok(()),
    }
}

/// Replaces a null `metadata` with an empty object if it must carry the seed.
pub(super) fn fill_metadata(row: &mut Object<'_>, seed: Option<SeedField>) -> Result<(), Refusal> {
    let params = row.get(RESPONSES_CREATE_PARAMS).unwrap_or_default();
    if seed != Some(SeedField::MetadataExtraBody) || !params.contains("null") {
        return Ok(());
    }
    let mut params = parse_params(params)?;
    if params.get("metadata") == Some("null") {
        params.set("metadata", "{}");
        let params = params.to_string();
        row.set(RESPONSES_CREATE_PARAMS, params);
    }
    Ok(())
}

fn parse_params(params: &str) -> Result<Object<'_>, Refusal> {
    Object::parse(params).map_err(|error| invalid(format!("{RESPONSES_CREATE_PARAMS}: {error}")))
}

/// Fields with their values as JSON text, in the order given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    fields: Vec<(String, String)>,
}

impl Overrides {
    /// Takes the fields and resolves the references in them: `${key}` and `${a.b}` refer to other fields, and `\${`
    /// stands for the characters `${`.
    ///
    /// # Errors
    /// If a reference is malformed, leads nowhere, or leads back to itself.
    pub fn new(fields: &Map<String, Value>) -> Result<Self, InterpolationError> {
        let resolved = resolve(fields)?;
        let fields = resolved
            .into_iter()
            .map(|(name, value)| (name, value.to_string()))
            .collect();
        Ok(Self { fields })
    }

    /// Whether there is nothing to set.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Sets each field to its whole value, in place if the field exists, else at the end.
    pub(super) fn apply<'a>(&'a self, params: &mut Object<'a>) {
        for (name, value) in &self.fields {
            params.set(name.as_str(), value.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(row: &str) -> Result<String, Kind> {
        agent_name(&Object::parse(row).unwrap()).map_err(|(kind, _)| kind)
    }

    #[test]
    fn an_agent_is_named_or_missing() {
        assert_eq!(
            name(r#"{"agent_ref":{"type":"t","name":"a\u00e9"}}"#),
            Ok("aé".to_owned())
        );
        assert_eq!(name(r#"{"agent_ref":{"name":""}}"#), Ok(String::new()));
        for missing in [
            "null",
            "{}",
            "\"\"",
            "0",
            "false",
            "[]",
            r#"{"name":null}"#,
            r#"{"type":"a"}"#,
        ] {
            assert_eq!(
                name(&format!("{{\"agent_ref\":{missing}}}")),
                Err(Kind::NoAgent),
                "{missing}"
            );
        }
        assert_eq!(name("{}"), Err(Kind::NoAgent));
        for wrong in ["\"a\"", "1", "[1]", r#"{"name":["a"]}"#] {
            assert_eq!(
                name(&format!("{{\"agent_ref\":{wrong}}}")),
                Err(Kind::Task),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_line_is_one_object_in_utf8() {
        let options = ReadOptions::default();
        let kind = |line: &[u8]| parse(line, &options).err().map(|(kind, _)| kind);
        assert_eq!(kind(b"{}"), None);
        assert_eq!(kind(b"[{}]"), Some(Kind::Task));
        assert_eq!(kind(b""), Some(Kind::Malformed));
        assert_eq!(kind(b"{\"a\":\"\xff\"}"), Some(Kind::Malformed));
    }

    #[test]
    fn parameters_must_be_an_object() {
        for row in [
            "{}",
            r#"{"responses_create_params":null}"#,
            r#"{"responses_create_params":[]}"#,
        ] {
            let mut row = Object::parse(row).unwrap();
            assert!(matches!(
                apply_overrides(&mut row, &Overrides::default()),
                Err((Kind::Task, _))
            ));
        }
    }

    #[test]
    fn a_prompt_fills_an_empty_input_in_place() {
        let prompt = Prompt::from_yaml("user: '{q}'").unwrap();
        let filled = |row: &str| {
            let mut row = Object::parse(row).unwrap();
            fill_prompt(&mut row, &prompt)
                .map(|()| row.to_string())
                .map_err(|(kind, _)| kind)
        };
        assert_eq!(
            filled(r#"{"responses_create_params":{"input":[],"t":1},"q":"x"}"#).unwrap(),
            r#"{"responses_create_params":{"input":[{"role":"user","content":"x"}],"t":1},"q":"x"}"#
        );
        assert_eq!(
            filled(r#"{"q":"x"}"#).unwrap(),
            r#"{"q":"x","responses_create_params":{"input":[{"role":"user","content":"x"}]}}"#
        );
        assert_eq!(
            filled(r#"{"responses_create_params":{"input":"y"},"q":"x"}"#),
            Err(Kind::PromptConflict)
        );
        assert_eq!(
            filled(r#"{"responses_create_params":null,"q":"x"}"#),
            Err(Kind::Task)
        );
        assert_eq!(filled("{}"), Err(Kind::Prompt));
    }

    #[test]
    fn a_plain_question_becomes_a_request() {
        let filled = |row: &str| {
            let mut row = Object::parse(row).unwrap();
            fill_question(&mut row)
                .map(|()| {
                    row.get(RESPONSES_CREATE_PARAMS)
                        .unwrap_or("none")
                        .to_owned()
                })
                .map_err(|(_, what)| what)
        };
        for (row, expected) in [
            (
                r#"{"question":"2 + 3?","answer":5}"#,
                r#"{"input":"2 + 3?"}"#,
            ),
            (
                r#"{"input":"b","prompt":"a","question":null}"#,
                r#"{"input":"a"}"#,
            ),
            (
                r#"{"messages":[{"role":"user","content":"a"}]}"#,
                r#"{"input":[{"role":"user","content":"a"}]}"#,
            ),
            (
                r#"{"question":"Which?","choices":["x","y"]}"#,
                r#"{"input":"Which?\n\nA) x\nB) y"}"#,
            ),
            (
                r#"{"question":"Which?","options":[1]}"#,
                r#"{"input":"Which?"}"#,
            ),
            (r#"{"responses_create_params":{},"question":"a"}"#, "{}"),
            (r#"{"message_log":[],"question":"a"}"#, "none"),
        ] {
            assert_eq!(filled(row).unwrap(), expected, "{row}");
        }
        for (row, expected) in [
            ("{}", "it has no question"),
            (r#"{"question":" "}"#, "its `question` is empty"),
            (r#"{"question":5}"#, "its `question` is neither"),
        ] {
            let what = filled(row).unwrap_err();
            assert!(what.starts_with(expected), "{what}");
        }
    }

    #[test]
    fn values_are_replaced_whole_and_in_place() {
        let fields = r#"{"reasoning":{"effort":"high"},"top_p":null,"new":"${reasoning.effort}"}"#;
        let overrides = Overrides::new(&serde_json::from_str(fields).unwrap()).unwrap();
        let mut params =
            Object::parse(r#"{"reasoning":{"effort":"low","summary":1},"input":[]}"#).unwrap();
        overrides.apply(&mut params);
        assert_eq!(
            params.to_string(),
            r#"{"reasoning":{"effort":"high"},"input":[],"top_p":null,"new":"high"}"#
        );
    }
}
