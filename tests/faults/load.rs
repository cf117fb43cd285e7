//! How much is in flight at a time: what each test says, or more where the environment asks for more.
//!
//! `ROLLSTREAM_TEST_CONCURRENCY=4096 cargo test --test faults` runs the suite under that load. Sweeps get more tasks
//! then, so that so many rollouts can be in flight at all. Tests that are about a number of calls in flight, about a rate
//! or about a time keep their own, and say so.
//!
//! `ROLLSTREAM_TEST_PARTITIONS=4 cargo test --test faults` runs it with sweeps that work in so many partitions.

use std::sync::LazyLock;

/// Calls in flight that sweeps have at least, where the environment says so.
const CONCURRENCY: &str = "ROLLSTREAM_TEST_CONCURRENCY";

static LEAST: LazyLock<u64> = LazyLock::new(|| {
    let text = std::env::var(CONCURRENCY).ok();
    text.map_or(0, |text| text.parse().unwrap())
});

/// Rollouts of sweeps, by the calls in flight: some have to wait for others.
const ROLLOUTS_IN_PLACE_OF_4: u64 = 5;

/// The environment asks for more than tests have by themselves.
pub fn is_raised() -> bool {
    *LEAST > 0
}

/// Calls in flight of a test that does with so many.
pub fn concurrency(usual: u64) -> u64 {
    usual.max(*LEAST)
}

/// Tasks of a test that does with so many, with so many rollouts each.
pub fn tasks(usual: u64, repeats: u64) -> u64 {
    let rollouts = *LEAST * ROLLOUTS_IN_PLACE_OF_4 / 4;
    usual.max(rollouts.div_ceil(repeats))
}

/// A time limit that calls keep however many are in flight; a tight one would be about the machine.
pub fn limit(usual: &str) -> &str {
    if is_raised() { "10s" } else { usual }
}

/// The options of a sweep with as many calls in flight as the environment asks for.
pub fn raised(options: &str) -> String {
    const FLAG: &str = "--concurrency";
    let mut words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    let flag = words.iter().position(|word| word == FLAG);
    match flag.and_then(|flag| words.get_mut(flag + 1)) {
        Some(number) => *number = concurrency(number.parse().unwrap()).to_string(),
        None if is_raised() => words.push(format!("{FLAG} {}", *LEAST)),
        None => {}
    }
    words.join(" ")
}

/// Partitions of all sweeps, where the environment says so.
const PARTITIONS: &str = "ROLLSTREAM_TEST_PARTITIONS";

/// The option that has a sweep work in as many partitions as the environment asks for.
pub fn partitions() -> String {
    let asked = std::env::var(PARTITIONS).ok();
    asked.map_or_else(String::new, |count| format!("--partitions {count}"))
}

/// The environment asks for everything at its full size, and not for some of it: `ROLLSTREAM_TEST_FULL=1`.
pub fn is_full() -> bool {
    std::env::var_os("ROLLSTREAM_TEST_FULL").is_some_and(|value| !value.is_empty())
}
