//! Shards of one machine that write to an object store at the same time.

use std::time::Duration;

use super::place::Place;
use super::reader;
use crate::common::{Program, Simulated, instant, task};
use crate::store_proxy::Accident::Stall;

/// Tasks whose table is an upload of some pieces, however well it is packed.
fn large_tasks(count: u64) -> Vec<crate::common::Task> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut text = || -> String {
        let letters = std::iter::repeat_with(|| random.alphanumeric());
        letters.take(1_500_000).collect()
    };
    (0..count).map(|_| task(&text())).collect()
}

#[test]
fn shards_that_start_at_once_leave_each_others_uploads_alone() {
    let stall = Stall(Duration::from_secs(15));
    let place = Place::s3_with([stall.to("PUT", "/tasks/", "partNumber=1&")]);
    let place = place.with_tasks(large_tasks(8));
    let sim = Simulated::start(instant(["sim"]));
    let shard = |index: u32| -> Program {
        let options = format!("-q --num-repeats 2 --shard {index}/4 --disable-aggregation");
        place.collect(&options).args(&sim.options())
    };
    let first = shard(1).start();
    // Its upload of the tasks is open now, and stays so for a while.
    place.until_an_accident_happens();
    let others: Vec<_> = (2..=4).map(|index| shard(index).start()).collect();
    for other in others {
        other.end().succeeded();
    }
    first.end().succeeded();
    let objects = place.objects();
    assert_eq!(reader::keys(&objects, "rollouts"), reader::all(8, 2));
    assert_eq!(sim.requests(), 16);
    assert_eq!(place.server().open_uploads(), [""; 0]);
    reader::was_whole_at_every_moment(&place.server().history());
}
