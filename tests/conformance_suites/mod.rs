//! A file for each suite, and [`run`], which picks it.

mod aggregate;
mod case;
mod differences;
mod expected_error;
mod glob;
mod gym_groups;
mod health;
mod hooks;
mod multi_turn;
mod outcome;
mod preprocess;
mod recording_agent;
mod resume;
mod resume07;
mod reward_profile;
mod routed;
mod same_json;
mod scripted_replies;
mod scripted_servers;
mod served_config;

pub use case::Case;
pub use outcome::Outcome;

/// Runs a case; the error says what differs.
pub fn run(case: &Case) -> Result<Outcome, String> {
    let (directory, json) = (case.directory.as_path(), &case.json);
    match (case.suite(), case.rules.version) {
        ("reward_profile", _) => reward_profile::run(case),
        ("aggregate", _) => aggregate::run(case),
        ("preprocess", _) if case.json["config"].is_string() => {
            routed::run(case).map(|()| Outcome::Passed)
        }
        ("preprocess", _) => preprocess::run(case).map(|()| Outcome::Passed),
        ("resume", "0.5") => resume::run(directory, json),
        ("resume", _) => resume07::run(case),
        ("health", _) => health::run(case),
        ("glob", _) => ended(case, glob::run(directory, json)),
        // Each form has its own expectation, which may be an error.
        ("multi_turn", _) => multi_turn::run(directory, json).map(|()| Outcome::Passed),
        ("gym_groups", _) => gym_groups::run(case),
        (other, _) => Err(format!("there is no suite '{other}'")),
    }
}

/// How a case ended whose suite does not look for expected errors itself.
fn ended(case: &Case, result: Result<(), String>) -> Result<Outcome, String> {
    match (case.expects_error(), result) {
        (true, Ok(())) => Err("expected an error, and there was none".into()),
        (true, Err(message)) => {
            expected_error::check_error(&case.directory, &case.expected, &message)
        }
        (false, result) => result.map(|()| Outcome::Passed),
    }
}
