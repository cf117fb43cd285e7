//! Answers that send a request elsewhere.

use std::io::Write;

use super::ledger::Ledger;
use super::raw_agent::{ANSWER, RawAgent, folder, ok};

/// Redirects `/run` with a status; answers everywhere else.
fn redirecting(status: u16, to: &str) -> RawAgent {
    let head = format!("HTTP/1.1 {status} \r\nlocation: {to}\r\ncontent-length: 5\r\n\r\nthere");
    RawAgent::start(move |asked, stream| {
        if asked.target.ends_with("/run") {
            return stream.write_all(head.as_bytes());
        }
        ok(stream, "", ANSWER.as_bytes())
    })
}

#[test]
fn a_redirect_to_the_same_server_is_followed_with_the_body() {
    for (status, to) in [(307, "/run/"), (308, "v2/run?x=1")] {
        let agent = redirecting(status, to);
        let folder = folder(5);
        agent.collect(&folder, "").run().succeeded();
        let ledger = Ledger::read(&folder.path("run"));
        assert_eq!(ledger.ends(|_| true), [("ok", Some(200), false, 20)]);
        let (first, second): (Vec<_>, Vec<_>) = agent
            .asked()
            .into_iter()
            .partition(|asked| asked.target == "/run");
        let keys = |asked: &[super::raw_agent::Asked]| {
            let mut bodies: Vec<String> = asked.iter().map(|one| one.body.to_string()).collect();
            bodies.sort();
            bodies
        };
        assert_eq!(keys(&first), keys(&second));
        assert!(second.iter().all(|asked| asked.target.ends_with(to)));
    }
}

#[test]
fn through_a_proxy_it_is_followed_as_well() {
    let proxy = redirecting(307, "http://agent.test:8000/run/");
    let folder = folder(5);
    let collect = folder.rollstream(super::scene::COLLECT);
    let collect = collect.args("--agent raw --agent-url raw=http://agent.test:8000");
    collect.env("http_proxy", &proxy.url()).run().succeeded();
    assert_eq!(proxy.asked().len(), 40);
}

#[test]
fn other_redirects_are_errors_that_say_where_they_lead() {
    let other = redirecting(307, "/run");
    let elsewhere = format!("{}/run?token=hidden#hidden", other.url());
    let shown = format!("{}/run", other.url());
    for (status, to, why) in [
        (307, &*elsewhere, "which is another server"),
        (302, &elsewhere, "only 307 and 308"),
        (308, "/run", "after 5 redirects"),
    ] {
        let agent = redirecting(status, to);
        let folder = folder(5);
        agent.collect(&folder, "").run().exited_with(3);
        let ledger = Ledger::read(&folder.path("run"));
        let status = Some(i32::from(status));
        let expected = [("data", status, false, 20), ("data", status, true, 20)];
        assert_eq!(ledger.ends(|_| true), expected);
        for attempt in &ledger.attempts {
            let said = attempt.error.as_deref().unwrap();
            assert!(said.contains(why) && !said.contains("hidden"), "{said}");
            assert!(to == "/run" || said.contains(&shown), "{said}");
        }
    }
    assert!(other.asked().is_empty());
}
