//! The rules of the map in `lib.rs`: who may import whom.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules by name, each with a set of other modules.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The steps of a sweep: none imports another.
const STEPS: [&str; 6] = ["read", "expand", "run", "land", "measure", "show"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.ends_with("tests") || path.ends_with("tests.rs");
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !is_test {
            found.push(path);
        }
    }
}

/// The lines of a file that are neither comments nor part of its `mod tests`.
fn product(text: &str) -> impl Iterator<Item = &str> {
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    let lines = text[..end].lines().map(str::trim_start);
    lines.filter(|line| !line.starts_with("//"))
}

fn module_of(path: &Path) -> String {
    let mut parts = path.strip_prefix("src").unwrap().iter();
    let first = parts.next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// What each module imports, as the code has it.
fn of_the_code() -> Imports {
    let mut files = Vec::new();
    sources(Path::new("src"), &mut files);
    let mut imports = Imports::new();
    for file in files {
        let module = module_of(&file);
        if ["lib", "main"].contains(&&*module) {
            continue;
        }
        let imported = imports.entry(module.clone()).or_default();
        for line in product(&fs::read_to_string(&file).unwrap()) {
            for rest in line.split("crate::").skip(1) {
                let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
                let name = &rest[..end.unwrap_or(rest.len())];
                assert!(!name.is_empty(), "{}: {line}", file.display());
                if name != module {
                    imported.insert(name.to_owned());
                }
            }
        }
    }
    imports
}

/// The modules in the order of the map in `lib.rs`: the names in backquotes in the first column of its table.
fn map() -> Vec<String> {
    let library = fs::read_to_string("src/lib.rs").unwrap();
    let rows = library
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "));
    let modules = rows.filter_map(|row| row.split('|').next());
    let names = |cell: &str| -> Vec<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    modules.flat_map(names).collect()
}

#[test]
fn a_module_imports_only_what_stands_before_it_on_the_map() {
    let (imports, map) = (of_the_code(), map());
    let on_the_map: BTreeSet<&String> = map.iter().collect();
    assert_eq!(on_the_map, imports.keys().collect::<BTreeSet<_>>());
    let place = |name: &String| map.iter().position(|module| module == name);
    for (module, imported) in &imports {
        let later: Vec<&String> = imported
            .iter()
            .filter(|name| place(name) >= place(module))
            .collect();
        assert_eq!(later, Vec::<&String>::new(), "{module} imports these");
    }
}

#[test]
fn steps_do_not_import_each_other_and_only_the_top_imports_the_top() {
    for (module, imported) in of_the_code() {
        for step in STEPS.into_iter().filter(|_| STEPS.contains(&&*module)) {
            assert!(!imported.contains(step), "{module} imports {step}");
        }
        for top in ["cli", "show", "sweep", "sim"] {
            let is_allowed = !imported.contains(top)
                || module == "cli"
                || [("show", "view"), ("sweep", "cluster")].contains(&(top, &*module));
            assert!(is_allowed, "{module} imports {top}");
        }
    }
}

#[test]
fn what_everybody_uses_imports_nothing_of_ours() {
    let code = of_the_code();
    for module in ["schema", "error", "retry", "gym", "json"] {
        assert_eq!(code[module], BTreeSet::new(), "{module}");
    }
}

#[test]
fn agents_know_nothing_of_the_engine() {
    let mut files = Vec::new();
    for module in ["agent", "environment", "model"] {
        sources(&Path::new("src").join(module), &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let engine = product(&text).find(|line| line.contains("datafusion::"));
        assert_eq!(engine, None, "{}", file.display());
    }
}
