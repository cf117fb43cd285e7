//! What the metric families say of themselves.

use serde_json::Value;

use crate::common::Folder;

const COST: &str = "-- What it costs. In dollars.\n--\n-- Parameters:\n--   price = 0.5   of a token\n\
                    -- Columns:\n--   cost   all of it\nSELECT sum(output_tokens) * $price AS cost FROM rollouts\n";

fn metrics(folder: &Folder, options: &str) -> String {
    let ended = folder.rollstream("metrics").args(options).run().succeeded();
    assert_eq!(ended.stderr, "");
    ended.stdout
}

#[test]
fn families_are_listed_with_those_of_a_folder() {
    let folder = Folder::new();
    let built_in = metrics(&folder, "");
    for line in [
        "agent_statistics",
        "task_statistics",
        "  parameters: answer_key = ''",
    ] {
        assert!(built_in.lines().any(|found| found == line), "{built_in}");
    }
    std::fs::create_dir(folder.path("mine")).unwrap();
    folder.write("mine/cost.sql", COST);
    folder.write("mine/silent.sql", "SELECT 1 AS one");
    let all = metrics(&folder, "--queries mine");
    assert!(
        all.contains(
            "cost (mine/cost.sql)\n  What it costs.\n  parameters: price = 0.5\n  columns: cost\n"
        ),
        "{all}"
    );
    assert!(all.contains("\nsilent (mine/silent.sql)\n"), "{all}");
    let names: Value = serde_json::from_str(&metrics(&folder, "--queries mine --json")).unwrap();
    let names: Vec<&str> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|family| family["name"].as_str().unwrap())
        .collect();
    assert!(names.is_sorted() && names.contains(&"cost") && names.contains(&"agent_statistics"));
}

#[test]
fn one_family_is_shown_whole() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("mine")).unwrap();
    folder.write("mine/cost.sql", COST);
    let shown = metrics(&folder, "cost --queries mine");
    assert!(shown.contains("\nWhat it costs. In dollars.\n"), "{shown}");
    assert!(!shown.contains("SELECT"), "{shown}");
    assert!(metrics(&folder, "cost --queries mine --sql").ends_with(COST));
    let shown: Value =
        serde_json::from_str(&metrics(&folder, "cost --queries mine --sql --json")).unwrap();
    assert_eq!(shown["parameters"][0]["default"], 0.5);
    assert_eq!(shown["columns"][0]["name"], "cost");
    assert_eq!(shown["sql"], COST);
    assert_eq!(shown["path"], "mine/cost.sql");
}

#[test]
fn what_is_not_there_is_said_to_be_missing() {
    let folder = Folder::new();
    let ended = folder.rollstream("metrics nothing").run().exited_with(2);
    ended.complaining(&["no metric family 'nothing'", "agent_statistics"]);
    let ended = folder.rollstream("metrics --queries nowhere").run();
    ended
        .exited_with(2)
        .complaining(&["'nowhere' cannot be read"]);
}
