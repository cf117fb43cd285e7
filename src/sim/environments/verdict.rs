//! What the verifier says of a response: [`judge`].

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::answer::{Verdict, verify};
use super::super::arithmetic::extract_answer;
use super::super::model::final_text;
use super::super::profile::Profile;
use super::super::row::Row;
use super::super::service::Rejected;

/// A request that cannot be read.
pub(super) fn unreadable(error: serde_json::Error) -> Rejected {
    let why = format!("the request cannot be read: {error}");
    Rejected::detail(StatusCode::UNPROCESSABLE_ENTITY, why)
}

/// The JSON text of the `response` in a body.
pub(super) fn response_in(body: &str) -> Result<&RawValue, Rejected> {
    #[derive(Deserialize)]
    struct Judged<'a> {
        #[serde(borrow)]
        response: &'a RawValue,
    }
    let Judged { response } = serde_json::from_str(body).map_err(unreadable)?;
    Ok(response)
}

/// Judges a response to a row. Where the row has no number to expect, chance decides, as it does for
/// an agent.
pub(super) fn judge(
    row: &Row,
    response: &RawValue,
    profile: &Profile,
) -> Result<Verdict, Rejected> {
    let said = final_text(response.get()).map_err(unreadable)?;
    Ok(match row.expected() {
        Some(expected) => verify(&said, expected),
        None => Verdict {
            extracted: extract_answer(&said),
            correct: profile.plan(row.key(), row.difficulty()).correct,
        },
    })
}
