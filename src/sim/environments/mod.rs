//! The servers that a model acts in: [`Tools`], a resources server; [`Gymnasium`], one with `/reset` and `/step`; and
//! [`Environment`], which is stepped in batches. Used by the servers of the simulation.

mod sessions;
mod stepped;
mod tools;

use hyper::StatusCode;

pub(super) use self::stepped::{Environment, Gymnasium};
pub(super) use self::tools::Tools;
use super::agent::Row;
use super::model::final_text;
use super::plan::Profile;
use super::server::service::Rejected;
use super::verifier::Verdict;

/// Returns the rejection of a request that cannot be read.
fn unreadable(error: serde_json::Error) -> Rejected {
    wrong(format!("the request cannot be read: {error}"))
}

/// Returns the rejection of a request that contradicts itself.
fn wrong(why: String) -> Rejected {
    Rejected::detail(StatusCode::UNPROCESSABLE_ENTITY, why)
}

/// Verifies the response in a row. If the row expects no number, chance decides, as for an agent.
fn verify(row: &Row, profile: &Profile) -> Result<Verdict, Rejected> {
    let response = row.response();
    let response = response
        .ok_or_else(|| wrong("the request cannot be read: missing field `response`".to_owned()))?;
    let said = final_text(response).map_err(unreadable)?;
    let by_chance = || profile.plan(row.key(), row.difficulty()).correct;
    Ok(Verdict::of(&said, row.expected(), by_chance))
}

/// Returns the observation after turn number `turn`, from 1, of an episode that continues.
fn observation(turn: u64) -> String {
    format!("Turn {turn}: go on, and end with \"The answer is\" and a number.")
}

/// Returns the number of the last turn that a simulated environment mentions in a text; 0 if there is none.
pub(super) fn last_turn(text: &str) -> u64 {
    let told = text.rmatch_indices("Turn ").find_map(|(at, mark)| {
        let after = text.get(at + mark.len()..)?;
        let (number, _) = after.split_once(':')?;
        number.parse().ok()
    });
    told.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_turn_counts() {
        let text = format!(
            "6 rows of 7? {} Turn left: {}",
            observation(1),
            observation(12)
        );
        assert_eq!(last_turn(&text), 12);
        assert_eq!(last_turn("Turn left: at once"), 0);
        assert_eq!(last_turn(""), 0);
    }
}
