//! A machine that is lost with all that it had: another goes on from what it copied to the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use rollstream::sim::{Latency, SimConfig};

use super::place::Place;
use super::reader;
use crate::common::{Running, Simulated, instant, sums};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

const TASKS: u64 = 150;
const REPEATS: i64 = 5;
const COLLECT: &str =
    "--num-repeats 5 --concurrency 4 --checkpoint-interval 50ms --disable-aggregation -q";

fn agents() -> Simulated {
    Simulated::start(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(10)),
        ..instant(["sim"])
    })
}

/// Rollouts of the journal's copy on the store, as a machine sees it that has nothing else.
fn copied(place: &Place) -> usize {
    let count = place.sql("select count(*) from rollouts");
    count.first().unwrap().parse().unwrap()
}

fn until(place: &Place, running: &mut Running, sim: &Simulated, requests: u64) {
    let deadline = Instant::now() + PATIENCE;
    let is_copied = || {
        place
            .objects()
            .keys()
            .any(|name| name.starts_with("journal/") && name.contains(".rows"))
    };
    while sim.requests() < requests || !is_copied() {
        assert!(running.is_running() && Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn another_machine_goes_on_from_the_copies_of_the_journal() {
    let (place, sim) = (Place::s3().with_tasks(sums(TASKS)), agents());
    let mut asked_again = 0;
    for kill in 1..=2 {
        let collect = place.collect(COLLECT).args(&sim.options());
        let mut running = collect.args(if kill > 1 { "--resume" } else { "" }).start();
        until(&place, &mut running, &sim, kill * 80);
        running.signal("KILL");
        assert_eq!(running.end().code, None);
        fs::remove_dir_all(place.folder.path(".local")).unwrap();

        let known = copied(&place);
        assert!(known > 0, "nothing was copied");
        asked_again = sim.requests() - known as u64;
    }
    let collect = place.collect(COLLECT).args(&sim.options());
    collect.args("--resume").run().succeeded();

    let all = reader::all(TASKS.try_into().unwrap(), REPEATS);
    let objects = place.objects();
    assert_eq!(reader::keys(&objects, "rollouts"), all);
    let left: Vec<&String> = objects
        .keys()
        .filter(|name| name.starts_with("journal/") || name.starts_with("lock/"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    reader::was_whole_at_every_moment(&place.server().history());

    // What was answered after the last copy is asked again, and nothing else; every request that the
    // agents counted is in the ledger.
    let attempts = place.sql("select task_index, rollout_index, attempt from attempts");
    let attempts: BTreeSet<String> = attempts.into_iter().collect();
    let mut asked: BTreeMap<String, u64> = BTreeMap::new();
    for (task, rollout, attempt) in sim.asked("sim") {
        *asked
            .entry(format!("{task},{rollout},{attempt}"))
            .or_default() += 1;
    }
    let missing: Vec<&String> = asked
        .keys()
        .filter(|key| !attempts.contains(*key))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(sim.requests() <= all.len() as u64 + 2 * (asked_again + 8));
    let interrupted = "select count(*) from attempts where outcome = 'interrupted'";
    assert_ne!(place.sql(interrupted), ["0"]);
}
