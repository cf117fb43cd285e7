//! A model endpoint and a file of questions, without a configuration: `--model-url`, `--check` and `--judge-model`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use rollstream::sim::SimConfig;
use serde_json::{Value, json};

use crate::common::{Folder, Program, Simulated, instant, sums};

/// A request for a chat completion.
#[derive(Debug, Clone)]
struct Asked {
    path: String,
    key: Option<String>,
    body: Value,
}

impl Asked {
    /// The text of the last message.
    fn question(&self) -> &str {
        let messages = self.body["messages"].as_array().unwrap();
        messages.last().unwrap()["content"].as_str().unwrap()
    }
}

/// A model endpoint that answers as it is told, until the test process ends.
struct Endpoint {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Endpoint {
    /// `answer` gives a status, and what the model says or the body of an error.
    fn start(answer: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::default();
        let (answer, log) = (Arc::new(answer), Arc::clone(&asked));
        spawn(move || {
            for stream in listener.incoming() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                // The program closes a connection whenever it likes.
                spawn(move || stream.and_then(|stream| serve(&stream, &*answer, &log)));
            }
        });
        Self { url, asked }
    }

    /// A model that says this.
    fn saying(answer: impl Fn(&Asked) -> String + Send + Sync + 'static) -> Self {
        Self::start(move |asked| (200, answer(asked)))
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn url_option(&self) -> String {
        format!("--model-url {}/v1 --model m", self.url)
    }
}

fn serve(
    stream: &TcpStream,
    answer: &dyn Fn(&Asked) -> (u16, String),
    log: &Mutex<Vec<Asked>>,
) -> io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        let (path, mut length, mut key) = (path.to_owned(), 0, None);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.split_once(':') else {
                break;
            };
            match name.to_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "authorization" => key = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = serde_json::from_slice(&body)?;
        let asked = Asked { path, key, body };
        log.lock().unwrap().push(asked.clone());
        let (status, said) = answer(&asked);
        let body = match status {
            200 => json!({
                "choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 3},
            }),
            _ => json!({ "error": { "message": said } }),
        };
        let body = body.to_string();
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
        writer.write_all(answer.as_bytes())?;
    }
}

/// A folder with `questions.jsonl`.
fn questions(rows: impl IntoIterator<Item = Value>) -> Folder {
    let folder = Folder::new();
    let lines: Vec<String> = rows.into_iter().map(|row| format!("{row}\n")).collect();
    folder.write("questions.jsonl", &lines.concat());
    folder
}

fn sum(n: u64) -> Value {
    json!({"question": format!("What is {n} + {}?", n + 1), "answer": 2 * n + 1})
}

fn collect(folder: &Folder, options: &str) -> Program {
    folder
        .rollstream("collect -i questions.jsonl -o run --retry-backoff 1ms")
        .args(options)
}

fn rewards(folder: &Folder) -> Vec<String> {
    folder.sql("run", "select reward from rollouts order by task_index")
}

#[test]
fn questions_and_answers_are_all_that_is_needed() {
    let servers = Simulated::start(SimConfig {
        turns: Some(1),
        ..instant(["unused"])
    });
    let url = servers.sim().model_url().trim_end_matches("/v1").to_owned();
    for (count, url) in [
        (1, format!("{url}/v1")),
        (50, url.clone()),
        (50, format!("{url}/v1/")),
    ] {
        let folder = questions((1..=count).map(sum));
        let options = format!("--model-url {url} --model sim --check numeric --num-repeats 2");
        let line = format!("plan -i questions.jsonl -o run {options}");
        let planned = folder.rollstream(&line).run().succeeded();
        assert!(planned.stdout.contains(" sim "), "{}", planned.stdout);
        assert!(!folder.has("run"));
        let ended = collect(&folder, &options).run().succeeded();
        let rollouts = 2 * count;
        let done = format!("{rollouts} of {rollouts} rollouts done, 0 failed, 0 pending");
        assert!(ended.stdout.contains(&done), "{}", ended.stdout);
        let calls = "select kind, outcome, count(*) from calls group by all";
        assert_eq!(folder.sql("run", calls), [format!("model,ok,{rollouts}")]);
        let told = folder.landed("run");
        let has_answer = |row: &Value| {
            let log = row["result"]["message_log"].as_array().unwrap();
            let text = log[1]["content"].as_str().unwrap();
            let found = row["result"]["extracted_answer"].as_str().unwrap();
            log[1]["role"] == "assistant" && text.contains(found)
        };
        assert!(told.iter().all(has_answer));
        let scored: f64 = told.iter().map(|row| row["reward"].as_f64().unwrap()).sum();
        assert!(
            count == 1 || (0.0 < scored && scored < rollouts as f64),
            "{scored}"
        );

        let asked = servers.sim().requests("sim_model").unwrap().len();
        collect(&folder, &options)
            .args("--resume")
            .run()
            .succeeded();
        assert_eq!(servers.sim().requests("sim_model").unwrap().len(), asked);
    }
}

#[test]
fn the_agent_has_the_name_of_its_model() {
    let model = Endpoint::saying(|_| "It is 3.".to_owned());
    let folder = questions((1..=3).map(sum));
    folder.write("m.toml", &format!(
        "[agents.model]\nmodel_url = '{}'\nmodel = 'lab/m-1.5:b'\n[agents.model.environments._default]\nkind = 'numeric'\n",
        model.url
    ));
    let line = |more: &str| folder.rollstream("collect -i questions.jsonl").args(more);
    let agents =
        |run: &str| folder.sql(run, "select agent_name, count(*) from rollouts group by 1");
    let flags = format!(
        "--model-url {} --model lab/m-1.5:b --check numeric",
        model.url
    );
    let more = "--agent-concurrency lab/m-1.5:b=1";
    line(&flags).args(more).args("-o flags").run().succeeded();
    line("--config m.toml -o file").run().succeeded();
    line(&flags)
        .args("--agent model -o named")
        .run()
        .succeeded();
    assert_eq!(agents("flags"), ["lab/m-1.5:b,3"]);
    assert_eq!(agents("file"), ["lab/m-1.5:b,3"]);
    assert_eq!(agents("named"), ["model,3"]);
    let ended = folder.rollstream("compare flags file#lab/m-1.5:b").run();
    assert!(ended.succeeded().stdout.contains("lab/m-1.5:b: 3 of 3"));

    // Earlier versions called the agent `model`: such runs are resumed under that name.
    assert_eq!(model.asked().len(), 9);
    for run in ["flags", "named"] {
        let resume = line(&flags).args("--limit 3 --resume -o");
        let limit = resume.args(run).run().exited_with(2);
        limit.complaining(&["'limit' was null and is 3"]);
        line(&flags).args("--resume -o").args(run).run().succeeded();
        let extended = line(&flags).args("--num-repeats 2 --resume --extend -o");
        extended.args(run).run().succeeded();
        folder.rollstream("resume").args(run).run().succeeded();
    }
    assert_eq!(model.asked().len(), 15);
    assert_eq!(agents("named"), ["model,6"]);
    let other = line(&flags.replace("m-1.5", "m-2")).args("--resume -o named");
    other
        .run()
        .exited_with(2)
        .complaining(&["cannot resume", "'agents' was"]);
}

#[test]
fn every_check_reads_its_fields_from_the_row() {
    let model = Endpoint::saying(|asked| asked.question().to_owned());
    for (check, right, wrong) in [
        (
            "exact-match",
            json!({"question": "Paris", "answer": "Paris"}),
            json!({"prompt": "Rome", "target": ["Paris", "Lyon"]}),
        ),
        (
            "numeric",
            json!({"problem": "It is 1,000.", "answer": "so #### 1000"}),
            json!({"input": "It is 5.", "expected_answer": 6, "answer": 5}),
        ),
        (
            "multiple-choice",
            json!({"question": "The answer is (B).", "answer": "B"}),
            json!({"question": "The answer is (B).", "ground_truth": "C"}),
        ),
        (
            "regular-expression",
            json!({"messages": [{"role": "user", "content": "abba"}], "pattern": "b+"}),
            json!({"question": "aca", "pattern": "b+"}),
        ),
        (
            "json-schema",
            json!({"question": "{\"a\": 1}", "schema": {"required": ["a"]}}),
            json!({"question": "{}", "schema": "{\"required\": [\"a\"]}", "task_name": "own"}),
        ),
    ] {
        let folder = questions([right, wrong]);
        let options = format!("{} --check {check}", model.url_option());
        collect(&folder, &options).run().succeeded();
        assert_eq!(rewards(&folder), ["1.0", "0.0"], "{check}");
    }
    let folder = questions([json!({"question": "It is 5.", "gold": 5.4})]);
    let options = "--check numeric --check-option expected_field=gold --check-option tolerance=0.5";
    let program = collect(&folder, &model.url_option()).args(options);
    program.run().succeeded();
    assert_eq!(rewards(&folder), ["1.0"]);
}

#[test]
fn choices_and_templates_become_part_of_the_question() {
    let model = Endpoint::saying(|_| "B".to_owned());
    let folder = questions([json!({"question": "Which?", "choices": ["x", "y"], "answer": 1})]);
    let options = format!(
        "{} --check multiple-choice --check-option first_number=0",
        model.url_option()
    );
    collect(&folder, &options).run().succeeded();
    assert_eq!(rewards(&folder), ["1.0"]);
    folder.write(
        "prompt.yaml",
        "system: Be brief.\nuser: '{question} Of {choices}'\n",
    );
    let again = collect(&folder, &options).args("--prompt-config prompt.yaml --overwrite");
    again.run().succeeded();
    let asked = model.asked();
    assert_eq!(asked[0].question(), "Which?\n\nA) x\nB) y");
    let texts = asked[1].body["messages"].as_array().unwrap();
    assert_eq!(texts[0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(asked[1].question(), "Which? Of ['x', 'y']");
}

#[test]
fn a_judge_scores_by_a_rubric_and_its_calls_are_on_record() {
    let model = Endpoint::saying(|_| "five".to_owned());
    let judge = Endpoint::saying(|asked| {
        let is_right = asked.question().contains("# Reference answer\n\n5\n");
        format!(
            "SCORE: 1 would be too much.\nSCORE: {}",
            if is_right { 0.75 } else { 0.0 }
        )
    });
    let folder = questions([
        json!({"question": "2 + 3?", "answer": 5}),
        json!({"question": "2 + 4?", "answer": 6}),
        json!({"question": "Why?"}),
    ]);
    folder.write("rubric.txt", "Spelling counts.\n");
    let options = format!(
        "{} --judge-url {} --judge-model j --judge-rubric rubric.txt --judge-token-env JUDGE_KEY",
        model.url_option(),
        judge.url
    );
    let program = || collect(&folder, &options).env("JUDGE_KEY", "sk-judge");
    let program = || program().env("ROLLSTREAM_BEARER_TOKEN", "sk-model");
    program().run().succeeded();
    assert_eq!(rewards(&folder), ["0.75", "0.0", "0.0"]);
    let calls = "select kind, name, outcome, count(*), sum(output_tokens) from calls group by all order by kind";
    assert_eq!(
        folder.sql("run", calls),
        ["judge,j,ok,3,9", "model,m,ok,3,9"]
    );
    for asked in judge.asked() {
        assert_eq!(asked.path, "/v1/chat/completions");
        assert_eq!(asked.key.as_deref(), Some("Bearer sk-judge"));
        assert_eq!(asked.body["messages"][0]["content"], "Spelling counts.\n");
        assert_eq!(asked.body["temperature"], 0);
        assert!(asked.question().contains("# Answer to grade\n\nfive\n"));
        assert_eq!(
            asked.question().contains("Reference"),
            !asked.question().contains("Why?")
        );
    }
    assert!(
        model
            .asked()
            .iter()
            .all(|asked| asked.key.as_deref() == Some("Bearer sk-model"))
    );
    let log = &folder.landed("run")[0]["result"]["message_log"];
    assert_eq!(
        log[2]["content"],
        "SCORE: 1 would be too much.\nSCORE: 0.75"
    );
    let record = folder.read("run/run.json");
    assert!(
        !record.contains("sk-") && record.contains("Spelling counts."),
        "{record}"
    );

    program().args("--resume").run().succeeded();
    folder.write("rubric.txt", "Style counts.\n");
    let parts = ["cannot resume run", "'agents' was", "Style counts."];
    program()
        .args("--resume")
        .run()
        .exited_with(2)
        .complaining(&parts);
    assert_eq!((model.asked().len(), judge.asked().len()), (3, 3));
}

#[test]
fn the_model_judges_itself_unless_another_endpoint_is_named() {
    let model = Endpoint::saying(|asked| {
        let is_judge = asked.body["model"] == "j";
        if is_judge { "No idea." } else { "5" }.to_owned()
    });
    let folder = questions([json!({"question": "2 + 3?", "answer": 5})]);
    let options = format!("{} --judge-model j", model.url_option());
    let program = collect(&folder, &options).env("ROLLSTREAM_BEARER_TOKEN", "sk-model");
    let ended = program.run().exited_with(3);
    for part in ["the judge gave no score from 0 to 1", "No idea."] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    assert!(
        model
            .asked()
            .iter()
            .all(|asked| asked.key.as_deref() == Some("Bearer sk-model"))
    );
    let failed = "select kind, outcome from calls where call = 1 and attempt = 0";
    assert_eq!(folder.sql("run", failed), ["judge,ok"]);
}

#[test]
fn rows_that_cannot_be_asked_or_scored_are_named_before_anything_is_sent() {
    let model = Endpoint::saying(|_| "5".to_owned());
    let missing = json!({"question": "2 + 3?"});
    for (check, rows, parts) in [
        (
            "numeric",
            vec![
                sum(1),
                missing.clone(),
                json!({"question": "2 + 3?", "answer": "five"}),
            ],
            vec![
                "questions.jsonl:2: agent 'm': neither the row nor its extra_env_info has `expected_answer`, `answer`",
                "--check-option expected_field=FIELD",
                "questions.jsonl:3: agent 'm': the field `answer` has no number: correct the data",
                "Nothing was sent.",
            ],
        ),
        (
            "exact-match",
            vec![missing.clone(); 50],
            vec!["questions.jsonl:5:", "and 45 more rows"],
        ),
        (
            "multiple-choice",
            vec![json!({"question": "Which?", "answer": "the first"})],
            vec!["questions.jsonl:1:", "`answer` is not one of the letters"],
        ),
        (
            "regular-expression",
            vec![missing.clone()],
            vec!["`pattern`", "--check-option pattern_field=FIELD"],
        ),
        (
            "json-schema",
            vec![json!({"question": "?", "schema": {"type": 5}})],
            vec!["questions.jsonl:1:", "`schema` is no usable JSON schema"],
        ),
        (
            "numeric",
            vec![sum(1), json!({"text": "2 + 3?", "answer": 5})],
            vec![
                "Invalid task in 'questions.jsonl' at line 2: it has no question",
                "`prompt`",
                "--prompt-config",
            ],
        ),
        (
            "numeric",
            vec![json!({"messages": [{"role": "user"}], "answer": 5})],
            vec!["questions.jsonl:1:", "is not a message"],
        ),
        (
            "numbers",
            vec![sum(1)],
            vec!["no check or environment of kind 'numbers'; did you mean 'numeric'?"],
        ),
    ] {
        let folder = questions(rows);
        let options = format!("{} --check {check}", model.url_option());
        collect(&folder, &options)
            .run()
            .exited_with(2)
            .complaining(&parts);
        let plan = format!("plan -i questions.jsonl -o run {options}");
        folder
            .rollstream(&plan)
            .run()
            .exited_with(2)
            .complaining(&parts);
        assert!(!folder.has("run"));
    }
    assert!(model.asked().is_empty());
}

#[test]
fn options_that_make_no_agent_say_what_is_missing() {
    let folder = questions([sum(1)]);
    let url = "--model-url http://127.0.0.1:1 --model m";
    for (options, parts) in [
        (
            "--model-url http://127.0.0.1:1 --check numeric".to_owned(),
            vec![
                "the name of the model (--model NAME) is missing",
                "/v1/models",
            ],
        ),
        (
            url.to_owned(),
            vec![
                "nothing scores its answers",
                "--check KIND",
                "--judge-model",
            ],
        ),
        (
            "--check numeric".to_owned(),
            vec!["nothing says where its model is", "--model-url URL"],
        ),
        (
            format!("{url} --check numeric --judge-model j"),
            vec!["(--check)", "(--judge-model)", "exclude each other"],
        ),
        (
            format!("{url} --check numeric --agent math"),
            vec!["`agent` (--agent)", "(--check)", "an agent of their own"],
        ),
        (
            format!("{url} --judge-model j --judge-rubric nowhere.txt"),
            vec!["--judge-rubric", "'nowhere.txt'", "No such file"],
        ),
        (
            format!("{url} --check numeric --check-option tolerance=-1"),
            vec!["`tolerance`", "is -1"],
        ),
        (
            format!("{url} --check numeric --bearer-token-env NO_KEY"),
            vec!["NO_KEY", "is not set"],
        ),
    ] {
        let ended = collect(&folder, &options).run();
        ended.exited_with(2).complaining(&parts);
    }
    assert!(!folder.has("run"));
}

#[test]
fn the_options_are_part_of_the_run_and_the_address_is_not() {
    let [model, other] = [0; 2].map(|_| Endpoint::saying(|_| "It is 3.".to_owned()));
    let folder = questions((1..=3).map(sum));
    let options = |url: &str, more: &str| format!("--model-url {url} --model m {more}");
    let begun = options(&model.url, "--check numeric --limit 3");
    collect(&folder, &begun).run().succeeded();
    for changed in ["--check exact-match", "--check numeric --model n"] {
        let options =
            options(&model.url, changed).replace("--model m --check numeric", "--check numeric");
        let ended = collect(&folder, &options).args("--limit 3 --resume").run();
        ended
            .exited_with(2)
            .complaining(&["cannot resume run", "'agents' was"]);
    }
    let moved = options(&other.url, "--check numeric --limit 3 --resume");
    collect(&folder, &moved).run().succeeded();
    assert_eq!((model.asked().len(), other.asked().len()), (3, 0));
}

#[test]
fn a_key_is_only_sent_where_it_belongs() {
    let model = Endpoint::saying(|_| "It is 3.".to_owned());
    let folder = questions([sum(1)]);
    let options = format!("{} --check numeric", model.url_option());
    let program = || collect(&folder, &options).env("OPENAI_API_KEY", "sk-openai");
    program().run().succeeded();
    let named = program().args("--overwrite --bearer-token-env OPENAI_API_KEY");
    named.run().succeeded();
    let keys: Vec<_> = model.asked().into_iter().map(|asked| asked.key).collect();
    assert_eq!(keys, [None, Some("Bearer sk-openai".to_owned())]);
    assert!(!folder.read("run/run.json").contains("sk-openai"));
}

#[test]
fn an_endpoint_that_refuses_is_quoted_with_what_to_do() {
    for (status, remedy) in [
        (401, "--bearer-token-env"),
        (404, "check the address and the name of the model"),
    ] {
        let model = Endpoint::start(move |_| (status, "we do not serve you".to_owned()));
        let folder = questions([sum(1)]);
        let options = format!("{} --check numeric", model.url_option());
        let ended = collect(&folder, &options).run();
        assert_ne!(ended.code, Some(0), "{ended:#?}");
        let errors = folder.sql("run", "select error from attempts where attempt = 0");
        let shown = format!("HTTP {status}");
        for part in [&*shown, "we do not serve you", remedy] {
            assert!(errors[0].contains(part), "{errors:?}");
        }
    }
}

#[test]
fn rollouts_wait_for_a_key_that_is_refused() {
    let model = Endpoint::start(|asked| {
        let is_right = asked.key.as_deref() == Some("Bearer sk-right");
        let (right, wrong) = ((200, "It is 3."), (401, "no such key"));
        let (status, said) = if is_right { right } else { wrong };
        (status, said.to_owned())
    });
    let folder = questions((1..=5).map(sum));
    let options = format!("{} --check numeric --retry-backoff 60s", model.url_option());
    let ended = collect(&folder, &options).run().exited_with(3);
    let counted = "0 of 5 rollouts done, 0 failed, 5 pending";
    assert!(ended.stdout.contains(counted), "{ended:#?}");
    for part in ["HTTP 401", "no such key", "--bearer-token-env", "resume"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:#?}");
    }
    let refused = model.asked().len();
    assert!(refused <= 5, "{refused}");
    let resume = folder.rollstream("resume run");
    resume
        .env("ROLLSTREAM_BEARER_TOKEN", "sk-right")
        .run()
        .succeeded();
    assert_eq!(model.asked().len(), refused + 5);
}

#[test]
fn a_sole_agent_is_the_agent() {
    let servers = Simulated::start(instant(["a"]));
    let folder = Folder::with_tasks(sums(3));
    let url = format!("--agent-url a={}", servers.sim().agent_url("a").unwrap());
    let line = "collect -i tasks.jsonl -o run";
    folder.rollstream(line).args(&url).run().succeeded();
    assert_eq!(servers.requests(), 3);
    for options in ["--resume", "--resume --agent a"] {
        folder
            .rollstream(line)
            .args(&url)
            .args(options)
            .run()
            .succeeded();
    }
    let line = "collect -i tasks.jsonl -o other --agent-url b=http://127.0.0.1:1";
    let ended = folder.rollstream(line).args(&url).run();
    ended
        .exited_with(2)
        .complaining(&["No agent specified", "--agent"]);
    assert_eq!(servers.requests(), 3);
}
