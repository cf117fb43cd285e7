//! `rollstream sim`: agents in a process of their own.

use std::net::TcpStream;

use crate::common::{Folder, sums};

#[test]
fn simulated_agents_serve_until_they_are_interrupted() {
    let tasks = sums(4).into_iter().zip(["a", "b"].into_iter().cycle());
    let folder = Folder::with_tasks(tasks.map(|(task, agent)| task.for_agent(agent)));
    let options = "sim --port 0 --agents a,b --latency fixed:1ms --body-size 20KB --fault-at 0=error_500 --seed 3";
    let sim = folder.rollstream(options).start();
    let line = sim.until_it_prints("head server");
    let head = line.split_whitespace().last().unwrap();
    assert!(sim.until_it_prints("agent b").contains("http://127.0.0.1:"));

    let command = folder.rollstream("collect -i tasks.jsonl -o run --num-repeats 2 --head-server");
    command.arg(head).run().exited_with(3);
    let counts =
        "select agent_name, count(*), min(length(result)) from rollouts group by 1 order by 1";
    assert_eq!(folder.sql("run", counts), ["a,2,20000", "b,4,20000"]);
    assert_eq!(
        folder.sql(
            "run",
            "select distinct task_index from attempts where http_status = 500"
        ),
        ["0"]
    );

    sim.signal("INT");
    sim.end().succeeded();
}

#[test]
fn the_addresses_can_be_read_by_a_program() {
    let folder = Folder::new();
    let sim = folder
        .rollstream("sim --json --port 0 --agents a,b --over-capacity refuse --capacity 3")
        .start();
    let line = sim.until_it_prints("{");
    let addresses: serde_json::Value = serde_json::from_str(&line).unwrap();
    for address in ["/head_server", "/agents/a", "/agents/b"] {
        let address = addresses.pointer(address).unwrap().as_str().unwrap();
        let address = address.strip_prefix("http://").unwrap();
        assert!(TcpStream::connect(address).is_ok(), "{address}");
    }
    sim.signal("TERM");
    let ended = sim.end().succeeded();
    assert_eq!(ended.stdout, line);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let folder = Folder::with_tasks(sums(1));
    let ended = folder
        .rollstream("sim --port 0 --difficulty 2")
        .run()
        .exited_with(2);
    ended.complaining(&["difficulty is 2", "from 0 to 1"]);
    folder.write("wrong.toml", "[sim]\nlatencie = 'fixed:1ms'\n");
    let ended = folder
        .rollstream("collect --config wrong.toml -i tasks.jsonl --agent sim -o run")
        .run();
    ended.exited_with(2).complaining(&["[sim]", "latencie"]);
    assert!(!folder.has("run"));
}
