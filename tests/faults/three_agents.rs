//! Three agents: one that only fails, one that hangs, one that is well.

use rollstream::sim::{AgentConfig, SimConfig};

use super::ledger::Ledger;
use super::load::{raised, tasks};
use super::scene::{REPEATS, Scene, collecting, quick, rates, shown};
use crate::common::{Folder, sums};

const NAMES: [&str; 3] = ["bad", "hung", "well"];

fn agent(faults: &[(&str, f64)]) -> AgentConfig {
    AgentConfig {
        faults: Some(rates(faults)),
        ..AgentConfig::default()
    }
}

/// Rollouts of each agent.
fn third() -> u64 {
    tasks(60, REPEATS) / 3 * REPEATS
}

fn scene() -> Scene {
    let agents = [
        ("bad", agent(&[("error_500", 1.0)])),
        ("hung", agent(&[("hang", 1.0)])),
        ("well", AgentConfig::default()),
    ];
    let mut scene = Scene::new(SimConfig {
        agents: agents.map(|(name, agent)| (name.to_owned(), agent)).into(),
        ..quick()
    });
    let tasks = sums(3 * third() / REPEATS)
        .into_iter()
        .zip(NAMES.into_iter().cycle());
    scene.folder = Folder::with_tasks(tasks.map(|(task, name)| task.for_agent(name)));
    scene
}

#[test]
fn an_agent_that_fails_and_one_that_hangs_hold_up_nobody_else() {
    let scene = scene();
    let collect = |options: &str| {
        let program = collecting(&scene.folder).args(&raised(options));
        program.args(&scene.agents.options())
    };
    let running = collect("--concurrency 24 --agent-patience 1s").start();
    scene.agents.until("the third is done", |agents| {
        agents.counts("well").ok == third()
    });
    // Nothing ends a call that hangs: all of the third was done meanwhile.
    let hung = scene.agents.counts("hung");
    assert_eq!((hung.abandoned, hung.ok), (0, 0));
    running.until_it_says("agent 'bad' has answered nothing but failures");
    assert_eq!(scene.agents.counts("hung").abandoned, 0);
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    running.end().exited_with(130);

    let ended =
        collect("--resume --concurrency 24 --agent-patience 1s --rollout-timeout 300ms").run();
    let ended = ended.exited_with(3);
    assert!(
        ended.stdout.contains(&format!(
            "{} of {} rollouts done",
            shown(third()),
            shown(3 * third())
        )),
        "{ended:#?}"
    );
    assert_eq!(scene.agents.counts("well").requests, third());
    for (agent, why) in [("bad", "HTTP 500"), ("hung", "--rollout-timeout")] {
        let said = |line: &&str| line.contains(&format!("'{agent}'")) && line.contains(why);
        assert!(ended.stderr.lines().any(|line| said(&line)), "{ended:#?}");
    }

    let ledger = Ledger::read(&scene.folder.path("run"));
    ledger.is_consistent();
    assert_eq!(ledger.rollouts.len() as u64, third());
    let status = scene.status();
    for (place, (agent, outcome)) in [("bad", "infra"), ("hung", "timeout"), ("well", "")]
        .into_iter()
        .enumerate()
    {
        let figures = &status["agents"][place];
        assert_eq!(figures["agent_name"], agent, "{status:#}");
        let done = if agent == "well" { third() } else { 0 };
        assert_eq!(figures["done"], done, "{status:#}");
        if agent != "well" {
            let errors = figures["errors"].as_array().unwrap();
            assert!(
                errors.iter().any(|error| error["outcome"] == outcome),
                "{status:#}"
            );
        }
    }
}
