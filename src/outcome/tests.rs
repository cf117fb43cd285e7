use std::time::{Duration, UNIX_EPOCH};

use arrow::array::Array;
use arrow::array::AsArray;
use arrow::datatypes::Int32Type;
use bytes::Bytes;

use super::batch::ADOPTED_BYTES;
use super::*;
use crate::call::RolloutKey;
use crate::retry::{Failure, FailureClass};
use crate::schema;

fn outcome(rollout_index: i64, verdict: Verdict) -> Outcome {
    let key = RolloutKey::new(7, rollout_index, 0);
    let dispatched_at = UNIX_EPOCH + Duration::from_secs(10);
    Outcome {
        http_status: Some(200),
        times: Times {
            server: Some(Duration::from_millis(250)),
            ..Times::default()
        },
        ..Outcome::new(key, "a", dispatched_at, verdict)
    }
}

fn ok(text: &str) -> Verdict {
    Verdict::Ok(Answer::parse(text.to_owned()).unwrap())
}

fn failed() -> Verdict {
    Verdict::Failed {
        failure: Failure::new(FailureClass::Infra, "HTTP 500"),
        terminal: false,
    }
}

#[test]
fn every_outcome_is_an_attempt_and_only_answers_are_rollouts() {
    let big = format!(
        r#"{{"reward": 0.5, "text": "{}"}}"#,
        "é".repeat(ADOPTED_BYTES)
    );
    let mut builder = OutcomeBatchBuilder::new();
    builder
        .append(outcome(0, ok(r#"{"reward": 1, "turns": 2}"#)))
        .unwrap();
    builder.append(outcome(1, failed())).unwrap();
    builder.append(outcome(2, ok(&big))).unwrap();
    let batch = builder.finish().unwrap();
    assert!(builder.is_empty());

    let attempts = attempts_of(&batch).unwrap();
    assert_eq!(attempts.schema(), schema::attempts());
    assert_eq!(attempts.num_rows(), 3);

    let rollouts = rollouts_of(&batch).unwrap();
    assert_eq!(rollouts.num_rows(), 2);
    let result = rollouts
        .column_by_name(schema::RESULT)
        .unwrap()
        .as_string_view();
    assert_eq!(result.value(1), big);
    let integers = rollouts.column_by_name(schema::INTEGER_METRICS).unwrap();
    assert!(integers.is_valid(0) && integers.is_null(1));
    let status = attempts
        .column_by_name(schema::HTTP_STATUS)
        .unwrap()
        .as_primitive::<Int32Type>();
    assert_eq!(status.value(1), 200);
}

#[test]
fn a_body_that_is_not_utf8_is_refused() {
    for len in [1, ADOPTED_BYTES] {
        let verdict = Verdict::Ok(Answer {
            body: Bytes::from(vec![0xff; len]),
            fields: AnswerFields::default(),
        });
        assert!(
            OutcomeBatchBuilder::new()
                .append(outcome(0, verdict))
                .is_err()
        );
    }
}
