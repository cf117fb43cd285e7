//! Secrets go from the environment to the agent, and nowhere else.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::spawn;

use crate::common::{Folder, sums};

const TOKEN: &str = "sk-Very-Secret-1234567890";
const KEY: &str = "key-Also-Secret-0987654321";

/// An agent that answers one request, and gives the head of what it was sent.
fn agent() -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answered = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        stream.read_exact(&mut vec![0; length.unwrap()]).unwrap();
        let body = r#"{"reward": 1.0}"#;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        head
    });
    (url, answered)
}

/// No file below the folder holds a secret.
fn nothing_was_kept(folder: &Folder) {
    let mut files = 0;
    for name in folder.content() {
        let path = folder.path(&name);
        if path.is_file() {
            files += 1;
            let bytes = std::fs::read(&path).unwrap();
            for secret in [TOKEN, KEY] {
                assert!(
                    !bytes
                        .windows(secret.len())
                        .any(|window| window == secret.as_bytes()),
                    "{name}"
                );
            }
        }
    }
    assert!(files > 5);
}

#[test]
fn tokens_and_headers_reach_the_agent_and_no_file() {
    let (url, answered) = agent();
    let folder = Folder::with_tasks(sums(1));
    let options = "collect -i tasks.jsonl --agent a -o run --bearer-token-env TOKEN --header-env X-Api-Key=KEY";
    let command = folder
        .rollstream(options)
        .args("--agent-url")
        .arg(format!("a={url}"));
    let ended = command
        .env("TOKEN", TOKEN)
        .env("KEY", KEY)
        .run()
        .succeeded();
    let head = answered.join().unwrap().to_lowercase();
    assert!(
        head.contains(&format!("authorization: bearer {TOKEN}\r\n").to_lowercase()),
        "{head}"
    );
    assert!(
        head.contains(&format!("x-api-key: {KEY}\r\n").to_lowercase()),
        "{head}"
    );
    assert!(
        !ended.stdout.contains(TOKEN) && !ended.stderr.contains(TOKEN),
        "{ended:?}"
    );
    assert_eq!(
        folder.json("run/run.json")["settings"]["bearer_token_env"],
        "TOKEN"
    );
    nothing_was_kept(&folder);
}

#[test]
fn the_usual_variable_needs_no_option() {
    let (url, answered) = agent();
    let folder = Folder::with_tasks(sums(1));
    let command = folder
        .rollstream("collect -i tasks.jsonl --agent a -o run --agent-url")
        .arg(format!("a={url}"));
    command
        .env("ROLLSTREAM_BEARER_TOKEN", TOKEN)
        .run()
        .succeeded();
    assert!(
        answered
            .join()
            .unwrap()
            .contains(&format!("Bearer {TOKEN}\r\n"))
    );
    nothing_was_kept(&folder);
}

#[test]
fn config_shows_the_names_of_variables_and_not_what_they_hold() {
    let folder = Folder::new();
    for json in ["", "--json"] {
        let command = folder
            .rollstream("config --bearer-token-env TOKEN --header-env X-Api-Key=KEY")
            .args(json);
        let command = command
            .env("TOKEN", TOKEN)
            .env("KEY", KEY)
            .env("ROLLSTREAM_BEARER_TOKEN", TOKEN);
        let printed = command.run().succeeded().stdout;
        assert!(
            printed.contains("\"TOKEN\"") && printed.contains("\"KEY\""),
            "{printed}"
        );
        assert!(
            !printed.contains(TOKEN) && !printed.contains(KEY),
            "{printed}"
        );
    }
}

#[test]
fn a_secret_that_is_missing_or_in_the_wrong_place_is_refused_unrepeated() {
    let folder = Folder::with_tasks(sums(1));
    let collect = "collect -i tasks.jsonl --agent a -o run --agent-url a=http://127.0.0.1:1";
    let ended = folder
        .rollstream(collect)
        .args("--bearer-token-env TOKEN")
        .run()
        .exited_with(2);
    ended.complaining(&["environment variable TOKEN", "is not set"]);
    let ended = folder
        .rollstream(collect)
        .args("--bearer-token-env")
        .arg(TOKEN)
        .run()
        .exited_with(2);
    assert!(
        !ended
            .complaining(&["bearer_token_env"])
            .stderr
            .contains(TOKEN)
    );
    assert!(!folder.has("run"));
}
