use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::runtime;

use super::faulty_store::{Fate, FaultyStore};
use super::machine::{Files, Machine};

const NAMES: [&str; 3] = [
    "0000000001-run-p00-00000.rows",
    "0000000001-run-p00-00000.dispatches",
    "0000000001-run-p00-00001.rows",
];

#[derive(Debug, Clone)]
enum Step {
    Append(usize, Vec<u8>),
    Land(usize),
    Checkpoint,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..NAMES.len(), vec(any::<u8>(), 1..12)).prop_map(|(file, content)| Step::Append(file, content)),
        1 => (0..NAMES.len()).prop_map(Step::Land),
        4 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        2 => Just(Fate::Done),
        1 => Just(Fate::Refused),
        1 => Just(Fate::AnswerLost),
    ]
}

/// Without faults, what is fetched at any moment is what was copied; with them, it is at least
/// that, and nothing else than what was written.
async fn check(steps: Vec<Step>, fates: Vec<Fate>) {
    let store = Arc::new(FaultyStore::default());
    store.meet(&fates);
    let machine = Machine::on(Arc::clone(&store) as _);
    let healthy = Machine::on(store.inner());
    let mut checkpointer = machine.checkpointer();
    let mut copied = Files::new();
    let mut gone = BTreeSet::new();
    for step in steps {
        match step {
            Step::Append(file, content) => {
                if !gone.contains(NAMES[file]) {
                    machine.append(NAMES[file], &content);
                }
            }
            Step::Land(file) => {
                let name = NAMES[file];
                if machine.files().contains_key(name) {
                    if let Some(segment) = name.strip_suffix(".rows") {
                        healthy.land(segment).await;
                        copied.remove(name);
                    }
                    machine.remove(name);
                    gone.insert(name.to_owned());
                }
            }
            Step::Checkpoint => {
                if checkpointer.checkpoint().await.is_ok() {
                    copied = machine.files();
                }
            }
            Step::Restart => {
                // What is between a crash and the next process's start is not seen to go.
                if checkpointer.checkpoint().await.is_ok() {
                    copied = machine.files();
                    checkpointer = machine.checkpointer();
                }
            }
        }
        let fetched = healthy.fetched_elsewhere().await;
        if fates.is_empty() {
            assert_eq!(fetched, copied);
            continue;
        }
        let files = machine.files();
        for (name, content) in &copied {
            if files.contains_key(name) {
                assert!(
                    fetched
                        .get(name)
                        .is_some_and(|found| found.starts_with(content))
                );
            }
        }
        for (name, found) in &fetched {
            match files.get(name) {
                Some(content) => assert!(content.starts_with(found)),
                None => assert!(name.ends_with(".dispatches")),
            }
        }
    }
    store.meet(&[]);
    checkpointer.checkpoint().await.unwrap();
    assert_eq!(healthy.fetched_elsewhere().await, machine.files());
    let of_files = |chunk: &String| machine.files().keys().any(|name| chunk.starts_with(name));
    assert!(healthy.chunks().await.iter().all(of_files));
}

fn run(check: impl Future<Output = ()>) {
    let mut runtime = runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap().block_on(check);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_copied_is_fetched_at_any_moment(steps in vec(step(), 1..24)) {
        run(check(steps, Vec::new()));
    }

    #[test]
    fn faults_of_the_store_lose_nothing(steps in vec(step(), 1..24), fates in vec(fate(), 1..16)) {
        run(check(steps, fates));
    }
}
