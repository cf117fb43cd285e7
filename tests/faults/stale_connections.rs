//! Servers that close connections which the client takes for open.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::ledger::Ledger;
use super::raw_agent::{ANSWER, RawAgent, folder, ok};
use super::scene::COLLECT;
use crate::common::Folder;

/// Closes each connection a little after its answer, whatever came by then.
fn closing() -> RawAgent {
    RawAgent::start(|_, stream| {
        ok(stream, "", ANSWER.as_bytes())?;
        // The fault itself: nothing waits for it.
        sleep(Duration::from_millis(5));
        Err(io::ErrorKind::ConnectionAborted.into())
    })
}

/// Every attempt gave its rollout.
#[track_caller]
fn all_are_done_at_once(folder: &Folder, rollouts: usize) {
    let ledger = Ledger::read(&folder.path("run"));
    ledger.is_consistent();
    assert_eq!(ledger.ends(|_| true), [("ok", Some(200), false, rollouts)]);
    assert_eq!(ledger.rollouts.len(), rollouts);
}

#[test]
fn no_request_is_lost_to_a_connection_that_was_closed_while_it_was_idle() {
    let agent = closing();
    let folder = folder(500);
    agent.collect(&folder, "--concurrency 64").run().succeeded();
    all_are_done_at_once(&folder, 2000);
}

#[test]
fn none_is_lost_to_one_through_a_proxy_either() {
    // Never reads a second request, and closes when it came.
    let proxy = RawAgent::start(|_, stream| {
        ok(stream, "", ANSWER.as_bytes())?;
        stream.peek(&mut [0])?;
        Err(io::ErrorKind::ConnectionAborted.into())
    });
    let folder = folder(10);
    let collect = folder.rollstream(COLLECT).args("--concurrency 1");
    let collect = collect.args("--agent raw --agent-url raw=http://agent.test:8000");
    collect.env("http_proxy", &proxy.url()).run().succeeded();
    let ledger = Ledger::read(&folder.path("run"));
    ledger.is_consistent();
    assert_eq!(ledger.rollouts.len(), 40);
    // The client may open a connection and then take one that was idle after all. Nobody can tell then that the request
    // was not sent over the new one, so it is not sent again. It happens to few, where nearly all would be lost.
    let lost = ledger.ends(|end| end.outcome != "ok");
    assert!(lost.iter().all(|(.., attempts)| *attempts < 10), "{lost:?}");
    let asked = proxy.asked();
    assert_eq!(asked.len(), 40);
    let is_proxied = |target: &str| target == "http://agent.test:8000/run";
    assert!(asked.iter().all(|asked| is_proxied(&asked.target)));
}

#[test]
fn what_a_new_connection_took_is_not_sent_again() {
    // With one answer to a connection, none is ever idle.
    let agent = RawAgent::start(|asked, stream| {
        if asked.body.get("_ng_attempt_index").is_some() {
            ok(stream, "connection: close\r\n", ANSWER.as_bytes())?;
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    });
    let folder = folder(5);
    agent.collect(&folder, "").run().succeeded();
    let ledger = Ledger::read(&folder.path("run"));
    let expected = [("infra", None, false, 20), ("ok", Some(200), false, 20)];
    assert_eq!(ledger.ends(|_| true), expected);
    assert_eq!(agent.asked().len(), 40);
}
