//! Every page of two finished runs shows what the other commands say of them.

use serde_json::Value;

use super::browser::Browser;
use super::scene::{ROLLOUTS, TASKS, Viewer, agent_metrics, compared, get, shown, two_runs};
use crate::common::Folder;

fn both() -> (Folder, Viewer, Browser) {
    let folder = two_runs();
    let viewer = Viewer::start(&folder, "base other");
    (folder, viewer, Browser::start())
}

/// The rows of the first table of a selector, cell by cell.
fn table(browser: &mut Browser, selector: &str) -> Vec<Vec<String>> {
    let cells = format!(
        "[...document.querySelector({:?}).rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))",
        format!("{selector} tbody")
    );
    serde_json::from_value(browser.ask(&cells)).unwrap()
}

/// What the parts of the chart with this in its caption say when they are pointed at.
fn chart(browser: &mut Browser, caption: &str) -> Vec<String> {
    let titles = format!(
        "[...[...document.querySelectorAll('figure')].find(f => f.querySelector('figcaption').innerText.includes({caption:?}))
         .querySelectorAll('title')].map(title => title.textContent)"
    );
    serde_json::from_value(browser.ask(&titles)).unwrap()
}

/// The number behind the last colon.
fn last_number(text: &str) -> f64 {
    text.rsplit(": ").next().unwrap().parse().unwrap()
}

#[test]
fn the_overview_has_the_figures_of_the_metrics() {
    let (folder, viewer, mut browser) = both();
    let metrics = agent_metrics(&folder, "base");
    browser.open(viewer.at(""));
    let runs = table(&mut browser, "table");
    let all = ROLLOUTS.to_string();
    let mean = shown(&metrics["mean/reward"]);
    assert_eq!(
        runs[0][..7],
        ["base", "finished", &all, &all, "0", "0", &mean]
    );
    assert_eq!((runs.len(), &*runs[1][0]), (2, "other"));

    browser.follow("tbody a");
    assert_eq!(browser.texts("h1"), ["base"]);
    assert_eq!(
        table(&mut browser, "#state")[0][..5],
        ["sim", &all, &all, "0", "0"]
    );
    let rows = table(&mut browser, "#metrics");
    let names: Vec<&str> = rows.iter().map(|row| &*row[1]).collect();
    assert_eq!(names, ["reward", "accuracy", "turns"]);
    for row in &rows {
        let figure = |kind: &str| shown(&metrics[format!("{kind}/{}", row[1])]);
        let [mean, std, count] = [&row[2], &row[7], &row[8]];
        assert_eq!([mean, std, count], [&figure("mean"), &figure("std"), &all]);
    }
    let tokens = folder.sql(
        "base",
        "select sum(input_tokens), sum(output_tokens) from rollouts",
    );
    let shown_tokens = table(&mut browser, "#metrics h3 + .scroll")[0][1..3].join(",");
    assert_eq!(shown_tokens, tokens[0]);

    let pass = folder.parquet("base/metrics/pass_at_k.parquet");
    let pass = pass.iter().filter(|row| row["metric"] == "reward");
    let drawn = chart(&mut browser, "pass@k and pass^k of reward");
    for row in pass {
        for (name, figure) in [
            ("pass@k", &row["pass_at_k"]),
            ("pass^k", &row["pass_hat_k"]),
        ] {
            let point = format!("sim {name} at {}: ", row["k"]);
            let point = drawn
                .iter()
                .find(|title| title.starts_with(&point))
                .unwrap();
            let figure = figure.as_f64().unwrap();
            assert!(
                (last_number(point) - figure).abs() < 1e-4,
                "{point} {figure}"
            );
        }
    }
    for histogram in [
        "Histogram of reward",
        "Histogram of turns",
        "Latency",
        "Output tokens of",
    ] {
        let bars = chart(&mut browser, histogram);
        let rollouts: f64 = bars.iter().map(|bar| last_number(bar)).sum();
        assert_eq!(rollouts, ROLLOUTS as f64, "{histogram}: {bars:?}");
    }
    let drawn = browser.texts("figure:has(polyline) figcaption").concat();
    for over_time in [
        "Rollouts per second",
        "Calls in flight",
        "Latency of rollouts, m",
        "tokens per second",
    ] {
        assert!(drawn.contains(over_time), "{over_time}: {drawn}");
    }
    browser.is_clean(viewer.origin());
}

#[test]
fn a_wrong_answer_is_two_clicks_away() {
    let (folder, viewer, mut browser) = both();
    browser.open(viewer.at("1/"));
    browser.follow("#tasks rect.h0");
    let title = browser.texts("h1").concat();
    let numbers: Vec<&str> = title
        .split(|c: char| !c.is_ascii_digit())
        .filter(|n| !n.is_empty())
        .collect();
    let query = format!(
        "select reward, json_get_int(result, 'extracted_answer') from rollouts where task_index = {} and rollout_index = {}",
        numbers[0], numbers[1]
    );
    let (reward, answer) = folder.sql("base", &query)[0]
        .split_once(',')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert_eq!(reward, "0.0");
    let said = browser.texts(".item.assistant").concat();
    assert!(said.contains(&format!("The answer is {answer}")), "{said}");
    let expected = 2 * numbers[0].parse::<u64>().unwrap() + 3;
    assert_eq!(
        browser.texts(".fields dd").first(),
        Some(&expected.to_string())
    );
    browser.is_clean(viewer.origin());
}

#[test]
fn tasks_are_sorted_filtered_and_paged() {
    let (folder, viewer, mut browser) = both();
    let means = |order: &str| {
        folder.sql(
            "base",
            &format!("select task_index, avg(reward) as mean from rollouts group by 1 order by 2 {order}, 1"),
        )
    };
    let listed = |browser: &mut Browser| -> Vec<String> {
        let column = browser
            .texts("thead th")
            .iter()
            .position(|name| name.starts_with("mean"))
            .unwrap();
        let rows = table(browser, ".scroll").into_iter();
        rows.map(|row| format!("{},{:?}", row[0], row[column].parse::<f64>().unwrap()))
            .collect()
    };
    browser.open(viewer.at("1/tasks"));
    assert!(browser.text().contains(&format!("{TASKS} tasks")));
    assert_eq!(listed(&mut browser), means("asc")[..50]);
    browser.follow("a[rel=next]");
    assert_eq!(listed(&mut browser), means("asc")[50..]);
    browser.follow("th[aria-sort=ascending] a");
    assert_eq!(listed(&mut browser), means("desc")[..50]);
    assert_eq!(browser.texts("th[aria-sort=descending] a"), ["mean"]);

    browser.click("input[name=where]");
    browser.write("mean < 0.5 -- which is little");
    browser.follow_key("Enter");
    let low: Vec<String> = means("desc")
        .into_iter()
        .filter(|row| row.rsplit(',').next().unwrap().parse::<f64>().unwrap() < 0.5)
        .collect();
    assert!(low.len() > 1 && low.len() < 50);
    assert_eq!(listed(&mut browser), low);
    assert!(browser.text().contains(&format!("{} tasks", low.len())));

    browser.open(viewer.at("1/tasks?where=nonsense+%3E+1"));
    let error = browser.texts("[role=alert]").concat();
    assert!(
        error.contains("nonsense") && error.contains("pass_rate"),
        "{error}"
    );
    browser.is_clean(viewer.origin());
}

#[test]
fn a_task_leads_to_its_rollouts_and_keys_from_one_to_the_next() {
    let (folder, viewer, mut browser) = both();
    browser.open(viewer.at("1/tasks/7"));
    assert!(browser.texts("#prompt").concat().contains("What is 8 + 9?"));
    let landed: Vec<Value> = folder
        .landed("base")
        .into_iter()
        .filter(|row| row["task_index"] == 7)
        .collect();
    let rewards: Vec<String> = landed.iter().map(|row| shown(&row["reward"])).collect();
    assert_eq!(browser.texts(".card .reward"), rewards);
    browser.follow("a[rel=next]");
    assert_eq!(browser.texts("h1"), ["Task 8"]);
    browser.follow_key("p");

    browser.follow(".card:nth-child(2) a");
    assert_eq!(browser.texts("h1"), ["Task 7, rollout 1"]);
    browser.follow_key("n");
    assert_eq!(browser.texts("h1"), ["Task 7, rollout 2"]);
    let roles = browser.texts(".item h3, .item summary");
    assert_eq!(roles, ["user", "reasoning", "assistant"]);
    let result = &landed[2]["result"];
    let output = |place: usize, part: &str| {
        result["response"]["output"][place][part][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(
        !browser.text().contains(&output(0, "summary")),
        "the reasoning is not folded"
    );
    browser.click(".reasoning summary");
    browser.until("document.querySelector('.reasoning details').open");
    assert!(
        browser
            .texts(".reasoning")
            .concat()
            .contains(&output(0, "summary"))
    );
    assert!(
        browser
            .texts(".assistant")
            .concat()
            .contains(&output(1, "content"))
    );
    assert!(browser.texts("#attempts tbody").concat().contains("ok"));
    let link = browser.ask("document.querySelector('a[href$=raw]').href");
    let raw: Value = serde_json::from_slice(&get(link.as_str().unwrap())).unwrap();
    assert_eq!(raw, *result);

    browser.follow_key("p");
    assert_eq!(browser.texts("h1"), ["Task 7, rollout 1"]);
    browser.follow_key("u");
    assert_eq!(browser.texts("h1"), ["Task 7"]);
    browser.is_clean(viewer.origin());
}

#[test]
fn a_text_or_a_pattern_is_searched_in_all_runs() {
    let (folder, viewer, mut browser) = both();
    browser.open(viewer.at("1/"));
    browser.press("/");
    browser.until("document.activeElement.name === 'q'");
    browser.write("What is 41 + 42?");
    browser.follow_key("Enter");
    let links = browser.texts(".hit a");
    assert!(
        links.contains(&"base task 40, prompt".to_owned()),
        "{links:?}"
    );
    assert!(
        links.contains(&"other task 40, prompt".to_owned()),
        "{links:?}"
    );
    assert!(
        links.iter().all(|link| link.contains(" task 40, ")),
        "{links:?}"
    );
    assert_eq!(browser.texts("mark")[0], "What is 41 + 42?");

    browser.open(viewer.at("search?q=answer+is+%5B0-4%5D%5C.&regex=1"));
    let query = "select count(*) from rollouts where result like '%answer is _.%' and regexp_like(result, 'answer is [0-4]\\.')";
    let count: usize = ["base", "other"]
        .map(|run| folder.sql(run, query)[0].parse::<usize>().unwrap())
        .iter()
        .sum();
    assert!(count > 1);
    assert_eq!(browser.texts(".hit").len(), count);
    let told = browser.texts(".progress").pop().unwrap();
    assert!(
        told.starts_with(&format!("{count} hits in {}", 2 * (TASKS + ROLLOUTS))),
        "{told}"
    );
    browser.follow(".hit a");
    assert!(browser.texts(".assistant").concat().contains("answer is "));

    browser.open(viewer.at("search?q=%28&regex=1"));
    assert!(
        browser
            .texts("[role=alert]")
            .concat()
            .contains("regular expression")
    );
    browser.open(viewer.at("search?q=%28+nowhere+%28"));
    assert!(browser.texts(".hit").is_empty());
    browser.is_clean(viewer.origin());
}

#[test]
fn two_runs_are_compared_as_the_command_compares_them() {
    let (folder, viewer, mut browser) = both();
    let told = compared(&folder);
    browser.open(viewer.at(""));
    browser.follow("main a[href$=compare]");
    assert!(
        browser
            .texts(".verdict")
            .concat()
            .starts_with("other is better in reward: +")
    );
    let row = table(&mut browser, ".scroll").remove(0);
    let figures = ["base_mean", "candidate_mean", "difference"].map(|name| shown(&told[name]));
    assert_eq!(
        row[2..6],
        [vec![TASKS.to_string()], figures.to_vec()].concat()
    );
    let interval = [&told["ci_low"], &told["ci_high"]].map(shown).join(" … ");
    assert_eq!(
        row[6..],
        [
            interval,
            "<0.0001".into(),
            shown(&told["gained"]),
            shown(&told["lost"])
        ]
    );
    assert_eq!(chart(&mut browser, "Mean reward of each task").len(), TASKS);

    let differing = table(&mut browser, "h2 + .scroll");
    let [task, base, candidate] = [1, 3, 4].map(|place| differing[0][place].clone());
    browser.follow("h2 + .scroll tr:first-child td:last-child a");
    assert_eq!(
        browser.texts(".beside h2"),
        [format!("base, task {task}"), format!("other, task {task}")]
    );
    for (side, mean) in [(1, base), (2, candidate)] {
        let rewards = browser.texts(&format!(".beside section:nth-child({side}) .reward"));
        let sum: f64 = rewards
            .iter()
            .map(|reward| reward.parse::<f64>().unwrap())
            .sum();
        assert_eq!((rewards.len(), sum / 4.0), (4, mean.parse().unwrap()));
    }
    browser.is_clean(viewer.origin());
}

#[test]
fn a_query_is_a_table_a_chart_and_a_file() {
    let (folder, viewer, mut browser) = both();
    let query = "select task_index, avg(turns) as turns from rollouts group by 1 order by 1";
    browser.open(viewer.at("1/sql"));
    browser.ask("document.querySelector('textarea').select()");
    browser.write(query);
    browser.follow("button");
    assert!(
        browser
            .ask("location.search")
            .as_str()
            .unwrap()
            .contains("avg%28turns%29")
    );
    assert_eq!(browser.texts("textarea").len(), 1);
    let rows: Vec<String> = table(&mut browser, ".scroll")
        .iter()
        .map(|row| row.join(","))
        .collect();
    assert_eq!(rows, folder.sql("base", query));
    let bars = chart(&mut browser, "turns");
    let drawn: f64 = bars.iter().map(|bar| last_number(bar)).sum();
    let sum: f64 = rows
        .iter()
        .map(|row| row.split_once(',').unwrap().1.parse::<f64>().unwrap())
        .sum();
    assert!(
        bars.len() == TASKS && (drawn - sum).abs() < 0.01,
        "{drawn} {sum}"
    );

    let mut file = |format: &str| {
        let link = browser.ask(&format!(
            "document.querySelector('a[href*=\"format={format}\"]').href"
        ));
        get(link.as_str().unwrap())
    };
    let csv = String::from_utf8(file("csv")).unwrap();
    assert_eq!(csv.lines().skip(1).collect::<Vec<_>>(), rows);
    std::fs::write(folder.path("answer.parquet"), file("parquet")).unwrap();
    let read = folder.parquet("answer.parquet");
    let read: Vec<String> = read
        .iter()
        .map(|row| format!("{},{:?}", row["task_index"], row["turns"].as_f64().unwrap()))
        .collect();
    assert_eq!(read, rows);

    browser.open(viewer.at("1/sql?q=select+nonsense"));
    assert!(browser.texts("[role=alert]").concat().contains("nonsense"));
    for change in [
        "drop table rollouts",
        "copy rollouts to 'stolen.csv'",
        "create external table t stored as csv location '/etc/passwd'",
    ] {
        let link = viewer.at(&format!(
            "1/sql?q={}",
            change.replace(' ', "+").replace('\'', "%27")
        ));
        browser.open(link);
        assert!(!browser.texts("[role=alert]").is_empty(), "{change}");
    }
    assert!(!folder.has("stolen.csv"));
    browser.is_clean(viewer.origin());
}
