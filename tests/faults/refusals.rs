//! Refusals that say when to come back: nothing is sent earlier.

use std::collections::BTreeMap;
use std::time::Duration;

use rollstream::sim::{RequestRecord, SimConfig};

use super::ledger::Ledger;
use super::scene::{Scene, all_but, counted, quick, rates};

/// No request was sent earlier than a refusal allows: none of the same rollout, and none of the agent's once the
/// collector knew of the refusal.
#[track_caller]
pub fn nobody_came_too_early(requests: &[RequestRecord], ledger: &Ledger) {
    let row_of: BTreeMap<(i64, i64, i64), usize> = ledger
        .attempts
        .iter()
        .enumerate()
        .map(|(place, row)| (row.key(), place))
        .collect();
    let row = |request: &RequestRecord| {
        let [task, rollout, attempt] =
            [request.task_index, request.rollout_index, request.attempt].map(|index| index as i64);
        &ledger.attempts[row_of[&(task, rollout, attempt)]]
    };
    // When the collector knew that it had to wait, and until when.
    let mut waits: Vec<(i64, u64)> = requests
        .iter()
        .filter_map(|request| Some((row(request).known_at?, request.not_before_us?)))
        .collect();
    waits.sort_unstable();
    let mut sent: Vec<(i64, &RequestRecord)> = requests
        .iter()
        .map(|request| (row(request).dispatched_at, request))
        .collect();
    sent.sort_by_key(|(at, _)| *at);
    let mut waits = waits.into_iter().peekable();
    let mut not_before = 0;
    for (dispatched_at, request) in sent {
        while let Some((_, until)) = waits.next_if(|(known_at, _)| *known_at < dispatched_at) {
            not_before = not_before.max(until);
        }
        assert!(
            request.arrived_at_us >= not_before,
            "{} us too early: {request:?}",
            not_before - request.arrived_at_us
        );
    }
    let mut of_rollout: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for request in requests {
        let key = (request.task_index, request.rollout_index);
        let not_before = of_rollout.entry(key).or_default();
        assert!(request.arrived_at_us >= *not_before, "{request:?}");
        *not_before = (*not_before).max(request.not_before_us.unwrap_or(0));
    }
}

#[test]
fn first_attempts_that_are_refused_are_made_again_when_it_is_allowed() {
    for (fault, status, header) in [
        ("rate_limited_429", 429, "retry-after"),
        ("rate_limited_date", 429, "retry-after"),
        ("rate_limited_reset", 429, "x-ratelimit-reset-requests"),
        ("error_503", 503, "retry-after"),
    ] {
        let scene = Scene::new(SimConfig {
            faults: rates(&[(fault, 1.0)]),
            fault_attempts: Some(1),
            retry_after: Duration::from_millis(300),
            ..quick()
        });
        let ended = scene.collect("--concurrency 200").run().succeeded();
        counted(&ended, 0, 0);
        let ledger = scene.is_done_but_for(&[]);
        let refused = ledger.ends(|row| row.http_status == Some(status));
        assert_eq!(
            refused,
            [("infra", Some(status), false, all_but(0))],
            "{fault}"
        );
        let refused = ledger.attempts.iter().filter(|row| row.outcome != "ok");
        for row in refused {
            let headers = row.response_headers.as_deref().unwrap();
            assert!(headers.contains(header), "{headers}");
        }
        nobody_came_too_early(&scene.agents.requests("sim"), &ledger);
    }
}

#[test]
fn a_rollout_that_is_always_refused_is_given_up_in_the_end() {
    let scene = Scene::new(SimConfig {
        fault_at: vec!["7=rate_limited_reset".parse().unwrap()],
        retry_after: Duration::from_millis(1),
        ..quick()
    });
    let options = "--rate-limit-budget 6 --infra-budget 1";
    let ended = scene.collect(options).run().exited_with(3);
    counted(&ended, 4, 0);
    let ledger = scene.is_done_but_for(&[7]);
    let expected = [
        ("infra", Some(429), false, 20),
        ("infra", Some(429), true, 4),
        ("ok", Some(200), false, all_but(4)),
    ];
    assert_eq!(ledger.ends(|_| true), expected);
}
