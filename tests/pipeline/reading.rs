//! From input files to the rows of `tasks` and the requests that agents get.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use rollstream::config::{AgentSettings, Concurrency, Settings};
use rollstream::sim::{AgentConfig, Sim};

use super::given_answers::GivenAnswers;
use super::landed::{self, Task};
use super::workspace::{Workspace, quick, sweep, tasks};

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 3).unwrap()
}

/// Does a sweep over `input`; gives the rows of `tasks` as file name, line, task and first rollout.
async fn read(
    place: &Workspace,
    input: Vec<String>,
    limit: Option<i64>,
    repeats: u32,
) -> Vec<(String, i64, i64, i64)> {
    let sim = Sim::start(quick(&[("sim", AgentConfig::default())]))
        .await
        .unwrap();
    let settings = Settings {
        input,
        limit,
        head_server: Some(sim.head_url().parse().unwrap()),
        ..place.bare_settings(repeats)
    };
    let report = sweep(settings).await;
    let tasks = landed::tasks(&place.run());
    assert_eq!(
        report.rollouts.done,
        tasks.len() as u64 * u64::from(repeats)
    );
    let name = |row: &Task| row.file.rsplit('/').next().unwrap().to_owned();
    tasks
        .iter()
        .map(|row| (name(row), row.line, row.task, row.first_rollout))
        .collect()
}

fn lines(file: &str, rows: &[(i64, i64, i64)]) -> Vec<(String, i64, i64, i64)> {
    rows.iter()
        .map(|(line, task, first)| (file.to_owned(), *line, *task, *first))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_are_read_in_the_order_given_whatever_their_compression() {
    let place = Workspace::new();
    let all = tasks(6, &["sim"]);
    let line: Vec<&str> = all.split_inclusive('\n').collect();
    let input = vec![
        place.write("z.jsonl.zst", zstd(&line[..2].concat())),
        place.write("a.jsonl", line[2..4].concat()),
        place.write("m.jsonl.gz", gzip(&line[4..].concat())),
    ];
    let expected = [
        lines("z.jsonl.zst", &[(1, 0, 0), (2, 1, 0)]),
        lines("a.jsonl", &[(1, 2, 0), (2, 3, 0)]),
        lines("m.jsonl.gz", &[(1, 4, 0), (2, 5, 0)]),
    ];
    assert_eq!(read(&place, input, None, 2).await, expected.concat());
    assert_eq!(landed::done(&place.run()), landed::all(6, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_glob_stands_for_the_files_that_match_it() {
    let place = Workspace::new();
    let all = tasks(3, &["sim"]);
    let line: Vec<&str> = all.split_inclusive('\n').collect();
    place.write("tasks/2.jsonl", line[1]);
    place.write("tasks/1.jsonl", line[0]);
    place.write("tasks/3.jsonl.gz", gzip(line[2]));
    place.write("tasks/4.txt", "no task\n");
    let pattern = place.path("tasks/*.jsonl*").display().to_string();
    let mut found = read(&place, vec![pattern], None, 1).await;
    found.sort();
    assert_eq!(
        found.iter().map(|row| &*row.0).collect::<Vec<_>>(),
        ["1.jsonl", "2.jsonl", "3.jsonl.gz"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_line_in_two_files_is_one_task_with_more_rollouts() {
    let place = Workspace::new();
    let all = tasks(3, &["sim"]);
    let line: Vec<&str> = all.split_inclusive('\n').collect();
    let input = vec![
        place.write("a.jsonl", [line[0], line[1], line[0]].concat()),
        place.write("b.jsonl.gz", gzip(&[line[2], line[0]].concat())),
    ];
    let expected = [
        lines("a.jsonl", &[(1, 0, 0), (2, 1, 0), (3, 0, 2)]),
        lines("b.jsonl.gz", &[(1, 2, 0), (2, 0, 4)]),
    ];
    assert_eq!(read(&place, input, None, 2).await, expected.concat());
    let rollouts = |task: i64, count: i64| (0..count).map(move |rollout| (task, rollout));
    let done: Vec<_> = rollouts(0, 6)
        .chain(rollouts(1, 2))
        .chain(rollouts(2, 2))
        .collect();
    assert_eq!(landed::done(&place.run()), done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_is_of_lines_of_all_inputs_together() {
    let place = Workspace::new();
    let all = tasks(6, &["sim"]);
    let line: Vec<&str> = all.split_inclusive('\n').collect();
    let input = vec![
        place.write("a.jsonl", line[..2].concat()),
        place.write("b.jsonl", line[2..5].concat()),
        place.write("c.jsonl", "never looked at"),
    ];
    let expected = [
        lines("a.jsonl", &[(1, 0, 0), (2, 1, 0)]),
        lines("b.jsonl", &[(1, 2, 0)]),
    ];
    assert_eq!(read(&place, input, Some(3), 1).await, expected.concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_gets_the_row_with_its_numbers_and_seed() {
    let place = Workspace::new();
    let agent = GivenAnswers::start(vec![br#"{"reward": 1}"#.as_slice().into(); 2]).await;
    let own = AgentSettings {
        url: Some(agent.url().parse().unwrap()),
        ..AgentSettings::default()
    };
    let settings = Settings {
        input: vec![place.write("tasks.jsonl", tasks(2, &["given"]))],
        agents: BTreeMap::from([("given".to_owned(), own)]),
        num_repeats_add_seed: true,
        seed_field: "responses_create_params.seed".parse().unwrap(),
        responses_create_params: serde_json::from_str(r#"{"temperature": 0.6}"#).unwrap(),
        concurrency: Concurrency::Fixed(1),
        ..place.bare_settings(2)
    };
    sweep(settings).await;
    let rows: Vec<_> = agent.asked().into_iter().map(|asked| asked.row).collect();
    let expected: Vec<_> = landed::all(2, 2)
        .into_iter()
        .map(|(task, rollout)| {
            serde_json::json!({
                "responses_create_params":
                    {"input": format!("What is {task} + 1?"), "temperature": 0.6, "seed": rollout},
                "expected_answer": task + 1,
                "agent_ref": {"name": "given"},
                "_ng_task_index": task,
                "_ng_rollout_index": rollout,
            })
        })
        .collect();
    assert_eq!(rows, expected);
}
