//! What is said where a store can't be used as it is set up, and that nothing is sent or written then.

use super::place::Place;
use super::reader;
use crate::common::{Simulated, instant, sums};
use crate::s3_server::SECRET_KEY;
use crate::store_proxy::Accident::AnswerLost;

/// The program complains of all of `parts` where a variable has another value, or none.
#[track_caller]
fn refused(variable: &str, value: Option<&str>, parts: &[&str]) {
    let place = Place::s3().with_tasks(sums(2));
    let sim = Simulated::start(instant(["sim"]));
    let line = format!("collect -i tasks.jsonl --agent sim -q -o {}", place.run());
    let mut program = place.folder.rollstream(&line).args(&sim.options());
    for (name, usual) in place.environment() {
        program = match value {
            _ if name != variable => program.env(name, &usual),
            Some(value) => program.env(name, value),
            None => program,
        };
    }
    let ended = program.run().exited_with(2).complaining(parts);
    assert!(!ended.stderr.contains(SECRET_KEY), "{ended:?}");
    assert_eq!(sim.requests(), 0);
    assert!(place.objects().is_empty());
}

#[test]
fn a_key_that_is_wrong_is_refused_by_the_store() {
    let parts = [
        "cannot use the output",
        "s3://sweeps/a/run",
        "credentials",
        "SignatureDoesNotMatch",
    ];
    refused("AWS_SECRET_ACCESS_KEY", Some("wrong"), &parts);
}

#[test]
fn a_key_that_nobody_knows_is_refused_by_the_store() {
    let parts = ["credentials", "not signed up", "environment"];
    refused("AWS_ACCESS_KEY_ID", Some("nobody"), &parts);
}

#[test]
fn a_key_that_is_missing_is_named() {
    let parts = [
        "cannot use the store of 's3://sweeps/a/run'",
        "SecretAccessKey",
        "AWS_SECRET_ACCESS_KEY",
    ];
    refused("AWS_SECRET_ACCESS_KEY", None, &parts);
}

#[test]
fn an_endpoint_without_encryption_must_be_allowed() {
    let parts = [
        "cannot use the store of 's3://sweeps/a/run'",
        "http://",
        "AWS_ALLOW_HTTP=true",
    ];
    refused("AWS_ALLOW_HTTP", None, &parts);
}

#[test]
fn an_account_that_is_missing_is_named() {
    let place = Place::disk().with_tasks(sums(2));
    let program = place.rollstream("collect -i tasks.jsonl --agent sim -o az://sweeps/run");
    let parts = [
        "cannot use the store of 'az://sweeps/run'",
        "AZURE_STORAGE_ACCOUNT_NAME",
    ];
    program.run().exited_with(2).complaining(&parts);
}

#[test]
fn a_store_that_is_not_there_is_told_by_its_cause() {
    let parts = [
        "cannot read s3://sweeps/a/run/run.json",
        "Connection refused",
    ];
    // Port 9 is nobody's.
    refused("AWS_ENDPOINT", Some("http://127.0.0.1:9"), &parts);
}

#[test]
fn a_bucket_that_is_not_there_is_told() {
    let (place, sim) = (
        Place::s3().with_tasks(sums(2)),
        Simulated::start(instant(["sim"])),
    );
    let program = place.rollstream("collect -i tasks.jsonl --agent sim -q -o s3://nobodys/run");
    let ended = program.args(&sim.options()).run().exited_with(2);
    ended.complaining(&["s3://nobodys/run", "NoSuchBucket"]);
    assert_eq!(sim.requests(), 0);
}

// The answer to a read is lost before, or in the middle of, what is read.
#[test]
fn a_run_is_read_over_a_road_that_loses_answers() {
    let place = Place::s3().with_tasks(sums(8));
    place
        .collect("-q --num-repeats 2 --disable-aggregation")
        .run()
        .succeeded();
    let faults = ["run.json", "/rollouts/", "/attempts/", "/tasks/"];
    let lost = faults.map(|path| AnswerLost.to("GET", path, ""));
    let lists = ["prefix=a%2Frun%2Frollouts", "prefix=a%2Frun%2Fattempts"];
    let lists = lists.map(|query| AnswerLost.to("GET", "", query));
    let place = place.reached_with(lost.into_iter().chain(lists));
    let sim = Simulated::start(instant(["sim"]));
    let program = place.collect("-q --num-repeats 2 --resume");
    program.args(&sim.options()).run().succeeded();
    assert_eq!(sim.requests(), 0);
    assert_eq!(
        place.sql("select count(*) from rollouts join tasks using (task_index)"),
        ["16"]
    );
    assert_eq!(place.accidents(), 6);
    assert_eq!(
        reader::keys(&place.objects(), "rollouts"),
        reader::all(8, 2)
    );
}
