//! Secrets of the environment are in no file, no line of output and no list of processes, whatever goes wrong.

use std::fs;

use rollstream::sim::{AgentChange, SimConfig};

use super::ledger::Ledger;
use super::load::raised;
use super::raw_agent::{RawAgent, folder, ok};
use super::scene::{COLLECT, Scene, rates};
use crate::common::{Ended, Folder, Program};
use crate::s3_server::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};

const TOKEN: &str = "canary-token-8d1f0a7c";
const KEY: &str = "canary-key-51b7e93e";

const SECRETS: [&str; 3] = [TOKEN, KEY, SECRET_KEY];

/// What is not allowed to hold a secret, by name.
#[track_caller]
fn holds_none(name: &str, bytes: &[u8]) {
    for secret in SECRETS {
        let mut windows = bytes.windows(secret.len());
        assert!(
            !windows.any(|window| window == secret.as_bytes()),
            "{name} holds {secret}"
        );
    }
}

#[track_caller]
fn says_none(ended: &Ended) {
    holds_none("stdout", ended.stdout.as_bytes());
    holds_none("stderr", ended.stderr.as_bytes());
}

#[track_caller]
fn keeps_none(folder: &Folder) {
    let mut files = 0;
    for name in folder.content() {
        let path = folder.path(&name);
        if path.is_file() {
            files += 1;
            holds_none(&name, name.as_bytes());
            holds_none(&name, &fs::read(&path).unwrap());
        }
    }
    assert!(files > 0);
}

fn with_secrets(program: Program) -> Program {
    program
        .args("--bearer-token-env TOKEN --header-env X-Api-Key=KEY")
        .env("TOKEN", TOKEN)
        .env("KEY", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SESSION_TOKEN", TOKEN)
}

fn faulty() -> Scene {
    let faults = [
        ("error_500", 0.05),
        ("bad_request_400", 0.05),
        ("reset", 0.05),
        ("truncated_body", 0.05),
        ("not_json", 0.05),
        ("failure_class", 0.05),
    ];
    let mut scene = Scene::new(SimConfig::default());
    scene.config.faults = rates(&faults);
    let change = AgentChange {
        faults: Some(scene.config.faults.clone()),
        ..AgentChange::default()
    };
    scene.agents.change("sim", change);
    scene
}

#[test]
fn nothing_that_a_run_with_faults_writes_or_says_holds_a_secret() {
    let scene = faulty();
    says_none(
        &with_secrets(scene.folder.rollstream("config"))
            .run()
            .succeeded(),
    );
    let plan = COLLECT.replacen("collect", "plan", 1);
    let plan = scene.folder.rollstream(&plan).args("--agent sim");
    says_none(
        &with_secrets(plan.args(&scene.agents.options()))
            .run()
            .succeeded(),
    );

    let running = with_secrets(scene.collect("--concurrency 4 --json")).start();
    scene
        .agents
        .until("it runs", |agents| agents.num_requests() >= 60);
    let line = fs::read(format!("/proc/{}/cmdline", running.pid())).unwrap();
    holds_none("the command line", &line);
    assert!(!line.is_empty());
    keeps_none(&scene.folder);
    running.signal("KILL");
    says_none(&running.end());

    // While it is down, errors of another kind are said.
    scene.agents.set_down("sim", true);
    let patience = "--resume --agent-patience 1s";
    says_none(&with_secrets(scene.collect(patience)).run().exited_with(3));
    scene.agents.set_down("sim", false);
    let ended = with_secrets(scene.collect("--resume")).run();
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    says_none(&ended);
    says_none(&with_secrets(scene.collect("")).run().exited_with(2));
    says_none(
        &scene
            .folder
            .rollstream("status run --json")
            .run()
            .succeeded(),
    );
    keeps_none(&scene.folder);
}

#[test]
fn what_an_agent_says_of_a_failure_is_short_and_without_secrets() {
    let long = "x".repeat(1_000_000);
    let spaces = " ".repeat(4790);
    for (answer, outcome) in [
        (
            format!(r#"{{"_ng_failure_class":"{TOKEN} {long}"}}"#),
            "agent_flagged",
        ),
        // A secret at the place where a quote is cut.
        (
            format!(r#"{{"_ng_failure_class":"{spaces}{TOKEN}{long}"}}"#),
            "agent_flagged",
        ),
        (
            format!(r#"{{"_ng_failure_class":{{"{TOKEN}":"{long}"}}}}"#),
            "agent_flagged",
        ),
        (format!(r#""{TOKEN} {long}""#), "data"),
        (format!(r#"{{"reward":"{TOKEN} {long}"}}"#), "data"),
    ] {
        let agent = RawAgent::start(move |_, stream| ok(stream, "", answer.as_bytes()));
        let folder = folder(1);
        let collect = agent.collect(&folder, "--bearer-token-env TOKEN");
        let ended = collect.env("TOKEN", TOKEN).run().exited_with(3);
        says_none(&ended);
        let ledger = Ledger::read(&folder.path("run"));
        assert!(!ledger.attempts.is_empty());
        for attempt in &ledger.attempts {
            assert_eq!(attempt.outcome, outcome);
            let why = attempt.error.as_deref().unwrap();
            assert!(why.len() < 1500, "{} bytes", why.len());
            holds_none("error", why.as_bytes());
            assert!(!why.contains("canary"), "{why}");
            assert!(why.contains("****"), "{why}");
        }
    }
}

#[test]
fn nothing_of_a_run_on_an_object_store_holds_its_key() {
    let scene = faulty();
    let server = S3Server::start();
    let collect = COLLECT.replace("-o run", &format!("-o s3://{BUCKET}/run --state-dir state"));
    let to_store = |options: &str| {
        let program = scene.folder.rollstream(&collect).args("--agent sim");
        let program = program.args(&scene.agents.options()).args(&raised(options));
        program
            .env("TOKEN", TOKEN)
            .env("KEY", KEY)
            .env("AWS_ENDPOINT_URL", &format!("http://{}", server.address()))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    };
    let secrets = "--bearer-token-env TOKEN --header-env X-Api-Key=KEY";
    let wrong = to_store(secrets).env("AWS_SECRET_ACCESS_KEY", KEY).run();
    assert!(!matches!(wrong.code, Some(0 | 3)), "{wrong:#?}");
    says_none(&wrong);
    let right = to_store(secrets).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    let ended = right.run();
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    says_none(&ended);
    let objects = server.objects();
    assert!(objects.keys().any(|name| name.contains("rollouts/")));
    for (name, content) in objects {
        holds_none(&name, &content);
    }
    keeps_none(&scene.folder);
}
