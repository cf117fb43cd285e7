//! [`RequestTemplate`]: a task's request with places for what each rollout adds.

use std::fmt::Write;
use std::ops::Range;

use super::extra_body::{self, ExtraBodyError};
use super::{ATTEMPT_INDEX, RESPONSES_CREATE_PARAMS, ROLLOUT_INDEX};
use crate::config::SeedField;
use crate::json::{Object, ObjectError, quote, unquote};

/// Why a task's request has no place for a rollout's index or seed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The text is not a JSON object.
    #[error("the request is malformed: {0}")]
    Request(ObjectError),
    /// There is nothing to put a seed into.
    #[error("{RESPONSES_CREATE_PARAMS} is missing; a seed needs it")]
    NoParams,
    /// It has no fields.
    #[error("{RESPONSES_CREATE_PARAMS} must be an object to carry a seed: {0}")]
    Params(ObjectError),
    /// `metadata` is there and not an object, or null.
    #[error(
        "{RESPONSES_CREATE_PARAMS}.metadata must be an object to carry a seed: {0}; remove it or make it one"
    )]
    Metadata(ObjectError),
    /// `extra_body` is there and not a string.
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

/// A request as it is sent, but for the values that differ between the rollouts of a task.
///
/// Making the template reads the text once; making a request of it copies slices.
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
    /// The attempt index in place of what the row came with, which the first attempt leaves alone.
    AttemptIndexFor(Range<usize>),
    /// The whole attempt field, which the first attempt does not have.
    AttemptField,
}

impl RequestTemplate {
    /// Finds the places for the rollout index, the attempt index and, where `seed` says so, the seed.
    ///
    /// A field that the request already has is overwritten where it stands; a new one goes to the end.
    ///
    /// # Errors
    /// If `request` is not a JSON object, or what would have to carry the seed cannot.
    pub fn new(request: &str, seed: Option<SeedField>) -> Result<Self, RequestError> {
        let request = Object::parse(request).map_err(RequestError::Request)?;
        let mut draft = Draft::default();
        draft.text.push('{');
        for (name, quoted, value) in request.iter() {
            draft.key(quoted);
            match (name, seed) {
                (ROLLOUT_INDEX, _) => draft.slot(Content::RolloutIndex),
                (ATTEMPT_INDEX, _) => draft.attempt_for(value),
                (RESPONSES_CREATE_PARAMS, Some(seed)) => draft.seeded_params(value, seed)?,
                _ => draft.text.push_str(value),
            }
        }
        if seed.is_some() && !request.contains(RESPONSES_CREATE_PARAMS) {
            return Err(RequestError::NoParams);
        }
        if !request.contains(ROLLOUT_INDEX) {
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

    /// Bytes of a request, about.
    #[expect(clippy::len_without_is_empty, reason = "no request is empty")]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// The request of one attempt at one rollout. `attempt` counts the failed attempts before it.
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
            let around = extra_body::around_seed(&body).map_err(RequestError::ExtraBody)?;
            draft.text.push('"');
            draft.inside_string(&around.before);
            draft.slot(Content::RolloutIndex);
            draft.inside_string(&around.after);
            draft.text.push('"');
            Ok(())
        })
    }

    /// Copies an object, and has `write` write the value of one field, in place or at the end.
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
}
