//! What agents and users write is text and nothing else.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::browser::Browser;
use super::raw_agent::{RawAgent, ok};
use super::scene::{Viewer, get, request};
use crate::common::{Ended, Folder, task};

/// Sets `window.hacked` wherever it is taken for more than a text, and has escapes of terminals and a change of direction.
const HOSTILE: &str = "<script>window.hacked=1</script><img src=x onerror=\"hacked=1\"><svg onload=hacked=1>\
    <a href=\"javascript:hacked=1\">here</a>\"'></textarea></title>\u{1b}[31mred\u{1b}[0m \u{202e}exe.txt\u{202c}";

/// How a page shows the end of it.
const SHOWN_END: &str = r"\u{1b}[31mred\u{1b}[0m \u{202e}exe.txt\u{202c}";

const AGENT: &str = "<script>Object.assign(window,{hacked:1})</script>\u{202e}";

const METRIC: &str = "score<script>hacked=1</script>\u{202e}\u{1b}[31m";

const SVG: &str = "data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImhhY2tlZD0xIi8+";

const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// Bytes of the large answer.
const LARGE: usize = 40_000_000;

/// Levels of the deep JSON.
const DEEP: usize = 10_000;

fn message(text: &str) -> Value {
    json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
}

/// What the agent answers to a task; `None` is an error.
fn answer(task: u64) -> Option<Vec<Value>> {
    Some(match task {
        0 => vec![message(&format!(
            "{HOSTILE} {SVG} {PNG} ![](http://evil.example/i.png)"
        ))],
        1 => vec![message(&format!("{}The end.", "long ".repeat(LARGE / 5)))],
        2 => {
            let deep = "[".repeat(DEEP) + &"]".repeat(DEEP);
            let call = json!({"type": "function_call", "name": HOSTILE, "arguments": deep, "call_id": HOSTILE});
            let output = json!({"type": "function_call_output", "output": format!("{{\"a\": {deep}}}"), "call_id": HOSTILE});
            vec![call, output, json!({"type": HOSTILE, "x": 1})]
        }
        3 => {
            let code = message(&format!("```<b>\n{HOSTILE}\n``` {{\"a\": ["));
            let image = |url: &str| json!({"type": "input_image", "image_url": url});
            let images = [image(PNG), image(SVG), image("http://evil.example/i.png")];
            vec![
                code,
                json!({"type": "message", "role": "user", "content": images}),
            ]
        }
        _ => return None,
    })
}

/// A folder with a run of five tasks, once each, of which the last fails, and what the sweep said.
fn collected() -> (Folder, Ended) {
    let mut line = task(HOSTILE).for_agent(AGENT).with(HOSTILE, HOSTILE);
    let tasks = (0..5).map(|number| {
        line = line
            .clone()
            .with("number", number)
            .with("expected_answer", HOSTILE);
        line.clone()
    });
    let folder = Folder::with_tasks(tasks);
    let agent = RawAgent::start(|asked, stream| {
        // It has no metrics of its own.
        let number = asked.body["number"]
            .as_u64()
            .ok_or(io::ErrorKind::Unsupported)?;
        match answer(number) {
            Some(output) => {
                let scores = json!({"reward": number % 2, METRIC: number, "note": HOSTILE});
                let mut body = json!({"response": {"output": output}});
                body.as_object_mut()
                    .unwrap()
                    .extend(scores.as_object().unwrap().clone());
                ok(stream, "", body.to_string().as_bytes())
            }
            None => {
                let length = HOSTILE.len();
                write!(
                    stream,
                    "HTTP/1.1 500 Error\r\ncontent-length: {length}\r\n\r\n{HOSTILE}"
                )
            }
        }
    });
    let ended = folder
        .rollstream(
            "collect -i tasks.jsonl -o run --retry-backoff 1ms --max-attempts 2 --agent-url",
        )
        .arg(format!("{AGENT}={}", agent.url()))
        .run()
        .exited_with(3);
    (folder, ended)
}

/// Nothing of the page was taken for more than a text, and what a terminal would obey is written out.
#[track_caller]
fn is_harmless(browser: &mut Browser, page: &str) {
    assert_eq!(browser.ask("window.hacked ?? 0"), 0, "{page}");
    let active = "main script, main iframe, main [onload], main [onerror], main a[href^='javascript:'], \
                  img:not([src^='data:image/png'])";
    let found = browser.ask(&format!("document.querySelectorAll({active:?}).length"));
    assert_eq!(found, 0, "{page}");
    let text = browser.text();
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{page}: {text}");
}

/// What a terminal would obey is written out, in tables and beside them.
#[track_caller]
fn obeys_nothing(ended: &Ended) {
    let said = [&*ended.stdout, &*ended.stderr].concat();
    assert!(said.contains(SHOWN_END), "{said}");
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said}");
}

#[test]
fn nothing_that_agents_and_users_write_runs() {
    let (folder, ended) = collected();
    obeys_nothing(&ended);
    for command in [
        "status run",
        "show run --failed",
        "sql run -c select(error)from(attempts)",
    ] {
        obeys_nothing(&folder.rollstream(command).run().succeeded());
    }

    let viewer = Viewer::start(&folder, "run");
    let mut browser = Browser::start();
    let given = |name: &str| {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair(name, HOSTILE).finish()
    };
    let tasks = (0..5).flat_map(|task| [format!("1/tasks/{task}"), format!("1/tasks/{task}/0")]);
    let others = [
        String::new(),
        "1/tasks".into(),
        "search?q=hacked".into(),
        format!("search?{}", given("q")),
        format!("1/tasks?{}", given("where")),
        format!("1/sql?{}", given("q")),
        "1/sql?q=select+*+from+rollouts+join+attempts+using(task_index)".into(),
    ];
    for page in tasks.chain(others) {
        browser.open(viewer.at(&page));
        is_harmless(&mut browser, &page);
        let width = browser.ask("document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(width, true, "{page} is wide");
    }
    browser.is_clean(viewer.origin());

    browser.open(viewer.at("1/tasks/0/0"));
    for shown in [".fields", ".item.user", ".item.assistant"] {
        let text = browser.texts(shown).concat();
        assert!(
            text.contains(&HOSTILE[..40]) && text.contains(SHOWN_END),
            "{shown}: {text}"
        );
    }
    assert!(browser.texts(".assistant").concat().contains(SVG));
    assert_eq!(
        browser.ask("document.querySelector('.assistant img').naturalWidth"),
        1
    );
    browser.open(viewer.at("1/tasks/3/0"));
    let images = "document.querySelectorAll('main img').length";
    assert_eq!(browser.ask(images), 1, "the PNG, and no other");
    browser.open(viewer.at("1/tasks/4/0"));
    assert!(
        browser
            .texts("#attempts tbody")
            .concat()
            .contains(SHOWN_END)
    );
    for raw in ["1/tasks/0/0/raw", "1/tasks/0/0/item/1"] {
        browser.open(viewer.at(raw));
        assert_eq!(browser.ask("window.hacked ?? 0"), 0, "{raw}");
        let head = request("GET", &viewer.at(raw), "").head.to_lowercase();
        assert!(
            head.contains("sandbox") && !head.contains("text/html"),
            "{head}"
        );
    }
    browser.is_clean(viewer.origin());
}

#[test]
fn a_large_answer_shows_its_head_and_all_of_it_when_asked() {
    let (folder, _) = collected();
    let viewer = Viewer::start(&folder, "run");
    let mut browser = Browser::start();
    browser.open(viewer.at("1/tasks/1/0"));
    let text = browser.texts(".assistant").concat();
    assert!(text.contains("long long long") && !text.contains("The end."));
    assert!(text.len() < 100_000, "{}", text.len());
    assert_eq!(browser.texts(".assistant .more a"), ["show all"]);
    let all = browser.ask("document.querySelector('.assistant .more a').href");
    let all = get(all.as_str().unwrap());
    assert_eq!(all.len(), LARGE + "The end.".len());
    assert!(all.ends_with(b"long The end."));

    browser.open(viewer.at("search?q=The+end."));
    assert_eq!(browser.texts(".hit a"), ["run task 1, rollout 0"]);
    browser.open(viewer.at("1/tasks/2/0"));
    assert!(browser.texts(".call").concat().contains(&"[".repeat(100)));

    folder
        .rollstream("report run -o report.html")
        .run()
        .succeeded();
    let file = folder.path("report.html");
    assert!(std::fs::metadata(&file).unwrap().len() < 3_000_000);
    browser.open(format_args!("file://{}", file.display()));
    is_harmless(&mut browser, "the report");
}
