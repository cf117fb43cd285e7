//! A disk that fills up under the journal: nothing more is sent, nothing that was answered is lost, and the sweep goes
//! on when there is room.

use crate::common::{Folder, Simulated, SmallDisk, instant, sums};
use rollstream::sim::SimConfig;

#[test]
fn a_full_disk_stops_a_sweep_before_anything_is_lost() {
    let folder = Folder::with_tasks(sums(500));
    let Some(disk) = SmallDisk::mount(&folder.path("small"), "6m") else {
        eprintln!("skipped: this process may not mount a disk");
        return;
    };
    let sim = Simulated::start(SimConfig {
        body_size: 4000,
        ..instant(["sim"])
    });
    let collect =
        "collect -i tasks.jsonl --agent sim --num-repeats 4 --concurrency 32 -o small/run -q";
    let ended = folder.rollstream(collect).args(&sim.options()).run();
    ended.exited_with(1).complaining(&[
        "small/run/journal",
        "nothing more is sent",
        "rollstream resume",
    ]);
    let answered = sim.requests();
    assert!(answered > 100 && answered < 2000, "{answered}");
    // What was in flight was waited for and kept.
    let kept = folder.sql("small/run", "select count(*) from rollouts");
    assert_eq!(kept, [answered.to_string()]);

    disk.grow("64m");
    let resume = folder.rollstream(collect).args(&sim.options());
    resume.args("--resume").run().succeeded();
    assert_eq!(sim.requests(), 2000, "some were asked again");
    let done = "select count(*), count(distinct task_index * 10 + rollout_index) from rollouts";
    assert_eq!(folder.sql("small/run", done), ["2000,2000"]);
}

#[test]
fn a_disk_that_may_not_hold_the_first_answers_is_found_before_anything_is_sent() {
    let folder = Folder::with_tasks(sums(102));
    let Some(disk) = SmallDisk::mount(&folder.path("small"), "2m") else {
        eprintln!("skipped: this process may not mount a disk");
        return;
    };
    let sim = Simulated::start(SimConfig {
        body_size: 30_000,
        ..instant(["sim"])
    });
    let collect = "collect -i tasks.jsonl --agent sim --concurrency 102 -o small/run -q";
    let ended = folder.rollstream(collect).args(&sim.options()).run();
    ended.exited_with(1).complaining(&[
        "small/run/journal",
        "nothing more is sent",
        "rollstream resume",
    ]);
    assert_eq!(sim.requests(), 0);

    disk.grow("64m");
    let resume = folder.rollstream(collect).args(&sim.options());
    resume.args("--resume").run().succeeded();
    assert_eq!(sim.requests(), 102, "some were asked again");
    assert_eq!(folder.landed("small/run").len(), 102);
}
