//! The `result` column holds an answer's bytes as they came.

use std::collections::BTreeMap;

use bytes::Bytes;
use rollstream::config::{AgentSettings, Settings};

use super::given_answers::GivenAnswers;
use super::landed;
use super::workspace::{Workspace, sweep, tasks};

/// Sends a task per body and gives what was landed, by task.
async fn landed_of(bodies: &[Bytes]) -> Vec<String> {
    let place = Workspace::new();
    let agent = GivenAnswers::start(bodies.to_vec()).await;
    let own = AgentSettings {
        url: Some(agent.url().parse().unwrap()),
        ..AgentSettings::default()
    };
    let settings = Settings {
        input: vec![place.write("tasks.jsonl", tasks(bodies.len(), &["given"]))],
        agents: BTreeMap::from([("given".to_owned(), own)]),
        ..place.bare_settings(1)
    };
    let report = sweep(settings).await;
    let failures: Vec<_> = landed::attempts(&place.run())
        .into_iter()
        .filter_map(|row| row.error)
        .collect();
    assert_eq!(report.rollouts.done, bodies.len() as u64, "{failures:?}");
    let mut rollouts = landed::rollouts(&place.run());
    rollouts.sort_by_key(|row| row.task);
    rollouts.into_iter().map(|row| row.result).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_write_json_is_kept_as_it_was_written() {
    let deep = format!(
        r#"{{"reward": 1, "deep": {}{}}}"#,
        "[".repeat(1000),
        "]".repeat(1000)
    );
    let bodies = [
        r#"{"reward": 1, "n": 123456789012345678901234567890, "m": -98765432109876543210}"#,
        r#"{"reward": 0.10, "a": 1.0, "b": 1E5, "c": 1e+05, "d": -0.0, "e": 0.1000000000000000055511151231257827}"#,
        r#"{"reward": 1, "too large for a float": 1e400, "too small": 1e-400}"#,
        r#"{"zeta": 1, "reward": 1, "alpha": 2, "Alpha": 3, "": 4}"#,
        r#"{"reward": 0, "twice": 1, "reward": 1, "twice": 2, "twice": "three"}"#,
        "\r\n\t {  \"reward\"\t:\n1 ,\"a\" :[ 1,2 , 3\r\n],\"b\":{ } , \"c\" : [ ]\n}\n\n ",
        r#"{"reward":1,"text":"é 日本語 😀 Ω \u00e9 \u65E5 \ud83d\ude00 \/ \\ \" \b\f\n\r\t \u0000 \u2028"}"#,
        "{\"reward\":1,\"raw\":\"\u{2028}\u{2029}\u{feff}\u{200b}\u{10ffff}\u{7f}\"}",
        r#"{"reward":1,"half a pair":"\ud83d","other half":"\ude00","nested":{"\udead":"\udbff"}}"#,
        r#"{"r\u0065ward": 1, "turns": true}"#,
        r#"{"reward": true, "response": {"usage": {"input_tokens": 99999999999999999999, "x": null}}}"#,
        r#"{"reward":1}"#,
        &deep,
    ]
    .map(|text| Bytes::copy_from_slice(text.as_bytes()));
    for (sent, landed) in bodies.iter().zip(landed_of(&bodies).await) {
        assert_eq!(landed.as_bytes(), sent);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_40_mb_is_kept_beside_small_ones() {
    let text = |unit: &str, bytes: usize| {
        format!(
            r#"{{"reward":1,"text":"{}"}}"#,
            unit.repeat(bytes / unit.len())
        )
    };
    let bodies = [
        text("small", 10),
        text("é\\u00e9 ", 40_000_000),
        text("middle ", 100_000),
        text("x", 3),
    ];
    let bodies = bodies.map(Bytes::from);
    assert!(bodies[1].len() > 39_000_000);
    for (sent, landed) in bodies.iter().zip(landed_of(&bodies).await) {
        assert!(
            landed.as_bytes() == sent,
            "{} bytes became {}",
            sent.len(),
            landed.len()
        );
    }
}
