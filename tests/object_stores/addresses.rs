//! Addresses in an object store: a key is what was written, or nothing is touched.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::place::Place;
use super::reader;
use crate::common::{Program, Simulated, instant, sums};
use crate::s3_server::BUCKET;

fn collect(place: &Place, sim: &Simulated, address: &str) -> Program {
    let program = place.rollstream("collect -q -i tasks.jsonl --agent sim --num-repeats 2 -o");
    program.arg(address).args(&sim.options())
}

fn below(place: &Place, key: &str) -> BTreeMap<String, Bytes> {
    let objects = place.server().objects().into_iter();
    objects
        .filter_map(|(name, content)| {
            let name = name.strip_prefix(key)?.strip_prefix('/')?;
            Some((name.to_owned(), content))
        })
        .collect()
}

#[test]
fn a_key_is_taken_as_it_is_written() {
    let place = Place::s3().with_tasks(sums(3));
    let sim = Simulated::start(instant(["sim"]));
    let keys = ["sw/x", "sw/x#2", "sw/x?y=1", "sw/%41", "sw/A", "a b/ö#/run"];
    for key in keys {
        let address = format!("s3://{BUCKET}/{key}");
        collect(&place, &sim, &address).run().succeeded();
        let others: Vec<_> = keys.map(|other| below(&place, other)).into();

        // Replacing a run touches no other.
        collect(&place, &sim, &address)
            .arg("--overwrite")
            .run()
            .succeeded();
        for (other, before) in keys.iter().zip(others) {
            if *other != key {
                assert!(below(&place, other) == before, "{key} has changed {other}");
            }
        }
        assert_eq!(
            reader::keys(&below(&place, key), "rollouts"),
            reader::all(3, 2),
            "{key}"
        );
        let status = place
            .rollstream("status --json")
            .arg(&address)
            .run()
            .succeeded();
        assert!(status.stdout.contains("finished"), "{status:?}");
        let sql = place.rollstream("sql --format csv").arg(&address);
        let sql = sql.arg("-c").arg("select count(*) from rollouts").run();
        assert_eq!(sql.succeeded().stdout.lines().nth(1), Some("6"), "{key}");
    }
    let known = |name: &String| keys.iter().any(|key| name.starts_with(&format!("{key}/")));
    let objects = place.server().objects();
    assert!(objects.keys().all(known), "{:?}", objects.keys());
}

#[test]
fn an_address_that_could_be_taken_in_two_ways_is_refused_before_anything_is_touched() {
    let place = Place::s3().with_tasks(sums(3));
    let sim = Simulated::start(instant(["sim"]));
    collect(&place, &sim, &format!("s3://{BUCKET}/sw/x"))
        .run()
        .succeeded();
    let (before, requests) = (place.server().history().len(), sim.requests());
    for key in ["sw//x", "sw/./x", "sw/y/../x", "#/sw/x"] {
        let address = format!("s3://{BUCKET}/{key}");
        let address = address.replace("/#", "#");
        let ended = collect(&place, &sim, &address).arg("--overwrite").run();
        ended.exited_with(2).complaining(&[&address]);
    }
    assert_eq!(place.server().history().len(), before);
    assert_eq!(sim.requests(), requests);
}

#[test]
fn metrics_ask_for_the_size_of_no_part() {
    let place = Place::s3().with_tasks(sums(3));
    let sim = Simulated::start(instant(["sim"]));
    let address = format!("s3://{BUCKET}/run");
    collect(&place, &sim, &address).run().succeeded();
    let heads = || place.server().requests().get("HEAD").copied();
    let before = heads();
    let aggregate = place.rollstream("aggregate");
    aggregate.arg(&address).run().succeeded();
    // Whether there are metrics already, and the tasks. Another for a part would be one more.
    let asked = heads().unwrap_or_default() - before.unwrap_or_default();
    assert!(asked <= 4, "{asked}");
}

#[test]
fn an_input_is_read_from_the_key_that_was_written() {
    let place = Place::s3();
    let sim = Simulated::start(instant(["sim"]));
    let lines = |count| {
        sums(count)
            .iter()
            .map(|task| format!("{task}\n"))
            .collect::<String>()
    };
    place.server().put("in/tasks", lines(5));
    place.server().put("in/tasks#1 %41.jsonl", lines(2));
    let input = format!("s3://{BUCKET}/in/tasks#1 %41.jsonl");
    let program = place
        .rollstream("collect -q --agent sim -o run")
        .args(&sim.options());
    program.arg("-i").arg(&input).run().succeeded();
    assert_eq!(sim.requests(), 2);
}
