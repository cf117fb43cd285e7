//! Compares what comes of the cases below a folder with what NeMo Gym made of them: one line a case.
//!
//! The folder is `ROLLSTREAM_CONFORMANCE`, or `tests/conformance`; its README says what a case is.
//! `cargo test --test conformance -- preprocess/2` runs the cases whose names hold that text.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[path = "conformance_suites/mod.rs"]
mod suites;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use suites::{Case, Outcome};

fn main() -> ExitCode {
    let root = env::var_os("ROLLSTREAM_CONFORMANCE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance"),
        PathBuf::from,
    );
    let filters: Vec<String> = env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut errors: BTreeMap<String, usize> = BTreeMap::new();
    for (name, directory) in cases(&root) {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter)) {
            continue;
        }
        for case in read(&directory) {
            let name = format!("{name} by {}", case.rules.version);
            *errors.entry(case.suite().to_owned()).or_default() +=
                usize::from(case.expects_error());
            let outcome = on_large_stack(move || suites::run(&case))
                .unwrap_or_else(|_| Err("the test itself broke down".into()));
            match outcome {
                Ok(Outcome::Passed) => {
                    passed += 1;
                    println!("ok       {name}");
                }
                Ok(Outcome::NotSupported(reason)) => {
                    skipped += 1;
                    println!("skipped  {name} ({reason})");
                }
                Err(why) => {
                    failed += 1;
                    println!("FAILED   {name}\n{}", indented(&why));
                }
            }
        }
    }
    println!("\nexpected errors compared: {errors:?}");
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    // A folder without cases must not look like a success.
    if failed > 0 || (passed == 0 && filters.is_empty()) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Every folder with a `case.json`, named by suite and case, in order.
fn cases(root: &Path) -> Vec<(String, PathBuf)> {
    let mut cases = Vec::new();
    for suite in folders(root) {
        for directory in folders(&suite) {
            if directory.join("case.json").is_file() {
                let name = directory
                    .strip_prefix(root)
                    .unwrap_or(&directory)
                    .display()
                    .to_string();
                cases.push((name, directory));
            }
        }
    }
    cases.sort();
    cases
}

fn folders(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

fn read(directory: &Path) -> Vec<Case> {
    // Errors name the case by its absolute path.
    let directory = fs::canonicalize(directory).expect("a case's folder");
    let text = fs::read_to_string(directory.join("case.json")).expect("case.json");
    Case::all(
        &directory,
        &serde_json::from_str(&text).expect("case.json is JSON"),
    )
}

/// Cases nest JSON deeply, and the comparison is recursive.
fn on_large_stack<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::Result<T> {
    let thread = thread::Builder::new().stack_size(256 << 20).spawn(work);
    thread.expect("a thread").join()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
