//! Answers whose head is large.

use super::ledger::Ledger;
use super::raw_agent::{ANSWER, RawAgent, folder, ok};
use crate::common::Folder;

fn with_headers(count: usize, bytes: usize) -> RawAgent {
    let value = "x".repeat(bytes);
    let headers: Vec<String> = (0..count).map(|n| format!("x-{n}: {value}\r\n")).collect();
    let headers = headers.concat();
    RawAgent::start(move |_, stream| ok(stream, &headers, ANSWER.as_bytes()))
}

#[test]
fn a_head_of_250_headers_and_60_kb_is_taken() {
    for (count, bytes) in [(250, 3), (60, 1000), (1, 60_000)] {
        let agent = with_headers(count, bytes);
        let folder = folder(5);
        agent.collect(&folder, "").run().succeeded();
        let ledger = Ledger::read(&folder.path("run"));
        assert_eq!(ledger.ends(|_| true), [("ok", Some(200), false, 20)]);
    }
}

#[track_caller]
fn is_refused(folder: &Folder, bound: &str) {
    let ledger = Ledger::read(&folder.path("run"));
    let expected = [("data", None, false, 20), ("data", None, true, 20)];
    assert_eq!(ledger.ends(|_| true), expected);
    for attempt in &ledger.attempts {
        let why = attempt.error.as_deref().unwrap();
        assert!(why.contains(bound), "{why}");
    }
}

#[test]
fn a_larger_head_is_an_error_that_names_the_bound() {
    for (count, bytes) in [(300, 3), (200, 1000), (1, 200_000)] {
        let agent = with_headers(count, bytes);
        let folder = folder(5);
        agent.collect(&folder, "").run().exited_with(3);
        is_refused(&folder, "more than 256 headers or 64 KiB");
    }
}

#[test]
fn through_a_proxy_the_bound_is_another() {
    let proxy = with_headers(120, 3);
    let folder = folder(5);
    let collect = folder.rollstream(super::scene::COLLECT);
    let collect = collect.args("--agent raw --agent-url raw=http://agent.test:8000");
    collect.env("http_proxy", &proxy.url()).run().exited_with(3);
    is_refused(&folder, "more than 100 headers or 400 KiB");
}
