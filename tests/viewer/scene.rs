//! Runs to look at, the server of their pages, and what the other commands say of them.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::common::{Ended, Folder, Program, Running, sums};

/// What a [raw agent](super::raw_agent) is asked to answer.
pub const COLLECT: &str =
    "collect -i tasks.jsonl --num-repeats 4 -o run --retry-backoff 1ms --disable-aggregation";

/// Tasks of each run: more than a page of the list has.
pub const TASKS: usize = 60;

pub const ROLLOUTS: usize = TASKS * 4;

/// A folder with the runs `base` and `other`, whose agent is better.
pub fn two_runs() -> Folder {
    let folder = Folder::with_tasks(sums(TASKS as u64));
    two_runs_of(&folder, 4);
    folder
}

/// The same of the tasks in a folder.
pub fn two_runs_of(folder: &Folder, repeats: usize) {
    for options in [
        "-o base",
        "-o other +sim.difficulty=0.1 +sim.seed=7 --set responses_create_params.temperature=0.1",
    ] {
        folder
            .rollstream("collect -i tasks.jsonl --agent sim -q +sim.latency=lognormal:20ms,0.5")
            .args(&format!("--num-repeats {repeats} {options}"))
            .run()
            .succeeded();
    }
}

/// The program `view` at work.
pub struct Viewer {
    program: Running,
    /// The address of the first page, without the slash at its end.
    pub url: String,
}

impl Viewer {
    pub fn start(folder: &Folder, runs: &str) -> Self {
        Self::of(folder.rollstream("view --no-open").args(runs))
    }

    pub fn of(program: Program) -> Self {
        let program = program.start();
        let line = program.until_it_prints("http://");
        let url = line.trim_end().trim_end_matches('/').to_owned();
        Self { program, url }
    }

    /// The address of a page.
    pub fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }

    /// Protocol, host and port of all pages.
    pub fn origin(&self) -> &str {
        self.url.rsplit_once('/').unwrap().0
    }

    /// Ends it as Ctrl-C does.
    pub fn interrupt(self) -> Ended {
        self.program.signal("INT");
        self.program.end()
    }
}

/// The answer to a request, which is written as it stands here.
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// Asks for an address with headers of one's own, as a program without a browser would. In HTTP/1.0 the answer ends with
/// the connection.
pub fn request(method: &str, address: &str, headers: &str) -> Response {
    let (host, path) = address
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let host_header = if headers.to_ascii_lowercase().contains("host:") {
        String::new()
    } else {
        format!("host: {host}\r\n")
    };
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "{method} /{path} HTTP/1.0\r\n{host_header}{headers}\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer
        .windows(4)
        .position(|bytes| bytes == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    Response {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head,
        body: answer[end + 4..].to_vec(),
    }
}

/// The body of a page or file, which is there.
pub fn get(address: &str) -> Vec<u8> {
    let response = request("GET", address, "");
    assert_eq!(response.status, 200, "{address}: {}", response.head);
    response.body
}

/// A figure as tables show it.
pub fn shown(figure: &Value) -> String {
    let figure = figure.as_f64().unwrap();
    if figure.fract() == 0.0 {
        format!("{figure}")
    } else {
        format!("{figure:.4}")
    }
}

/// The metrics of the agent of a run, as NeMo Gym's file has them.
pub fn agent_metrics(folder: &Folder, run: &str) -> Value {
    folder.json(&format!("{run}/aggregate_metrics.json"))[0]["agent_metrics"].take()
}

/// What `compare --json` says of the rewards of two runs.
pub fn compared(folder: &Folder) -> Value {
    let ended = folder
        .rollstream("compare base other --metric reward --json")
        .run()
        .succeeded();
    let mut report: Value = serde_json::from_str(&ended.stdout).unwrap();
    report["comparisons"][0].take()
}
