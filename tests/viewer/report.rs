//! The report is one file that needs nothing else.

use std::fs;

use serde_json::Value;

use super::browser::Browser;
use super::scene::{TASKS, agent_metrics, compared, shown, two_runs};
use crate::common::{Folder, sums};

/// The largest report, in bytes.
const MAX_SIZE: u64 = 3_000_000;

/// Opens a report without a network.
fn opened(folder: &Folder, name: &str) -> Browser {
    let path = folder.path(name);
    assert!(fs::metadata(&path).unwrap().len() <= MAX_SIZE);
    let mut browser = Browser::start();
    browser.go_offline();
    browser.open(format_args!("file://{}", path.display()));
    browser
}

/// It asks for nothing but itself.
fn is_alone(browser: &mut Browser, folder: &Folder, name: &str) {
    browser.is_clean(&format!("file://{}", folder.path(name).display()));
    let links = browser.ask("[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href')).filter(a => !a.startsWith('#'))");
    assert_eq!(links, serde_json::json!([]));
}

#[test]
fn a_report_of_two_runs_has_their_figures_and_their_comparison() {
    let folder = two_runs();
    folder
        .rollstream("report base other -o report.html")
        .run()
        .succeeded();
    let mut browser = opened(&folder, "report.html");
    let told = compared(&folder);
    let titles = browser.texts("h1");
    assert_eq!(titles, ["base and other", "base", "other"]);
    let differences = browser.texts(".verdict").concat();
    assert!(
        differences.contains(&format!("reward: +{}", shown(&told["difference"]))),
        "{differences}"
    );

    let tables = browser.ask("[...document.querySelectorAll('#metrics')].map(s => [...s.querySelector('tbody').rows].map(row => [...row.cells].map(c => c.innerText)))");
    for (place, run) in ["base", "other"].into_iter().enumerate() {
        let metrics = agent_metrics(&folder, run);
        let rows: Vec<Vec<String>> = serde_json::from_value(tables[place].clone()).unwrap();
        assert!(rows.len() >= 3);
        for row in rows {
            let figure = |kind: &str| shown(&metrics[format!("{kind}/{}", row[1])]);
            assert_eq!([&row[2], &row[7]], [&figure("mean"), &figure("std")]);
        }
    }
    let transcripts = browser.texts(".transcripts > details > summary");
    assert_eq!(transcripts.len(), 2 * 3, "{transcripts:?}");
    let worst = folder.sql(
        "base",
        "select task_index, avg(reward) from rollouts group by 1 order by 2, 1 limit 1",
    );
    let (task, _) = worst[0].split_once(',').unwrap();
    assert!(
        transcripts[0].starts_with(&format!("The worst task: task {task},")),
        "{transcripts:?}"
    );
    let question = format!("What is {} + ", task.parse::<usize>().unwrap() + 1);
    assert!(browser.texts(".transcripts .user")[0].contains(&question));
    let dots =
        browser.ask("document.querySelectorAll('circle.better, circle.worse, circle.same').length");
    assert_eq!(dots, TASKS);
    is_alone(&mut browser, &folder, "report.html");
}

#[test]
fn a_sweep_ends_with_its_report() {
    let folder = Folder::with_tasks(sums(3));
    let collect = "collect -i tasks.jsonl --agent sim --num-repeats 2 -o run --report report.html";
    folder.rollstream(collect).run().succeeded();
    let mut browser = opened(&folder, "report.html");
    assert_eq!(browser.texts("h1"), ["run"]);
    let mean: Value = agent_metrics(&folder, "run")["mean/reward"].take();
    let shown_mean = browser.texts("#metrics h2 + .scroll tbody tr:first-child td:nth-child(3)");
    assert_eq!(shown_mean, [shown(&mean)]);
    is_alone(&mut browser, &folder, "report.html");
}
