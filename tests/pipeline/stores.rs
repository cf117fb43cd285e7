//! A run is the same wherever it is kept.

use rollstream::SweepReport;
use rollstream::config::Settings;
use rollstream::outcome::OutcomeBatchBuilder;
use rollstream::session::RunTables;
use rollstream::sim::{AgentConfig, FaultKind, FaultRates, Sim, SimConfig};
use rollstream::store::{Checkpointer, LockScope, RunStore, SegmentName, SegmentWriter};

use super::landed;
use super::workspace::{Workspace, quick, sweep, tasks};

/// The same small sweep, measured as well, to `output`.
async fn measured(place: &Workspace, output: String) -> SweepReport {
    let faults = FaultRates([(FaultKind::Error500, 0.2)].into());
    let sim = Sim::start(SimConfig {
        faults,
        body_size: 5000,
        ..quick(&[("sim", AgentConfig::default())])
    });
    let sim = sim.await.unwrap();
    let settings = place.settings(&tasks(50, &["sim"]), 2, &sim);
    sweep(Settings {
        output: Some(output),
        aggregate: true,
        part_size: "50KB".parse().unwrap(),
        ..settings
    })
    .await
}

/// Names of what was written within the run, with each part's own name left out.
fn kinds(report: &SweepReport, root: &str) -> Vec<String> {
    let relative = report.written.iter().map(|path| {
        path.strip_prefix(root)
            .unwrap_or_else(|| panic!("{path} is not in {root}"))
    });
    let kind = |path: &str| match path.split_once('/') {
        Some((table @ ("rollouts" | "attempts"), _)) => table.to_owned(),
        _ => path.to_owned(),
    };
    let mut kinds: Vec<String> = relative
        .map(|path| kind(path.trim_start_matches('/')))
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

// Every address `memory://` is a store of its own, so what it holds is only seen through the sweep
// itself: the metrics are computed over what was read back from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_in_an_object_store_is_what_it_is_on_disk() {
    let place = Workspace::new();
    let root = place.run().display().to_string();
    let disk = measured(&place, root.clone()).await;
    let memory = measured(&place, "memory:///sweeps/first".into()).await;

    assert!(disk.rollouts.done > 0 && disk.rollouts.failed > 0);
    assert_eq!(memory.rollouts, disk.rollouts);
    let reward = disk
        .metrics
        .iter()
        .find(|metric| metric.metric == "reward")
        .unwrap();
    assert_eq!(reward.count, disk.rollouts.done);
    assert_eq!(memory.metrics, disk.metrics);

    let kinds_on_disk = kinds(&disk, &root);
    assert!(
        kinds_on_disk
            .iter()
            .any(|kind| kind == "aggregate_metrics.json"),
        "{kinds_on_disk:?}"
    );
    assert_eq!(kinds(&memory, "memory:///sweeps/first"), kinds_on_disk);
    assert!(
        disk.written
            .iter()
            .all(|path| std::path::Path::new(path).exists())
    );

    assert!(landed::segments(&place.path("state")).is_empty());
}

/// Copies the journal of a writer that was lost with its machine.
async fn lose(run: &RunStore, name: &str) {
    let name: SegmentName = name.parse().unwrap();
    let mut writer = SegmentWriter::create(run.journal_dir(), name).unwrap();
    writer
        .append(&OutcomeBatchBuilder::new().finish().unwrap())
        .unwrap();
    writer.seal();
    let mut copies = Checkpointer::new(run.clone(), name.epoch).unwrap();
    copies.checkpoint().await.unwrap();
    std::fs::remove_dir_all(run.journal_dir()).unwrap();
}

#[tokio::test]
async fn a_shard_reads_the_journals_of_others_only_if_one_may_have_had_its_rollouts() {
    let state = tempfile::tempdir().unwrap();
    let run = RunStore::open("memory:///run", Some(state.path())).unwrap();
    let run = run.identified("1");
    let epochs = async |share| {
        let tables = RunTables::look_for(&run, share).await.unwrap();
        let names = tables.segments().iter().map(|rows| rows.segment.name());
        let mut epochs: Vec<u64> = names.map(|name| name.epoch).collect();
        epochs.sort();
        epochs
    };
    let first = LockScope::Shard { index: 1, count: 2 };
    lose(&run, "0000000001-s1of2-p00-00000").await;
    lose(&run, "0000000002-s2of2-p00-00000").await;
    assert_eq!(epochs(LockScope::Run).await, [1, 2]);
    assert_eq!(epochs(first).await, [1]);
    lose(&run, "0000000003-s1of3-p00-00000").await;
    assert_eq!(epochs(first).await, [1, 2, 3]);
}
