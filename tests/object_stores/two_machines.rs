//! Two machines, one after the other, at one run: what the first still has on its disk when it comes back counts once,
//! or is recognised as another run's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollstream::sim::{Latency, SimConfig};
use serde_json::{Value, json};

use super::place::Place;
use super::reader::{self, Key};
use crate::common::{Ended, Program, Running, Simulated, Task, instant, sums, task};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

const TASKS: u64 = 75;
const REPEATS: i64 = 4;
const ROLLOUTS: u64 = TASKS * REPEATS as u64;
const COLLECT: &str = "--num-repeats 4 --concurrency 4 --part-size 20KB --disable-aggregation";

/// How long a writer of a store may be silent, in a test.
const LEASE: (&str, &str) = ("ROLLSTREAM_LEASE", "3s");

/// A machine with a disk of its own.
struct Machine<'a> {
    place: &'a Place,
    state: PathBuf,
}

impl<'a> Machine<'a> {
    fn new(place: &'a Place, name: &str) -> Self {
        Self::with_disk(place, place.folder.path(name))
    }

    fn with_disk(place: &'a Place, state: PathBuf) -> Self {
        Self { place, state }
    }

    fn rollstream(&self, line: &str) -> Program {
        self.of(self.place.rollstream(line))
    }

    fn collect(&self, sim: &Simulated, options: &str) -> Program {
        let program = self.place.collect(COLLECT).args(&sim.options());
        self.of(program).args(options)
    }

    #[track_caller]
    fn is_killed_half_way(&self, sim: &Simulated, options: &str) {
        let mut running = self.collect(sim, options).start();
        until(&mut running, sim, ROLLOUTS / 2);
        running.signal("KILL");
        assert_eq!(running.end().code, None);
    }

    fn of(&self, program: Program) -> Program {
        let program = program.env(LEASE.0, LEASE.1);
        program.env("ROLLSTREAM_STATE_DIR", self.state.to_str().unwrap())
    }

    /// Every file of its disk.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        walk(&self.state, &mut files);
        files
    }

    /// Whoever reads the run here sees so many rollouts, each once, and nothing pending.
    #[track_caller]
    fn sees_all_once(&self) {
        let run = self.place.run();
        let status = self.rollstream(&format!("status {run} --json")).run();
        let status: Value = serde_json::from_str(&status.succeeded().stdout).unwrap();
        let counts =
            ["planned", "done", "failed", "pending"].map(|name| status["total"][name].clone());
        assert_eq!(
            counts,
            [json!(ROLLOUTS), json!(ROLLOUTS), json!(0), json!(0)]
        );

        let sql = self.rollstream("sql --format csv").args(&run).arg("-c");
        let query =
            "select count(*), count(distinct task_index * 1000 + rollout_index) from rollouts";
        let sql = sql.arg(query).run().succeeded();
        assert_eq!(
            sql.stdout.lines().nth(1),
            Some(format!("{ROLLOUTS},{ROLLOUTS}").as_str())
        );

        let out = format!("{}.jsonl", self.state.display());
        let export = self.rollstream(&format!(
            "export {run} --format nemo-gym --overwrite -o {out}"
        ));
        export.run().succeeded();
        let lines = fs::read_to_string(out).unwrap();
        let key = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            (
                line["_ng_task_index"].as_i64(),
                line["_ng_rollout_index"].as_i64(),
            )
        };
        let keys: BTreeSet<_> = lines.lines().map(key).collect();
        assert_eq!(
            (lines.lines().count() as u64, keys.len() as u64),
            (ROLLOUTS, ROLLOUTS)
        );
    }
}

fn walk(directory: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.insert(path.clone(), fs::read(path).unwrap());
        }
    }
}

fn agents(seed: u64) -> Simulated {
    Simulated::start(SimConfig {
        seed,
        latency: Latency::Fixed(Duration::from_millis(10)),
        ..instant(["sim"])
    })
}

#[track_caller]
fn until(running: &mut Running, sim: &Simulated, requests: u64) {
    let deadline = Instant::now() + PATIENCE;
    while sim.requests() < requests {
        assert!(running.is_running() && Instant::now() < deadline);
        // Only spares the processor.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A row of `attempts`: its rollout, its number, and how it ended.
type Attempt = (Key, i64, String);

fn attempts(place: &Place) -> Vec<Attempt> {
    let mut found = Vec::new();
    for (name, part) in place.objects() {
        if !name.starts_with("attempts/") || !name.ends_with(".parquet") {
            continue;
        }
        let parts = ParquetRecordBatchReaderBuilder::try_new(part).unwrap();
        for batch in parts.build().unwrap() {
            let batch = batch.unwrap();
            let column = |name: &str| batch.column_by_name(name).unwrap().clone();
            let integers = |name: &str| column(name).as_primitive::<Int64Type>().values().to_vec();
            let keys = integers("task_index")
                .into_iter()
                .zip(integers("rollout_index"));
            let outcomes = column("outcome");
            let outcomes = outcomes.as_string::<i32>().iter();
            let outcomes = outcomes.map(|outcome| outcome.unwrap().to_owned());
            let rows = keys.zip(integers("attempt")).zip(outcomes);
            found.extend(rows.map(|((key, attempt), outcome)| (key, attempt, outcome)));
        }
    }
    found
}

/// Every rollout is there once, and was at every moment; every request has a row; and one row of each rollout is the
/// answer that counts.
#[track_caller]
fn is_whole(place: &Place, sims: &[&Simulated]) {
    let all = reader::all(TASKS.try_into().unwrap(), REPEATS);
    assert_eq!(reader::keys(&place.objects(), "rollouts"), all);
    let record = place.record();
    assert_eq!(record["state"], "finished");
    assert_eq!(
        record["rollouts"],
        json!({"planned": ROLLOUTS, "done": ROLLOUTS, "failed": 0, "pending": 0})
    );
    reader::was_whole_at_every_moment(&place.server().history());

    let rows = attempts(place);
    let numbers: BTreeSet<(Key, i64)> = rows
        .iter()
        .map(|(key, number, _)| (*key, *number))
        .collect();
    assert_eq!(numbers.len(), rows.len(), "a number was used twice");
    let mut of_rollout: BTreeMap<Key, (usize, usize)> = BTreeMap::new();
    for (key, _, outcome) in rows {
        let (rows, answers) = of_rollout.entry(key).or_default();
        *rows += 1;
        *answers += usize::from(outcome == "ok");
    }
    let mut asked: BTreeMap<Key, usize> = BTreeMap::new();
    for (task, rollout, _) in sims.iter().flat_map(|sim| sim.asked("sim")) {
        *asked.entry((task, rollout)).or_default() += 1;
    }
    for (key, requests) in asked {
        let (rows, answers) = of_rollout[&key];
        assert!(
            rows >= requests,
            "{key:?} was sent {requests} times and has {rows} rows"
        );
        assert_eq!(answers, 1, "{key:?}");
    }
}

fn superseded(place: &Place) -> u64 {
    let rows = attempts(place).into_iter();
    rows.filter(|(_, _, outcome)| outcome == "superseded")
        .count() as u64
}

#[track_caller]
fn a_machine_comes_back(options: &str, is_copied: bool) {
    let (place, sim) = (Place::s3().with_tasks(sums(TASKS)), agents(0));
    let [a, b] = ["a", "b"].map(|name| Machine::new(&place, name));
    a.is_killed_half_way(&sim, options);
    let answered = sim.requests();
    b.collect(&sim, options).args("--resume").run().succeeded();
    let asked = sim.requests();
    b.sees_all_once();
    a.sees_all_once();

    let ended = a.collect(&sim, options).args("--resume").run().succeeded();
    assert_eq!(sim.requests(), asked, "something was asked again");
    let whole = format!("{ROLLOUTS} of {ROLLOUTS} rollouts done");
    assert!(ended.stdout.contains(&whole), "{ended:#?}");
    is_whole(&place, &[&sim]);
    let again = superseded(&place);
    assert!(
        again >= u64::from(!is_copied) && again <= answered,
        "{again} of {answered}"
    );
    let said = format!("{}{}", ended.stdout, ended.stderr);
    // The last copy may have been made just before the kill.
    assert!(again == 0 || said.contains("superseded"), "{ended:#?}");
    a.sees_all_once();
    b.sees_all_once();

    // That was that: what is superseded is so once.
    a.collect(&sim, options).args("--resume").run().succeeded();
    assert_eq!(superseded(&place), again);
    is_whole(&place, &[&sim]);
}

#[test]
fn what_a_machine_never_copied_is_superseded_when_it_comes_back() {
    a_machine_comes_back("--checkpoint-interval 1h", false);
}

#[test]
fn what_a_machine_had_copied_in_part_is_superseded_when_it_comes_back() {
    a_machine_comes_back("--checkpoint-interval 300ms", true);
}

/// Other tasks, as many.
fn others() -> Vec<Task> {
    let other = |n: u64| task(&format!("How much is {n} + 1?")).answered_by(n + 1);
    (1000..1000 + TASKS).map(other).collect()
}

#[track_caller]
fn answers_are_of_the_others(place: &Place) {
    for ((task, _), answer) in reader::answers(&place.objects()) {
        let question = format!("How much is {} + 1?", 1000 + task);
        assert!(answer.contains(&question), "{task}: {answer}");
    }
}

#[test]
fn a_machine_that_comes_back_leaves_its_answers_out_of_the_run_that_replaced_its_own() {
    let (place, sim) = (Place::s3().with_tasks(sums(TASKS)), agents(0));
    let [a, b] = ["a", "b"].map(|name| Machine::new(&place, name));
    a.is_killed_half_way(&sim, "");
    let before = a.files();
    assert!(!before.is_empty(), "it has no journal");

    place.folder.tasks("tasks.jsonl", others());
    let sim = agents(1);
    let mut replaced = b.collect(&sim, "--overwrite").start();
    until(&mut replaced, &sim, ROLLOUTS / 4);
    replaced.signal("INT");
    replaced.end().exited_with(130);
    a.collect(&sim, "--resume").run().succeeded();
    assert_eq!(sim.requests(), ROLLOUTS);
    is_whole(&place, &[&sim]);
    answers_are_of_the_others(&place);
    a.sees_all_once();
    b.sees_all_once();
    let after = a.files();
    let lost: Vec<&PathBuf> = before
        .iter()
        .filter(|(path, bytes)| after.get(*path) != Some(bytes))
        .map(|(path, _)| path)
        .collect();
    assert!(
        lost.is_empty(),
        "of another run, and gone or changed: {lost:?}"
    );
}

#[test]
fn runs_of_one_address_at_two_endpoints_do_not_meet() {
    let [first, second] = [sums(TASKS), others()].map(|tasks| Place::s3().with_tasks(tasks));
    let state = first.folder.path("state");
    let [at_first, at_second] =
        [&first, &second].map(|place| Machine::with_disk(place, state.clone()));
    let sims = [0, 1].map(agents);
    at_first.is_killed_half_way(&sims[0], "");

    at_second.collect(&sims[1], "").run().succeeded();
    assert_eq!(sims[1].requests(), ROLLOUTS);
    is_whole(&second, &[&sims[1]]);
    answers_are_of_the_others(&second);
    at_first.collect(&sims[0], "--resume").run().succeeded();
    // But for what was in flight, or not in the journal yet.
    assert!(sims[0].requests() < ROLLOUTS * 5 / 4, "answers were lost");
    is_whole(&first, &[&sims[0]]);
    at_first.sees_all_once();
    at_second.sees_all_once();
}

/// Tries to resume until the lease of the other is over.
#[track_caller]
fn resumed_when_it_may(machine: &Machine, sim: &Simulated) -> Ended {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = machine.collect(sim, "--resume").run();
        if ended.code == Some(0) {
            return ended;
        }
        assert!(ended.stderr.contains("lock"), "{ended:#?}");
        assert!(Instant::now() < deadline, "never: {ended:#?}");
    }
}

#[test]
fn a_machine_that_slept_through_its_lease_publishes_nothing_more() {
    let (place, sim) = (Place::s3().with_tasks(sums(TASKS)), agents(0));
    let [a, b] = ["a", "b"].map(|name| Machine::new(&place, name));
    let mut asleep = a.collect(&sim, "").start();
    until(&mut asleep, &sim, ROLLOUTS / 2);
    asleep.signal("STOP");
    let others = agents(0);
    resumed_when_it_may(&b, &others);
    b.sees_all_once();
    let parts = |place: &Place| {
        let names = place.objects().into_keys();
        names
            .filter(|name| name.ends_with(".parquet"))
            .collect::<Vec<_>>()
    };
    let before = parts(&place);

    asleep.signal("CONT");
    let ended = asleep.end().exited_with(1);
    assert!(ended.stderr.contains("lock"), "{ended:#?}");
    // The one upload that was under way when the machine fell asleep may end now; `sees_all_once` judges its rows.
    let mut late = parts(&place);
    late.retain(|part| !before.contains(part));
    assert!(late.len() <= 1, "it published {late:?}");
    a.sees_all_once();
    a.collect(&sim, "--resume").run().succeeded();
    is_whole(&place, &[&sim, &others]);
    assert!(superseded(&place) > 0);
    a.sees_all_once();
    b.sees_all_once();
}
