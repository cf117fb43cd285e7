//! Who may read: whoever has the address, and no web page.

use super::raw_agent::folder;
use super::scene::{Viewer, request};
use crate::common::Folder;

fn run() -> Folder {
    let folder = folder(2);
    let collect = "collect -i tasks.jsonl --agent sim -o run -q";
    folder.rollstream(collect).run().succeeded();
    folder
}

#[test]
fn only_who_has_the_address_reads_and_nobody_writes() {
    let folder = run();
    let viewer = Viewer::start(&folder, "run");
    let page = viewer.at("1/tasks");
    let (origin, token) = viewer.url.rsplit_once('/').unwrap();
    let host = origin.strip_prefix("http://").unwrap();
    let port = host.rsplit(':').next().unwrap();
    let status =
        |method: &str, address: &str, headers: &str| request(method, address, headers).status;
    assert!(
        token.len() >= 32 && token.chars().all(|c| c.is_ascii_hexdigit()),
        "{token}"
    );

    assert_eq!(status("GET", &page, ""), 200);
    assert_eq!(status("HEAD", &page, ""), 200);
    assert_eq!(
        status("GET", &page, &format!("host: localhost:{port}\r\n")),
        200
    );
    assert_eq!(status("GET", &page, &format!("origin: {origin}\r\n")), 200);

    let other = token.replace(&token[..1], if token.starts_with('0') { "1" } else { "0" });
    for path in [
        "",
        "1/tasks",
        "assets/view.css",
        "events",
        &format!("{other}/1/tasks"),
        &format!("{}/", &token[1..]),
    ] {
        assert_eq!(
            status("GET", &format!("{origin}/{path}"), ""),
            403,
            "{path}"
        );
    }
    for headers in [
        "host: evil.example\r\n",
        &format!("host: evil.example:{port}\r\n"),
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
        "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\nsec-fetch-mode: cors\r\n",
    ] {
        assert_eq!(status("GET", &page, headers), 403, "{headers}");
        let answer = request("GET", &page, headers);
        assert!(
            !String::from_utf8_lossy(&answer.body).contains(token),
            "{headers}"
        );
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        assert_eq!(status(method, &page, ""), 405, "{method}");
    }
    for path in [
        "../run.json",
        "1/../../run.json",
        "%2e%2e/run.json",
        "1/tasks/..%2f..%2frun.json",
        "assets/../../Cargo.toml",
        "1/tasks/-1",
        "1/tasks/99999999999999999999",
    ] {
        let answer = request("GET", &viewer.at(path), "");
        let body = String::from_utf8_lossy(&answer.body);
        assert!(
            [403, 404].contains(&answer.status) && !body.contains("run_id"),
            "{path}: {body}"
        );
    }
    let head = request("GET", &page, "").head.to_lowercase();
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(head.contains(header), "{head}");
    }
    assert!(!head.contains("unsafe-inline"), "{head}");
}

#[test]
fn it_prints_one_address_and_ends_when_it_is_interrupted() {
    let folder = run();
    let before = folder.content();
    let token = "chosen-by_whoever-runs-it";
    let viewer = Viewer::of(folder.rollstream("view run --no-open --token").arg(token));
    let url = viewer.url.clone();
    assert!(
        url.starts_with("http://127.0.0.1:") && url.ends_with(token),
        "{url}"
    );
    assert_eq!(request("GET", &viewer.at("1/"), "").status, 200);
    let ended = viewer.interrupt().succeeded();
    assert_eq!(ended.stdout, format!("{url}/\n"));
    assert_eq!(folder.content(), before, "it wrote something");

    let short = folder.rollstream("view run --no-open --token short").run();
    short.exited_with(2).complaining(&["16 or more"]);
    folder
        .rollstream("view nowhere --no-open")
        .run()
        .exited_with(2)
        .complaining(&["nowhere"]);
}
