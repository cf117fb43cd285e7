//! Every line of the guide for those who come from NeMo Gym: its commands are run in order, its files are there
//! afterwards, and its keys are taken, no more than noted, or refused, as it says.

use std::process::Command;

use rollstream::sim::SimConfig;

use crate::common::{Folder, Simulated, instant, sums};

const GUIDE: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/src/guide/nemo_gym.md"
));

/// The part below a heading.
fn section(heading: &str) -> &'static str {
    let (_, rest) = GUIDE.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

/// The rows of the tables of a part, without the heads.
fn rows(part: &str) -> Vec<(&str, &str)> {
    let lines = part.lines().filter(|line| line.starts_with("| "));
    let cells = lines.map(|line| {
        let (left, right) = line.trim_matches('|').split_once(" | ").unwrap();
        (left.trim(), right.trim())
    });
    cells.skip(1).collect()
}

/// What stands in backquotes.
fn code(cell: &str) -> &str {
    cell.split('`')
        .nth(1)
        .unwrap_or_else(|| panic!("no code in {cell}"))
}

fn folder() -> Folder {
    let tasks = sums(3).into_iter().map(|task| task.for_agent("sim"));
    Folder::with_tasks(tasks)
}

fn sim() -> Simulated {
    Simulated::start(SimConfig {
        gym: "0.7".parse().unwrap(),
        ..instant(["sim"])
    })
}

/// Runs a line of a shell with the program in its path, and the address of the head server in its environment.
fn run(folder: &Folder, sim: &Simulated, line: &str) -> (bool, String) {
    let program = env!("CARGO_BIN_EXE_rollstream");
    let directory = std::path::Path::new(program).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    // Settings of whoever runs the tests are not the guide's.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROLLSTREAM_")) {
        shell.env_remove(name);
    }
    let ran = shell
        .args(["-c", line])
        .current_dir(folder.path("."))
        .env("PATH", format!("{}:{path}", directory.display()))
        .env("ROLLSTREAM_HEAD_SERVER", sim.sim().head_url())
        .output()
        .unwrap();
    let text = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn every_command_of_the_guide_works_and_leaves_its_files() {
    let (folder, sim) = (folder(), sim());
    let part = section("Commands");
    let mut commands: Vec<&str> = rows(part).into_iter().map(|(_, ours)| code(ours)).collect();
    assert!(commands.len() >= 10, "{commands:?}");
    let block = part.split("```sh\n").nth(1).unwrap();
    commands.extend(block.split("```").next().unwrap().lines());
    for command in commands {
        assert!(command.starts_with("rollstream "), "{command}");
        let (is_well, text) = run(&folder, &sim, command);
        // Answers of the simulation bring no account of their turns, which is what the check is about.
        assert!(is_well || command.contains("--health"), "{command}\n{text}");
    }
    let files = rows(section("Files"));
    assert!(files.len() >= 12, "{files:?}");
    for (file, _) in files {
        assert!(folder.path(code(file)).exists(), "{file}");
    }
}

#[test]
fn every_key_of_the_guide_is_what_it_says() {
    let (folder, sim) = (folder(), sim());
    folder.write("prompt.yaml", "user: '{responses_create_params}'\n");
    let keys = rows(section("Keys"));
    assert!(keys.len() >= 38, "{keys:?}");
    for (key, what) in keys {
        let key = code(key);
        // A prompt takes the place of what these rows bring.
        let rows = match key.starts_with("prompt_config") {
            true => {
                folder.write(
                    "bare.jsonl",
                    "{\"question\": \"What is 1 + 1?\", \"agent_ref\": {\"name\": \"sim\"}}\n",
                );
                folder.write("prompt.yaml", "user: '{question}'\n");
                "bare.jsonl"
            }
            false => "tasks.jsonl",
        };
        let line = format!(
            "rollstream plan +input_jsonl_fpath={rows} +output_jsonl_fpath=results/x.jsonl '+{key}'"
        );
        let (is_well, text) = run(&folder, &sim, &line);
        let name = key.split('=').next().unwrap();
        match what.split(':').next().unwrap() {
            "refused" => assert!(!is_well && text.contains(name), "{key}: {text}"),
            "happens anyway" => assert!(is_well && text.contains(name), "{key}: {text}"),
            _ => assert!(is_well && !text.contains("unknown"), "{key}: {text}"),
        }
        let flags = what.split('`').filter(|part| part.starts_with("--"));
        for flag in flags.map(|flag| flag.split(' ').next().unwrap()) {
            let help = folder.rollstream("collect --help").run().succeeded().stdout;
            assert!(help.contains(flag), "{flag}");
        }
    }
}

#[test]
fn the_guide_is_printed_as_it_stands() {
    let folder = Folder::new();
    let printed = folder.rollstream("help nemo-gym").run().succeeded().stdout;
    assert_eq!(printed, GUIDE);
    assert!(
        folder
            .rollstream("help collect")
            .run()
            .succeeded()
            .stdout
            .contains("--input")
    );
    folder.rollstream("help nothing-known").run().exited_with(2);
}
