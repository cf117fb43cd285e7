//! Random schedules of faults, kills and resumes: see [`schedule`](super::schedule).

use super::load::is_full;
use super::schedule::{Happened, run};

/// Kills in all, and where the environment asks for all that there is.
const KILLS: (usize, usize) = (12, 60);

#[test]
fn nothing_is_lost_whatever_fails_and_whenever_the_collector_is_killed() {
    let mut happened = Happened::default();
    let mut seed = 0;
    let kills = if is_full() { KILLS.1 } else { KILLS.0 };
    while happened.kills < kills || !has_all(&happened) {
        happened = happened.and(run(seed, 12));
        seed += 1;
        assert!(seed < 40, "some of it hardly ever happens: {happened:?}");
    }
    println!("{happened:?}");
}

/// How much of it one schedule sees depends on the machine.
fn has_all(happened: &Happened) -> bool {
    let Happened {
        interrupted,
        given_up,
        looks,
        takeovers,
        ..
    } = *happened;
    interrupted > 0 && given_up > 0 && looks > 0 && takeovers > 0
}
