//! Long episodes of agents that the program runs itself: what they take on the disk and in memory grows with their
//! turns, and not with the square of them. So many episodes are measured, and no more with more in
//! flight.

use super::ledger::parts;
use super::memory::{MB, with_peak_memory};
use super::native_scene::{Kind, NativeScene, servers};

/// The most that growth may be above that of the turns.
const SLACK: f64 = 1.3;

fn bytes(scene: &NativeScene) -> u64 {
    let run = scene.folder.path("run");
    let parts = ["rollouts", "calls"].map(|table| parts(&run, table));
    let sizes = parts.iter().flatten();
    sizes.map(|part| part.metadata().unwrap().len()).sum()
}

#[test]
fn what_long_episodes_take_on_disk_grows_with_their_turns() {
    for kind in [Kind::Responses, Kind::PerSample] {
        let sizes = [5, 20, 80].map(|turns| {
            let scene = NativeScene::new(kind, 16, servers(turns));
            scene.collect("--concurrency 8").run().succeeded();
            scene.is_settled();
            bytes(&scene)
        });
        println!("{kind:?}: {sizes:?} bytes");
        // What does not depend on the turns is left out.
        let growth = (sizes[2] - sizes[1]) as f64 / (sizes[1] - sizes[0]) as f64;
        assert!(growth <= 4.0 * SLACK, "{kind:?}: {sizes:?}");
    }
}

#[test]
fn the_memory_of_long_episodes_does_not_grow_with_the_square_of_their_turns() {
    for kind in [Kind::Responses, Kind::PerSample] {
        let [usual, long] = [5, 240].map(|turns| {
            let scene = NativeScene::new(kind, 8, servers(turns));
            let (ended, peak) = with_peak_memory(scene.collect("--concurrency 8"));
            ended.succeeded();
            peak
        });
        println!("{kind:?}: {usual} and {long} bytes");
        // Eight episodes of some 100 kB. If each turn kept its request, it would be a hundred times that.
        assert!(long < usual + 40 * MB, "{kind:?}: {long}, usual {usual}");
    }
}
