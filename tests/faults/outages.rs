//! An agent whose port closes while a sweep goes on.

use super::scene::{Scene, rollouts};

#[test]
fn an_agent_that_comes_back_is_waited_for() {
    let scene = Scene::slow(5);
    let running = scene.collect("--concurrency 16").start();
    scene
        .agents
        .until("it runs", |agents| agents.num_requests() >= rollouts() / 4);
    scene.agents.set_down("sim", true);
    let said = running.until_it_says("can't be reached");
    assert!(
        said.contains("agent 'sim'") && said.contains("--agent-patience"),
        "{said}"
    );
    scene.agents.set_down("sim", false);
    running.until_it_says("agent 'sim' answers again");
    running.end().succeeded();
    let ledger = scene.is_done_but_for(&[]);
    let failed = ledger.ends(|row| row.outcome != "ok");
    assert!(
        matches!(failed[..], [("infra", None, false, failures)] if failures >= 3),
        "{failed:?}"
    );
}

#[test]
fn an_agent_that_does_not_come_back_leaves_its_rest_pending() {
    let scene = Scene::slow(5);
    let running = scene
        .collect("--concurrency 16 --agent-patience 1s")
        .start();
    scene
        .agents
        .until("it runs", |agents| agents.num_requests() >= rollouts() / 4);
    scene.agents.set_down("sim", true);
    let said = running.until_it_says("stays pending");
    assert!(
        said.contains("agent 'sim'") && said.contains("rollstream resume"),
        "{said}"
    );
    running.end().exited_with(3);
    scene.has_state("incomplete");
    let ledger = scene.ledger();
    scene.answers_are_right(&ledger);
    scene.requests_are_on_record(&ledger);
    let counts = scene.folder.json("run/run.json")["rollouts"].clone();
    let done = ledger.rollouts.len() as u64;
    assert!(done < rollouts(), "it was not down");
    assert_eq!(
        counts,
        serde_json::json!({"planned": rollouts(), "done": done, "failed": 0, "pending": rollouts() - done})
    );
    let failed = ledger.ends(|row| row.outcome != "ok");
    assert!(
        matches!(failed[..], [("infra", None, false, _)]),
        "{failed:?}"
    );

    scene.agents.set_down("sim", false);
    scene.collect("--resume").run().succeeded();
    scene.is_done_but_for(&[]);
    scene.has_state("finished");
}

#[test]
fn an_agent_that_is_never_there_costs_no_budget() {
    let scene = Scene::slow(0);
    scene.agents.set_down("sim", true);
    let options = "--concurrency 16 --agent-patience 1s --infra-budget 1";
    for _ in 0..3 {
        scene.collect(options).args("--resume").run().exited_with(3);
    }
    assert_eq!(scene.agents.num_requests(), 0);
    let ledger = scene.ledger();
    assert!(ledger.rollouts.is_empty());
    let given_up = ledger.attempts.iter().filter(|row| row.terminal).count();
    assert_eq!(given_up, 0, "{:?}", ledger.ends(|_| true));
    let counts = scene.folder.json("run/run.json")["rollouts"].clone();
    assert_eq!(counts["pending"], rollouts(), "{counts}");

    scene.agents.set_down("sim", false);
    scene.collect(options).args("--resume").run().succeeded();
    scene.is_done_but_for(&[]);
}
