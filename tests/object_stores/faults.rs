//! Accidents between a sweep and its S3 server: no row is lost, none is there twice, no part is ever seen torn, and no
//! upload is left open.

use std::time::Duration;

use super::place::Place;
use super::reader;
use crate::common::{Ended, Simulated, instant, sums};
use crate::store_proxy::Accident::{
    self, AnswerLost, ExpiredToken, InternalError, Reset, SlowDown, Stall,
};
use crate::store_proxy::Fault;
use rollstream::sim::{Latency, SimConfig};

const TASKS: u64 = 12;
const REPEATS: i64 = 2;

const CONCURRENCY: u64 = 4;
const COLLECT: &str = "--num-repeats 2 --concurrency 4 --disable-aggregation";

/// Answers that make one part of two pieces of an upload.
fn agents() -> Simulated {
    Simulated::start(SimConfig {
        body_size: 1_200_000,
        ..instant(["sim"])
    })
}

fn s3(faults: impl IntoIterator<Item = Fault>) -> Place {
    Place::s3_with(faults).with_tasks(sums(TASKS))
}

fn collect(place: &Place, sim: &Simulated, options: &str) -> Ended {
    let program = place.collect(COLLECT);
    program.args(&sim.options()).args(options).run()
}

/// The run is all that was asked for, as if nothing had happened, and so it was at every moment.
#[track_caller]
fn is_whole(place: &Place, sim: &Simulated) {
    rows_are_whole(place, sim);
    assert_eq!(place.server().open_uploads(), [""; 0]);
}

/// The same, but for uploads that nobody can know of.
#[track_caller]
fn rows_are_whole(place: &Place, sim: &Simulated) {
    let all = reader::all(TASKS.try_into().unwrap(), REPEATS);
    let objects = place.objects();
    assert_eq!(reader::keys(&objects, "rollouts"), all);
    assert_eq!(reader::keys(&objects, "attempts"), all);
    let answers = reader::answers(&objects);
    assert!(answers.values().all(|answer| answer.len() >= 1_200_000));
    assert_eq!(sim.requests(), all.len() as u64, "some were asked again");
    assert_eq!(place.record()["state"], "finished");
    reader::was_whole_at_every_moment(&place.server().history());
    assert!(
        place.server().pieces() >= 2,
        "nothing was uploaded in pieces"
    );
}

/// What a sweep asks of its store: a small object, a larger one, and each step of an upload in pieces.
fn everywhere(accident: Accident) -> Vec<Fault> {
    vec![
        accident.to("PUT", "run.json", ""),
        accident.to("PUT", "/tasks/", ""),
        accident.to("PUT", "/attempts/", ""),
        accident.to("POST", "/rollouts/", "uploads"),
        accident.to("PUT", "/rollouts/", "partNumber=1&").times(2),
        accident.to("PUT", "/rollouts/", "partNumber=2&"),
        accident.to("POST", "/rollouts/", "uploadId"),
    ]
}

/// A sweep that sees these accidents ends as if there had been none.
#[track_caller]
fn survives(faults: Vec<Fault>, accidents: usize) {
    let (place, sim) = (s3(faults), agents());
    let ended = collect(&place, &sim, "").succeeded();
    assert!(ended.stdout.contains("24 of 24 rollouts done"), "{ended:?}");
    assert_eq!(place.accidents(), accidents);
    is_whole(&place, &sim);
}

#[test]
fn a_store_that_asks_to_slow_down_is_asked_again() {
    survives(everywhere(SlowDown), 8);
}

#[test]
fn errors_after_the_whole_body_was_taken_are_tried_again() {
    survives(everywhere(InternalError), 8);
}

#[test]
fn a_connection_that_is_reset_in_a_request_is_made_again() {
    survives(everywhere(Reset), 8);
}

#[test]
fn what_succeeded_without_an_answer_counts_once() {
    let mut faults = everywhere(AnswerLost);
    faults.remove(3);
    survives(faults, 7);
}

// Nobody was told the name of the first upload, so nobody can abort it. It never gets a piece, which is what is paid for.
#[test]
fn an_upload_that_was_begun_without_an_answer_is_begun_again() {
    let (place, sim) = (
        s3([AnswerLost.to("POST", "/rollouts/", "uploads")]),
        agents(),
    );
    collect(&place, &sim, "").succeeded();
    assert_eq!(place.accidents(), 1);
    rows_are_whole(&place, &sim);
    assert_eq!(place.server().pieces_left(), 0);
}

/// The sweep fails while its part is under way, says all of `parts`, and goes on when the road is clear.
#[track_caller]
fn fails_and_goes_on(faults: Vec<Fault>, parts: &[&str]) {
    let (place, sim) = (s3(faults), agents());
    let ended = collect(&place, &sim, "-q").exited_with(1);
    ended.complaining(&[parts, &["cannot write s3://sweeps/a/run/rollouts/"]].concat());
    assert_eq!(reader::keys(&place.objects(), "rollouts"), []);
    assert_eq!(place.server().open_uploads(), [""; 0]);
    assert_eq!(place.sql("select count(*) from rollouts"), ["24"]);

    let place = place.reached_with([]);
    let ended = collect(&place, &sim, "--resume").succeeded();
    assert!(ended.stdout.contains("24 of 24 rollouts done"), "{ended:?}");
    is_whole(&place, &sim);
}

const EXPIRED: [&str; 3] = [
    "ExpiredToken",
    "The provided token has expired",
    "credentials",
];

#[test]
fn credentials_that_expire_in_an_upload_end_the_sweep_and_lose_nothing() {
    let piece = ExpiredToken.to("PUT", "/rollouts/", "partNumber=2&");
    fails_and_goes_on(vec![piece.always()], &EXPIRED);
}

#[test]
fn credentials_that_expire_at_the_end_of_an_upload_end_the_sweep_and_lose_nothing() {
    let end = ExpiredToken.to("POST", "/rollouts/", "uploadId");
    fails_and_goes_on(vec![end.always()], &EXPIRED);
}

#[test]
fn credentials_that_have_expired_are_found_before_anything_is_sent() {
    let (place, sim) = (s3([ExpiredToken.to("GET", "", "").always()]), agents());
    let ended = collect(&place, &sim, "-q").exited_with(2);
    ended.complaining(&[&EXPIRED[..], &["s3://sweeps/a/run"]].concat());
    assert_eq!(sim.requests(), 0);
    assert!(place.objects().is_empty());
}

#[test]
fn credentials_that_expire_when_all_has_landed_lose_nothing() {
    // The first is that the run has begun.
    let record = ExpiredToken.to("PUT", "run.json", "").after(1);
    let (place, sim) = (s3([record.always()]), agents());
    let ended = collect(&place, &sim, "-q").exited_with(1);
    ended.complaining(&[&EXPIRED[..], &["cannot write s3://sweeps/a/run/run.json"]].concat());
    assert_eq!(place.record()["state"], "running");
    let place = place.reached_with([]);
    collect(&place, &sim, "--resume").succeeded();
    is_whole(&place, &sim);
}

/// Small answers and smaller parts: the store is asked all the time while the sweep goes on.
fn many_parts(faults: impl IntoIterator<Item = Fault>) -> (Place, Simulated) {
    let sim = Simulated::start(SimConfig {
        body_size: 20_000,
        latency: Latency::Fixed(Duration::from_millis(20)),
        ..instant(["sim"])
    });
    (s3(faults), sim)
}

const MANY_PARTS: &str = "--part-size 20KB -q";

#[test]
fn accidents_while_a_sweep_goes_on_leave_no_trace() {
    let part = |accident: Accident| accident.to("PUT", "/rollouts/", "");
    let (place, sim) = many_parts([
        part(SlowDown).times(2),
        part(AnswerLost).after(2),
        part(InternalError).after(3),
        // The first part is there; the next.
        part(Reset).after(5),
        part(AnswerLost).after(6),
    ]);
    collect(&place, &sim, MANY_PARTS).succeeded();
    assert_eq!(place.accidents(), 6);
    let all = reader::all(TASKS.try_into().unwrap(), REPEATS);
    assert_eq!(reader::keys(&place.objects(), "rollouts"), all);
    assert_eq!(reader::keys(&place.objects(), "attempts"), all);
    assert_eq!(sim.requests(), all.len() as u64);
    reader::was_whole_at_every_moment(&place.server().history());
}

#[test]
fn credentials_that_expire_while_a_sweep_goes_on_end_it_and_the_rest_is_resumed() {
    let second = ExpiredToken.to("PUT", "/rollouts/", "").after(1);
    let (place, sim) = many_parts([second.always()]);
    let ended = collect(&place, &sim, MANY_PARTS).exited_with(1);
    ended.complaining(&EXPIRED);
    assert_eq!(place.record()["state"], "failed");
    let all = reader::all(TASKS.try_into().unwrap(), REPEATS);
    let kept = reader::keys(&place.objects(), "rollouts").len();
    assert!(kept > 0 && kept < all.len(), "{kept}");

    let place = place.reached_with([]);
    collect(&place, &sim, "--resume").succeeded();
    assert_eq!(reader::keys(&place.objects(), "rollouts"), all);
    assert_eq!(place.record()["state"], "finished");
    reader::was_whole_at_every_moment(&place.server().history());
    // What was in flight when the sweep ended is asked again; what was answered is not.
    let again = sim.requests() - all.len() as u64;
    assert!(again <= 2 * CONCURRENCY, "{again}");
}

/// A store that refuses even that uploads are aborted.
fn refuses_all_of_rollouts() -> Vec<Fault> {
    vec![
        ExpiredToken
            .to("PUT", "/rollouts/", "partNumber=2&")
            .always(),
        ExpiredToken.to("DELETE", "/rollouts/", "uploadId").always(),
    ]
}

#[test]
fn an_upload_that_could_not_be_aborted_is_aborted_by_the_resume() {
    let (place, sim) = (s3(refuses_all_of_rollouts()), agents());
    collect(&place, &sim, "-q")
        .exited_with(1)
        .complaining(&EXPIRED);
    assert_eq!(place.server().open_uploads().len(), 1);
    let place = place.reached_with([]);
    collect(&place, &sim, "--resume").succeeded();
    is_whole(&place, &sim);
}

#[test]
fn an_upload_that_could_not_be_aborted_is_aborted_by_what_replaces_the_run() {
    let (place, sim) = (s3(refuses_all_of_rollouts()), agents());
    collect(&place, &sim, "-q")
        .exited_with(1)
        .complaining(&EXPIRED);
    assert_eq!(place.server().open_uploads().len(), 1);
    let (place, sim) = (place.reached_with([]), agents());
    collect(&place, &sim, "--overwrite").succeeded();
    is_whole(&place, &sim);
}

#[test]
fn a_kill_in_an_upload_loses_nothing_and_leaves_nothing() {
    let hour = Stall(Duration::from_secs(3600));
    let (place, sim) = (
        s3([hour.to("PUT", "/rollouts/", "partNumber=2&")]),
        agents(),
    );
    let program = place.collect(COLLECT).args(&sim.options());
    let running = program.start();
    place.until_an_accident_happens();
    running.signal("KILL");
    assert_eq!(running.end().code, None);
    assert_eq!(place.server().open_uploads().len(), 1);
    assert_eq!(reader::keys(&place.objects(), "rollouts"), []);

    let place = place.reached_with([]);
    collect(&place, &sim, "--resume").succeeded();
    is_whole(&place, &sim);
}

#[test]
fn a_store_that_stalls_for_20_s_is_waited_for() {
    let stall = Stall(Duration::from_secs(20));
    survives(vec![stall.to("PUT", "/rollouts/", "partNumber=2&")], 1);
}

/// More than the client tries again by itself.
const OUTAGE: usize = 14;

#[test]
fn a_store_that_is_gone_for_a_while_is_waited_for() {
    for request in [
        InternalError.to("PUT", "/rollouts/", "partNumber=1&"),
        InternalError.to("POST", "/rollouts/", "uploadId"),
        InternalError.to("PUT", "/attempts/", ""),
    ] {
        let (place, sim) = (s3([request.clone().times(OUTAGE)]), agents());
        let ended = collect(&place, &sim, "").succeeded();
        assert_eq!(place.accidents(), OUTAGE, "{request:?}");
        for said in ["is waited for", "answers again"] {
            let lines = ended.stderr.lines().filter(|line| line.contains(said));
            assert_eq!(lines.count(), 1, "{request:?}: {ended:?}");
        }
        is_whole(&place, &sim);
    }
}

#[test]
fn a_store_that_stays_away_ends_the_sweep_and_loses_nothing() {
    let attempts = InternalError.to("PUT", "/attempts/", "").always();
    let (place, sim) = (s3([attempts]), agents());
    let ended = collect(&place, &sim, "-q --agent-patience 1s").exited_with(1);
    assert!(
        ended
            .stderr
            .contains("cannot write s3://sweeps/a/run/attempts/"),
        "{ended:?}"
    );
    let place = place.reached_with([]);
    collect(&place, &sim, "--resume").succeeded();
    is_whole(&place, &sim);
}

#[test]
fn who_only_looks_does_not_wait_for_a_store() {
    let (place, _sim) = (s3([InternalError.to("GET", "", "").always()]), agents());
    let status = place.rollstream("status").arg(place.run()).run();
    assert_ne!(status.code, Some(0));
    assert!(!status.stderr.contains("waited for"), "{status:?}");
}
