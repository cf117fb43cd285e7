use bytes::Bytes;

use super::Answer;
use crate::json;
use crate::outcome::AnswerFields;
use crate::retry::{Failure, FailureClass};

/// What words a failure, and quotes of what was answered without secrets.
pub(super) struct Wording<'a> {
    /// Makes a failure of a class and a reason.
    pub(super) failure: &'a dyn Fn(FailureClass, &str) -> Failure,
    /// The beginning of the body, to stand at the end of a reason.
    pub(super) quote: &'a dyn Fn(&[u8]) -> String,
    /// The beginning of another text of the answer.
    pub(super) shown: &'a dyn Fn(&[u8]) -> String,
}

/// What a body of status 200 means, by NeMo Gym's contract. The flags come first: an answer that
/// carries one need not have a reward, nor any other where none `needs_reward`.
pub(super) fn judge(
    body: Bytes,
    needs_reward: bool,
    wording: &Wording<'_>,
) -> Result<Answer, Failure> {
    let data = |why: String| (wording.failure)(FailureClass::Data, &why);
    let text = std::str::from_utf8(&body)
        .map_err(|source| data(format!("the answer is not UTF-8 ({source})")))?;
    let fields = AnswerFields::parse(text).map_err(|source| {
        data(format!(
            "the answer is not a JSON object ({source}){}",
            (wording.quote)(&body)
        ))
    })?;
    if json::is_too_deep(text) {
        let most = json::MAX_DEPTH;
        return Err(data(format!("the answer nests deeper than {most} levels")));
    }
    if fields.no_persist {
        return Err(Failure {
            failure_terminal: fields.failure_terminal,
            ..(wording.failure)(
                FailureClass::NotPersisted,
                "the agent asked for its answer to be forgotten (_ng_no_persist)",
            )
        });
    }
    if let Some(class) = &fields.failure_class {
        let class = (wording.shown)(class.as_bytes());
        let why = format!("the agent reported a failure (_ng_failure_class: {class:?})");
        return Err(Failure {
            failure_terminal: fields.failure_terminal,
            answer: Some(body),
            ..(wording.failure)(FailureClass::AgentFlagged, &why)
        });
    }
    if needs_reward && fields.reward.is_none() {
        return Err(data(format!(
            "the answer has no numeric 'reward'{}",
            (wording.quote)(&body)
        )));
    }
    Ok(Answer { fields, body })
}
