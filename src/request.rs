//! The request of a rollout, and the names of its fields.
//!
//! A task's request is JSON text. [`RequestTemplate`] knows the places in it that differ between rollouts (the rollout
//! index, the seed, the attempt), and fills them without reading the text again. `read` checks rows
//! with it, the run operator and `export` write requests with it.

use std::fmt::Write;
use std::ops::Range;

use crate::config::SeedField;
use crate::json::{Object, ObjectError, quote, unquote};
use crate::python::json::{LoadError, Writer, Written, loads};

/// The task's identity within a run; any JSON value.
pub const TASK_INDEX: &str = "_ng_task_index";
/// The rollout's number within its task, from 0.
pub const ROLLOUT_INDEX: &str = "_ng_rollout_index";
/// The number of failed attempts before this one; absent from the first.
pub const ATTEMPT_INDEX: &str = "_ng_attempt_index";
/// `{"name": ...}`: the agent that the rollout is for.
pub const AGENT_REF: &str = "agent_ref";
/// The instance of NeMo Gym's configuration that declares the data set that the row is from.
pub const TASK_SOURCE: &str = "task_source";
/// The environment server that the row is sent to.
pub const ENVIRONMENT_SERVER: &str = "_ng_environment_server";
/// The implementation of the environment server that a result came from.
pub const RESULT_TYPE: &str = "_ng_result_type";
/// The id under which servers keep a rollout, if the row has one.
pub const ROLLOUT_ID: &str = "_ng_rollout_id";
/// The identity of a task of a taskset: an object that names the taskset.
pub const TASK_ID: &str = "task_id";
/// The content of a task of a taskset.
pub const TASK_INPUT: &str = "task_input";
/// The skills that the agent is given.
pub const SKILLS_REF: &str = "skills_ref";
/// The conversation with which a multi-turn rollout begins, as in NeMo RL.
pub const MESSAGE_LOG: &str = "message_log";
/// The request to the model.
pub const RESPONSES_CREATE_PARAMS: &str = "responses_create_params";

/// Returns the value of [`AGENT_REF`] for an agent.
pub fn agent_ref(name: &str) -> String {
    format!("{{\"name\":{}}}", quote(name))
}

/// Returns the name in a row's [`AGENT_REF`].
pub fn agent_name(row: &Object<'_>) -> Option<String> {
    let agent = Object::parse(row.get(AGENT_REF)?).ok()?;
    unquote(agent.get("name")?).map(|name| name.into_owned())
}

/// The reason why a request has no place for a rollout's index or seed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The text is not a JSON object.
    #[error("the request is malformed: {0}")]
    Request(ObjectError),
    /// There is nothing to put a seed into.
    #[error("{RESPONSES_CREATE_PARAMS} is missing; a seed needs it")]
    NoParams,
    /// `responses_create_params` is not an object.
    #[error("{RESPONSES_CREATE_PARAMS} must be an object to carry a seed: {0}")]
    Params(ObjectError),
    /// `metadata` is neither absent, nor null, nor an object.
    #[error(
        "{RESPONSES_CREATE_PARAMS}.metadata must be an object to carry a seed: {0}; remove it or make it one"
    )]
    Metadata(ObjectError),
    /// `extra_body` is present and not a string.
    #[error(
        "{RESPONSES_CREATE_PARAMS}.metadata.extra_body must be a string of JSON to carry a seed, got {0}"
    )]
    ExtraBodyNotText(String),
    /// The text in `extra_body` is not a JSON object.
    #[error(
        "{RESPONSES_CREATE_PARAMS}.metadata.extra_body must hold the JSON text of an object to carry a seed: {0}"
    )]
    ExtraBody(ExtraBodyError),
}

/// A request without the values that differ between the rollouts of a task.
///
/// Creating the template reads the text once; creating a request from it copies slices.
///
/// ```
/// use rollstream::request::RequestTemplate;
///
/// let task = r#"{"responses_create_params":{},"agent_ref":{"name":"a"},"_ng_task_index":3}"#;
/// let template = RequestTemplate::new(task, None)?;
/// assert_eq!(
///     template.materialize(7, 0),
///     r#"{"responses_create_params":{},"agent_ref":{"name":"a"},"_ng_task_index":3,"_ng_rollout_index":7}"#
/// );
/// # Ok::<(), rollstream::request::RequestError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RequestTemplate {
    text: String,
    /// The places in `text`, from front to back.
    slots: Vec<Slot>,
}

#[derive(Debug, Clone)]
struct Slot {
    at: usize,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    /// The rollout index, as such or as a seed.
    RolloutIndex,
    /// The attempt index in place of the row's own value, which the first attempt keeps.
    AttemptIndexFor(Range<usize>),
    /// The whole attempt field, which the first attempt does not have.
    AttemptField,
}

impl RequestTemplate {
    /// Finds the places for the rollout index, the attempt index and, if `seed` is set, the seed.
    ///
    /// A field that the request already has is overwritten in place; a new one goes to the end.
    ///
    /// # Errors
    /// `request` is not a JSON object, or the field for the seed cannot carry it.
    pub fn new(request: &str, seed: Option<SeedField>) -> Result<Self, RequestError> {
        Self::of(request, seed, true)
    }

    /// Finds the place for the attempt index alone: the first attempt is sent the request as it is.
    ///
    /// # Errors
    /// `request` is not a JSON object.
    pub fn as_given(request: &str) -> Result<Self, RequestError> {
        Self::of(request, None, false)
    }

    fn of(request: &str, seed: Option<SeedField>, is_numbered: bool) -> Result<Self, RequestError> {
        let request = Object::parse(request).map_err(RequestError::Request)?;
        let mut draft = Draft::default();
        draft.text.push('{');
        for (name, quoted, value) in request.iter() {
            draft.key(quoted);
            match (name, seed) {
                (ROLLOUT_INDEX, _) if is_numbered => draft.slot(Content::RolloutIndex),
                (ATTEMPT_INDEX, _) => draft.attempt_for(value),
                (RESPONSES_CREATE_PARAMS, Some(seed)) => draft.seeded_params(value, seed)?,
                _ => draft.text.push_str(value),
            }
        }
        if seed.is_some() && !request.contains(RESPONSES_CREATE_PARAMS) {
            return Err(RequestError::NoParams);
        }
        if is_numbered && !request.contains(ROLLOUT_INDEX) {
            draft.key(&quote(ROLLOUT_INDEX));
            draft.slot(Content::RolloutIndex);
        }
        if !request.contains(ATTEMPT_INDEX) {
            draft.slot(Content::AttemptField);
        }
        draft.text.push('}');
        Ok(Self {
            text: draft.text,
            slots: draft.slots,
        })
    }

    /// Returns the approximate number of bytes of a request.
    #[expect(clippy::len_without_is_empty, reason = "no request is empty")]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the request of one attempt at one rollout. `attempt` counts the failed attempts before it.
    pub fn materialize(&self, rollout_index: i64, attempt: u32) -> String {
        let mut request = String::new();
        self.write(rollout_index, attempt, &mut request);
        request
    }

    /// Appends the request of one attempt at one rollout to `out`.
    pub fn write(&self, rollout_index: i64, attempt: u32, out: &mut String) {
        const LONGEST_VALUE: usize = 40;
        out.reserve(self.text.len() + self.slots.len() * LONGEST_VALUE);
        let mut from = 0;
        for slot in &self.slots {
            out.push_str(self.text.get(from..slot.at).unwrap_or_default());
            from = slot.at;
            // Writing to a String cannot fail.
            let _ = match &slot.content {
                Content::RolloutIndex => write!(out, "{rollout_index}"),
                Content::AttemptField if attempt > 0 => {
                    write!(out, ",\"{ATTEMPT_INDEX}\":{attempt}")
                }
                Content::AttemptIndexFor(given) if attempt > 0 => {
                    from = given.end;
                    write!(out, "{attempt}")
                }
                Content::AttemptField | Content::AttemptIndexFor(_) => Ok(()),
            };
        }
        out.push_str(self.text.get(from..).unwrap_or_default());
    }
}

/// A template while its text grows.
#[derive(Default)]
struct Draft {
    text: String,
    slots: Vec<Slot>,
}

impl Draft {
    /// Starts a field of the object that is open.
    fn key(&mut self, quoted: &str) {
        if !self.text.ends_with('{') {
            self.text.push(',');
        }
        self.text.push_str(quoted);
        self.text.push(':');
    }

    fn slot(&mut self, content: Content) {
        let at = self.text.len();
        self.slots.push(Slot { at, content });
    }

    fn attempt_for(&mut self, value: &str) {
        let at = self.text.len();
        self.slot(Content::AttemptIndexFor(at..at + value.len()));
        self.text.push_str(value);
    }

    fn seeded_params(&mut self, params: &str, seed: SeedField) -> Result<(), RequestError> {
        let params = Object::parse(params).map_err(RequestError::Params)?;
        let carrier = match seed {
            SeedField::ResponsesCreateParams => "seed",
            SeedField::MetadataExtraBody => "metadata",
        };
        self.with_field(&params, carrier, |draft, value| match seed {
            SeedField::ResponsesCreateParams => {
                draft.slot(Content::RolloutIndex);
                Ok(())
            }
            SeedField::MetadataExtraBody => draft.seeded_metadata(value.unwrap_or("{}")),
        })
    }

    fn seeded_metadata(&mut self, metadata: &str) -> Result<(), RequestError> {
        let metadata = Object::parse(metadata).map_err(RequestError::Metadata)?;
        self.with_field(&metadata, "extra_body", |draft, value| {
            let value = value.unwrap_or("\"{}\"");
            let body =
                unquote(value).ok_or_else(|| RequestError::ExtraBodyNotText(shortened(value)))?;
            let around = around_seed(&body).map_err(RequestError::ExtraBody)?;
            draft.text.push('"');
            draft.inside_string(&around.before);
            draft.slot(Content::RolloutIndex);
            draft.inside_string(&around.after);
            draft.text.push('"');
            Ok(())
        })
    }

    /// Copies an object, and lets `write` write the value of one field, in place or at the end.
    fn with_field(
        &mut self,
        object: &Object<'_>,
        field: &str,
        write: impl Fn(&mut Self, Option<&str>) -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        self.text.push('{');
        for (name, quoted, value) in object.iter() {
            self.key(quoted);
            if name == field {
                write(self, Some(value))?;
            } else {
                self.text.push_str(value);
            }
        }
        if !object.contains(field) {
            self.key(&quote(field));
            write(self, None)?;
        }
        self.text.push('}');
        Ok(())
    }

    /// Appends a part of a string's content.
    fn inside_string(&mut self, content: &str) {
        let quoted = quote(content);
        let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        self.text.push_str(inner);
    }
}

fn shortened(value: &str) -> String {
    const SHOWN: usize = 40;
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => value.get(..end).unwrap_or_default().to_owned() + "...",
        None => value.to_owned(),
    }
}

/// The reason why the text of an extra body cannot carry a seed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtraBodyError {
    /// The text is not what Python's `json` reads.
    #[error("it is malformed: {0}")]
    Malformed(LoadError),
    /// The text is JSON, but not an object.
    #[error("it is not an object")]
    NotAnObject,
}

/// The text of `metadata.extra_body` before and after the value of its seed. It is read and written like JSON in
/// Python's `json`, so that a request is the same, byte for byte, whichever collector wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AroundSeed {
    before: String,
    after: String,
}

/// Rewrites `text` with a place for the value of `seed`: at that key of the object, or at the end.
fn around_seed(text: &str) -> Result<AroundSeed, ExtraBodyError> {
    let loaded = loads(text, Writer::Dumps).map_err(ExtraBodyError::Malformed)?;
    let Written::Object(mut fields) = loaded else {
        return Err(ExtraBodyError::NotAnObject);
    };
    let no_value = Written::Leaf(String::new());
    let (seed, _) = fields.insert_full("\"seed\"".to_owned(), no_value);
    let after = fields.split_off(seed + 1);
    let (mut before, mut rest) = (String::new(), String::new());
    Written::Object(fields).write(Writer::Dumps, &mut before);
    before.truncate(before.len() - 1);
    if after.is_empty() {
        rest.push('}');
    } else {
        Written::Object(after).write(Writer::Dumps, &mut rest);
        rest.replace_range(..1, ", ");
    }
    Ok(AroundSeed {
        before,
        after: rest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_PARAMS: Option<SeedField> = Some(SeedField::ResponsesCreateParams);
    const IN_METADATA: Option<SeedField> = Some(SeedField::MetadataExtraBody);

    fn made(request: &str, seed: Option<SeedField>, rollout_index: i64) -> String {
        RequestTemplate::new(request, seed)
            .unwrap()
            .materialize(rollout_index, 0)
    }

    #[test]
    fn indices_are_appended_or_overwritten_in_place() {
        let template = RequestTemplate::new(r#"{"a": 1.0,"_ng_task_index":3}"#, None).unwrap();
        assert_eq!(
            template.materialize(12, 0),
            r#"{"a":1.0,"_ng_task_index":3,"_ng_rollout_index":12}"#
        );
        assert_eq!(
            template.materialize(0, 2),
            r#"{"a":1.0,"_ng_task_index":3,"_ng_rollout_index":0,"_ng_attempt_index":2}"#
        );

        let stale = r#"{"_ng_attempt_index":9,"_ng_rollout_index":"x","a":1}"#;
        let template = RequestTemplate::new(stale, None).unwrap();
        assert_eq!(
            template.materialize(5, 0),
            r#"{"_ng_attempt_index":9,"_ng_rollout_index":5,"a":1}"#
        );
        assert_eq!(
            template.materialize(5, 1),
            r#"{"_ng_attempt_index":1,"_ng_rollout_index":5,"a":1}"#
        );
        assert_eq!(made("{}", None, 0), r#"{"_ng_rollout_index":0}"#);
    }

    #[test]
    fn a_seed_in_the_params_is_a_number_in_place_or_last() {
        assert_eq!(
            made(
                r#"{"responses_create_params":{"seed":9,"input":[]}}"#,
                IN_PARAMS,
                4
            ),
            r#"{"responses_create_params":{"seed":4,"input":[]},"_ng_rollout_index":4}"#
        );
        assert_eq!(
            made(r#"{"responses_create_params":{}}"#, IN_PARAMS, 4),
            r#"{"responses_create_params":{"seed":4},"_ng_rollout_index":4}"#
        );
    }

    #[test]
    fn a_seed_in_the_extra_body_is_within_its_text() {
        let metadata =
            |text: &str| format!(r#"{{"responses_create_params":{{"metadata":{text}}}}}"#);
        let seeded = |text: &str, index| made(&metadata(text), IN_METADATA, index);
        let expected = |text: &str, index| {
            let params = metadata(text);
            let params = params.strip_suffix('}').unwrap();
            format!("{params},\"_ng_rollout_index\":{index}}}")
        };
        assert_eq!(
            seeded("{}", 7),
            expected(r#"{"extra_body":"{\"seed\": 7}"}"#, 7)
        );
        assert_eq!(
            seeded(
                r#"{"extra_body":"{\"a\":[1,\"\\u00e9\\\"\"]}","run":1}"#,
                10
            ),
            expected(
                r#"{"extra_body":"{\"a\": [1, \"\\u00e9\\\"\"], \"seed\": 10}","run":1}"#,
                10
            )
        );
        assert_eq!(
            made(r#"{"responses_create_params":{"seed":1}}"#, IN_METADATA, 2),
            r#"{"responses_create_params":{"seed":1,"metadata":{"extra_body":"{\"seed\": 2}"}},"_ng_rollout_index":2}"#
        );
    }

    #[test]
    fn what_cannot_carry_a_seed_is_an_error() {
        let refused = |request: &str, seed| RequestTemplate::new(request, seed).unwrap_err();
        assert!(matches!(refused("[]", None), RequestError::Request(_)));
        assert_eq!(refused("{}", IN_PARAMS), RequestError::NoParams);
        for seed in [IN_PARAMS, IN_METADATA] {
            assert!(matches!(
                refused(r#"{"responses_create_params":null}"#, seed),
                RequestError::Params(_)
            ));
        }
        let with = |metadata: &str| {
            let request = format!(r#"{{"responses_create_params":{{"metadata":{metadata}}}}}"#);
            refused(&request, IN_METADATA)
        };
        assert!(matches!(with("null"), RequestError::Metadata(_)));
        assert!(matches!(
            with(r#"{"extra_body":null}"#),
            RequestError::ExtraBodyNotText(_)
        ));
        assert!(matches!(
            with(r#"{"extra_body":{}}"#),
            RequestError::ExtraBodyNotText(_)
        ));
        assert!(matches!(
            with(r#"{"extra_body":""}"#),
            RequestError::ExtraBody(_)
        ));
        assert!(matches!(
            with(r#"{"extra_body":"[1]"}"#),
            RequestError::ExtraBody(_)
        ));
    }

    fn extra_body(text: &str) -> Result<String, ExtraBodyError> {
        around_seed(text).map(|around| around.before + "<>" + &around.after)
    }

    #[test]
    fn the_seed_goes_in_place_or_to_the_end() {
        assert_eq!(extra_body("{}").unwrap(), r#"{"seed": <>}"#);
        assert_eq!(
            extra_body(r#" {"a":1} "#).unwrap(),
            r#"{"a": 1, "seed": <>}"#
        );
        assert_eq!(
            extra_body(r#"{"a":1,"\u0073eed":{"x":[]},"b":2}"#).unwrap(),
            r#"{"a": 1, "seed": <>, "b": 2}"#
        );
        assert_eq!(
            extra_body(r#"{"seed":1,"seed":2}"#).unwrap(),
            r#"{"seed": <>}"#
        );
    }

    #[test]
    fn the_text_is_spelled_as_python_spells_it() {
        for (text, expected) in [
            ("1e3", "1000.0"),
            ("1E-3", "0.001"),
            ("1e22", "1e+22"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("1e400", "Infinity"),
            ("-1e400", "-Infinity"),
            ("NaN", "NaN"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (r#"[ ]"#, "[]"),
            (r#"{ }"#, "{}"),
            (
                r#"[1 ,{"a":null,"b":[true,false],"a":2}]"#,
                r#"[1, {"a": 2, "b": [true, false]}]"#,
            ),
            ("\"é/🙂\u{7f}\"", r#""\u00e9/\ud83d\ude42\u007f""#),
            (
                r#""\ud83d\ude42\ud800 \/\b\f\n\r\t\"\\""#,
                r#""\ud83d\ude42\ud800 /\b\f\n\r\t\"\\""#,
            ),
        ] {
            assert_eq!(
                extra_body(&format!("{{\"k\":{text}}}")).unwrap(),
                format!("{{\"k\": {expected}, \"seed\": <>}}")
            );
        }
    }

    #[test]
    fn what_python_does_not_read_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "{\"a\"}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":1e}",
            "{\"a\":-}",
            "{\"a\":.5}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12\"}",
            "{} x",
            "\u{feff}{}",
            "{\"a\":[1,]}",
            "{\"a\":\"\\u+123\"}",
        ] {
            assert!(
                matches!(extra_body(text), Err(ExtraBodyError::Malformed(_))),
                "{text}"
            );
        }
        for text in ["null", "[]", "5", "\"{}\"", "NaN"] {
            assert_eq!(extra_body(text), Err(ExtraBodyError::NotAnObject), "{text}");
        }
        assert!(
            extra_body(&format!(
                "{{\"a\":{}1{}}}",
                "[".repeat(300),
                "]".repeat(300)
            ))
            .is_err()
        );
        assert!(extra_body(&format!("{{\"a\":{}}}", "1".repeat(4301))).is_err());
    }
}
