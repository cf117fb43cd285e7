//! Input that is wrong: one message that says what and where, before anything is sent or written.

use crate::common::{Ended, Folder, Simulated, instant, sums, task};

/// Collects into `run` with agents that are there, to no avail: they are not asked, and nothing is left behind.
#[track_caller]
fn refuses(folder: &Folder, options: &str, parts: &[&str]) -> Ended {
    let sim = Simulated::start(instant(["sim", "other"]));
    let before = folder.content();
    let ended = folder
        .rollstream("collect")
        .args(&sim.options())
        .args(options)
        .run();
    let ended = ended.exited_with(2).complaining(parts);
    assert_eq!(sim.requests(), 0, "{ended:#?}");
    assert_eq!(folder.content(), before, "{ended:#?}");
    ended
}

fn good() -> Folder {
    Folder::with_tasks(sums(3))
}

#[test]
fn a_missing_file() {
    refuses(
        &good(),
        "-a sim -o run -i nowhere.jsonl",
        &["Input file not found: 'nowhere.jsonl'", "--input"],
    );
    refuses(
        &good(),
        "-a sim -o run -i tasks.jsonl -i *.json",
        &["Input file not found: '*.json'"],
    );
}

#[test]
fn an_input_without_tasks() {
    let folder = good();
    folder.write("empty.jsonl", "");
    let parts = ["the input has no tasks", "empty.jsonl", "--input"];
    refuses(&folder, "-a sim -o run -i empty.jsonl", &parts);
    refuses(
        &folder,
        "-a sim -o run -i tasks.jsonl --limit -1",
        &["the input has no tasks", "--limit"],
    );
}

#[test]
fn a_directory_in_place_of_a_file() {
    let folder = good();
    std::fs::create_dir(folder.path("tasks")).unwrap();
    refuses(
        &folder,
        "-a sim -o run -i tasks",
        &["directory, not a file: 'tasks'", "'tasks/*.jsonl'"],
    );
}

#[test]
fn bad_json() {
    let folder = good();
    folder.write(
        "bad.jsonl",
        &format!("{}\n{{\"responses_create_params\": }}\n", task("Why?")),
    );
    let parts = [
        "Malformed JSON in 'bad.jsonl' at line 2: ",
        "column 29",
        "one JSON object",
    ];
    refuses(&folder, "-a sim -o run -i tasks.jsonl -i bad.jsonl", &parts);
}

#[test]
fn a_blank_line_in_the_middle() {
    let folder = good();
    folder.write(
        "gap.jsonl",
        &format!("{}\n\n{}\n", task("Why?"), task("How?")),
    );
    refuses(
        &folder,
        "-a sim -o run -i gap.jsonl",
        &["Malformed JSON in 'gap.jsonl' at line 2: ", "blank line"],
    );
}

#[test]
fn rows_without_an_agent() {
    let folder = good();
    folder.tasks("mixed.jsonl", [task("Why?").for_agent("sim"), task("How?")]);
    let parts = [
        "No agent specified for rows [1]",
        "at mixed.jsonl:2",
        "--agent",
    ];
    let ended = refuses(&folder, "-o run -i mixed.jsonl", &parts);
    assert!(!ended.stderr.contains("mixed.jsonl:1"), "{ended:#?}");
}

#[test]
fn an_agent_without_a_number_of_repeats() {
    let folder = good();
    folder.tasks(
        "mixed.jsonl",
        [task("Why?").for_agent("other"), task("How?")],
    );
    let options = "-a sim -o run -i mixed.jsonl --num-repeats sim=2";
    let parts = [
        "no entry for agents ['other']",
        "Listed agents: ['sim']",
        "at mixed.jsonl:1",
        "--num-repeats",
    ];
    refuses(&folder, options, &parts);
}

#[test]
fn a_bad_prompt_template() {
    let folder = Folder::new();
    folder.write("rows.jsonl", "{\"question\": \"Why?\"}\n");
    folder.write("open.yaml", "user: 'Say: {question'\n");
    folder.write("other.yaml", "user: 'Say: {answer}'\n");
    folder.write("nouser.yaml", "system: Be brief.\n");
    let options = |prompt: &str| format!("-a sim -o run -i rows.jsonl --prompt-config {prompt}");
    refuses(
        &folder,
        &options("open.yaml"),
        &["prompt config: user: expected '}'"],
    );
    refuses(
        &folder,
        &options("other.yaml"),
        &[
            "answer",
            "at rows.jsonl:1",
            "Name fields that every row has",
        ],
    );
    refuses(
        &folder,
        &options("nouser.yaml"),
        &["prompt config: user: Field required"],
    );
    refuses(
        &folder,
        &options("none.yaml"),
        &["Prompt config not found or unreadable: 'none.yaml'"],
    );
}

#[test]
fn a_prompt_template_where_rows_have_an_input() {
    let folder = good();
    folder.write("prompt.yaml", "user: Be brief.\n");
    let parts = [
        "mutually exclusive",
        "Violating rows: [0, 1, 2]",
        "at tasks.jsonl:3",
    ];
    refuses(
        &folder,
        "-a sim -o run -i tasks.jsonl --prompt-config prompt.yaml",
        &parts,
    );
}

#[test]
fn a_bad_override() {
    let with = |option: &str, parts: &[&str]| {
        refuses(
            &good(),
            &format!("-a sim -o run -i tasks.jsonl {option}"),
            parts,
        );
    };
    with(
        "--set responses_create_params.seed=${nothing}",
        &["Interpolation key 'nothing' not found"],
    );
    with(
        "--set temperature=1",
        &["--set", "responses_create_params.KEY=VALUE"],
    );
    with(
        "+concurency=4",
        &[
            "unknown setting `concurency`",
            "did you mean `concurrency`?",
        ],
    );
    with(
        "+policy_model_name=x",
        &["`+policy_model_name` has no meaning here", "NeMo Gym"],
    );
    with("--num-repeats sim=0", &["--num-repeats", ">= 1"]);
}

#[test]
fn an_output_that_cannot_be() {
    let folder = good();
    folder.write("file", "mine");
    refuses(
        &folder,
        "-a sim -i tasks.jsonl -o file",
        &["cannot use the output", "file': not a directory"],
    );
    refuses(
        &folder,
        "-a sim -i tasks.jsonl -o file/below",
        &["cannot use the output", "file/below", "ot a directory"],
    );
    assert_eq!(folder.read("file"), "mine");
    refuses(
        &folder,
        "-a sim -i tasks.jsonl -o ftp://host/run",
        &["ftp://host/run", "s3://"],
    );
    refuses(
        &folder,
        "-a sim -i tasks.jsonl",
        &["the output is missing", "--output"],
    );
}

#[test]
fn an_agent_that_the_head_server_does_not_know() {
    let folder = good();
    folder.tasks(
        "others.jsonl",
        [
            task("Why?").for_agent("nobody"),
            task("How?").for_agent("sim"),
        ],
    );
    let parts = [
        "knows no agent 'nobody'",
        "It knows: 'other', 'sim'",
        "agent_ref",
    ];
    refuses(&folder, "-o run -i others.jsonl", &parts);
}

#[test]
fn an_agent_whose_address_nobody_knows() {
    let folder = good();
    let before = folder.content();
    let ended = folder
        .rollstream("collect -a nobody -o run -i tasks.jsonl")
        .run()
        .exited_with(2);
    ended.complaining(&[
        "no address is known for agent 'nobody'",
        "--head-server http://127.0.0.1:11000",
        "--agent-url",
    ]);
    // Of which version NeMo Gym is, its head server says.
    let agents = "collect +agent_map={_default:a} +input_jsonl_fpath=tasks.jsonl -o run";
    let ended = folder.rollstream(agents).run().exited_with(2);
    ended.complaining(&["--head-server http://127.0.0.1:11000", "--gym 0.7"]);
    assert_eq!(folder.content(), before);
}

#[test]
fn a_head_server_that_is_not_there() {
    let folder = good();
    folder.tasks("sources.jsonl", [task("How?").with("task_source", "math")]);
    let before = folder.content();
    // Rows without an agent may be right by the rules that this server follows.
    for input in ["-a sim -i tasks.jsonl", "-i sources.jsonl"] {
        let options = format!("collect -o run {input} --head-server http://127.0.0.1:1");
        let ended = folder.rollstream(&options).run().exited_with(1);
        ended.complaining(&[
            "head server http://127.0.0.1:1",
            "Connection refused",
            "Is NeMo Gym running there?",
        ]);
        assert_eq!(folder.content(), before);
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_its_file_and_true_line() {
    let folder = Folder::new();
    let good = || task("Why?").for_agent("sim");
    folder.write(
        "one.jsonl",
        &format!("{}\n{{oops\n{}\n{}\n[1]\n", good(), task("Who?"), good()),
    );
    folder.write(
        "two.jsonl",
        &format!("{}\n{}\nnot json\n", task("What?"), good()),
    );
    let ended = refuses(
        &folder,
        "-o run -i one.jsonl -i two.jsonl",
        &[
            "Malformed JSON in 'one.jsonl' at line 2: ",
            "Malformed JSON in 'two.jsonl' at line 3: ",
            "Invalid task in 'one.jsonl' at line 5: ",
            "No agent specified for rows [2, 5]",
            "at one.jsonl:3",
            "at two.jsonl:1",
        ],
    );
    for good in [
        "one.jsonl:1",
        "one.jsonl:4",
        "two.jsonl:2",
        "at line 1:",
        "at line 4:",
    ] {
        assert!(!ended.stderr.contains(good), "{good}: {ended:#?}");
    }
}

#[test]
fn packed_files_count_their_lines_as_unpacked() {
    let folder = Folder::new();
    let text = format!("{}\n{}\nnot json\n", task("Why?"), task("How?"));
    std::fs::write(
        folder.path("t.jsonl.zst"),
        zstd::encode_all(text.as_bytes(), 1).unwrap(),
    )
    .unwrap();
    refuses(
        &folder,
        "-a sim -o run -i t.jsonl.zst",
        &["Malformed JSON in 't.jsonl.zst' at line 3: "],
    );
}
