//! Metrics while a sweep runs, and what its settings say of them.

use std::fs;

use serde_json::json;

use crate::common::{Folder, Simulated, quick_and_slow, sums, task};

/// One agent that answers five tasks at once, and one that never does.
fn never_done() -> (Folder, Simulated) {
    let sim = Simulated::start(quick_and_slow());
    let quick = sums(5).into_iter().map(|task| task.for_agent("quick"));
    let folder = Folder::with_tasks(quick.chain([task("Will it ever end?").for_agent("slow")]));
    (folder, sim)
}

#[test]
fn key_metrics_are_shown_before_the_sweep_is_over() {
    let (folder, sim) = never_done();
    let collect = "collect -i tasks.jsonl -o run --num-repeats 2 --live 100ms";
    let running = folder.rollstream(collect).args(&sim.options()).start();
    let line = running.until_it_says(", 10 rollouts");
    assert!(line.starts_with("quick "), "{line}");
    assert!(line.contains(" (standard error)"), "{line}");
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    running.end().exited_with(130);
}

#[test]
fn programs_get_them_as_events() {
    let (folder, sim) = never_done();
    let collect = "collect -i tasks.jsonl -o run --num-repeats 2 --live 100ms --json";
    let running = folder.rollstream(collect).args(&sim.options()).start();
    let line = running.until_it_prints("\"metric\":\"reward\"");
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["event"], "metrics");
    let metrics = event["metrics"].as_array().unwrap();
    let reward = metrics.iter().find(|metric| metric["metric"] == "reward");
    let reward = reward.unwrap();
    assert_eq!(reward["agent_name"], "quick");
    assert!(
        reward["mean"].is_f64() && reward["count"].is_u64(),
        "{reward}"
    );
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    running.end().exited_with(130);
}

#[test]
fn tokens_cost_what_the_settings_of_the_agent_say() {
    let folder = Folder::with_tasks(sums(3));
    folder.write(
        "sweep.toml",
        "input = \"tasks.jsonl\"\noutput = \"run\"\nagent = \"sim\"\n[agents.sim]\ninput_price = 3\noutput_price = 15.5\n",
    );
    folder
        .rollstream("collect --config sweep.toml -q")
        .run()
        .succeeded();
    let sums = folder.sql(
        "run",
        "select sum(input_tokens), sum(output_tokens) from rollouts",
    );
    let sums: Vec<f64> = sums[0].split(',').map(|sum| sum.parse().unwrap()).collect();
    let tokens = folder.path("run/metrics/tokens.parquet");
    let file = std::fs::File::open(tokens).unwrap();
    let rows = parquet::file::reader::SerializedFileReader::new(file).unwrap();
    let row = rows.into_iter().next().unwrap().unwrap();
    let (_, cost) = row
        .get_column_iter()
        .find(|(name, _)| *name == "cost")
        .unwrap();
    let parquet::record::Field::Double(cost) = cost else {
        panic!("{cost:?}");
    };
    let expected = (sums[0] * 3.0 + sums[1] * 15.5) / 1e6;
    assert!((cost - expected).abs() < 1e-12, "{cost} is not {expected}");
}

#[test]
fn a_parameter_that_no_metric_has_is_refused_before_anything_is_sent() {
    let folder = Folder::with_tasks(sums(1));
    for option in ["+params.resample=10", "--param resample=10"] {
        let collect = folder.rollstream("collect -i tasks.jsonl -o run --agent sim");
        let ended = collect.args(option).run();
        ended
            .exited_with(2)
            .complaining(&["--param resample=10", "resamples"]);
        assert!(!folder.has("run"));
    }
}

#[test]
fn a_sweep_ends_with_metrics_that_know_their_parameters() {
    let folder = Folder::with_tasks(sums(3));
    fs::create_dir(folder.path("families")).unwrap();
    folder.write(
        "families/told.sql",
        "-- What it was told.\n--\n-- Parameters:\n--   threshold = 1.0   a number\n--   word = 'none'     a text\n\
         --\n-- Columns:\n--   threshold   the number\n--   word        the text\n\n\
         SELECT $threshold AS threshold, $word AS word\n",
    );
    folder
        .rollstream("collect -i tasks.jsonl -o run --agent sim -q --queries families")
        .args("--param threshold=0.25 --param word=some")
        .run()
        .succeeded();
    assert_eq!(
        folder.parquet("run/metrics/told.parquet"),
        [json!({"threshold": 0.25, "word": "some"})]
    );
}
