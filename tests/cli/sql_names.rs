//! Runs by their names.

use crate::common::{Folder, sums, task};

/// Two runs, `runs/base` of 2 tasks and `runs/cand` of 3, two rollouts each; the second has a metric
/// of its own.
fn two_runs() -> Folder {
    let folder = Folder::with_tasks(sums(2));
    let collect = "collect --agent sim --num-repeats 2 -q";
    folder
        .rollstream(collect)
        .args("-i tasks.jsonl -o runs/base")
        .run()
        .succeeded();
    folder.tasks(
        "more.jsonl",
        sums(2)
            .into_iter()
            .chain([task("Why?").answered_by(1).with("rating", 7)]),
    );
    folder
        .rollstream(collect)
        .args("-i more.jsonl -o runs/cand")
        .run()
        .succeeded();
    folder
}

#[test]
fn each_run_has_tables_of_its_own_beside_the_unions() {
    let folder = two_runs();
    let named = "b=runs/base Candidate=runs/cand";
    assert_eq!(
        folder.sql(
            named,
            "select run, count(*) from rollouts group by 1 order by 1"
        ),
        ["Candidate,6", "b,4"]
    );
    assert_eq!(
        folder.sql(
            named,
            "select (select count(*) from b.rollouts) as a, (select count(*) from candidate.tasks) as b, \
             (select count(*) from Candidate.attempts) as c, (select count(rating) from Candidate.rollouts) as d"
        ),
        ["4,3,6,2"]
    );
    assert_eq!(
        folder.sql(
            named,
            "select count(*) from b.rollouts join candidate.rollouts using (task_index, rollout_index) \
             where b.rollouts.accuracy >= 0"
        ),
        ["4"]
    );
    // A run has the columns of its own metrics alone, and nothing to tell it apart from itself.
    for column in ["rating", "run"] {
        let ended = folder
            .rollstream("sql b=runs/base cand=runs/cand -c")
            .arg(format!("select {column} from b.rollouts"))
            .run();
        ended.exited_with(1).complaining(&[column]);
    }
}

#[test]
fn one_run_with_a_name_is_asked_as_several_are() {
    let folder = two_runs();
    assert_eq!(
        folder.sql(
            "x=runs/base",
            "select run, count(*) from x.tasks, rollouts group by 1"
        ),
        ["x,8"]
    );
}

#[test]
fn a_path_gives_its_last_part_as_the_name() {
    let folder = two_runs();
    assert_eq!(
        folder.sql(
            "runs/base/ runs/cand",
            "select run, count(*) from rollouts where task_index in (select task_index from base.tasks) \
             group by 1 order by 1"
        ),
        ["runs/base,4", "runs/cand,4"]
    );
}

#[test]
fn names_that_make_no_sense_are_refused_before_anything_is_read() {
    let folder = two_runs();
    for (runs, complaint) in [
        ("a=runs/base a=runs/cand", "two runs are called 'a'"),
        ("runs/base runs/base", "given twice"),
        ("a=", "'a=' names no run"),
        ("a=nowhere", "there is no run at nowhere"),
        ("4a=runs/base", "there is no run at 4a=runs/base"),
    ] {
        let ended = folder.rollstream("sql").args(runs).args("-c 1").run();
        ended.exited_with(2).complaining(&[complaint]);
    }
}

#[test]
fn a_path_that_is_there_is_no_name() {
    let folder = two_runs();
    std::fs::rename(folder.path("runs/base"), folder.path("a=b")).unwrap();
    assert_eq!(folder.sql("a=b", "select count(*) from rollouts"), ["4"]);
}
