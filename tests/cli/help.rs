//! The texts of the command line itself.

use crate::common::Folder;

#[test]
fn help_names_the_commands_and_the_exit_codes() {
    insta::assert_snapshot!(Folder::new().rollstream("--help").run().succeeded().stdout);
}

#[test]
fn the_help_of_collect_names_every_option() {
    insta::assert_snapshot!(
        Folder::new()
            .rollstream("collect --help")
            .run()
            .succeeded()
            .stdout
    );
}

#[test]
fn the_version_is_that_of_the_package() {
    let ended = Folder::new().rollstream("--version").run().succeeded();
    assert_eq!(
        ended.stdout,
        format!("rollstream {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_what_is_wrong() {
    for (line, parts) in [
        ("collekt", ["unrecognized subcommand 'collekt'", "collect"]),
        (
            "collect --inptu x",
            ["unexpected argument '--inptu'", "--input"],
        ),
        (
            "collect --agent sim -o run",
            ["the input is missing", "--input"],
        ),
        ("collect --concurrency 0", ["--concurrency", "at least 1"]),
        ("sql", ["required", "RUN"]),
        ("sql run -o x", ["required", "--command"]),
        ("sql run -c 1 --format xml", ["'xml'", "ndjson"]),
        ("completions tcsh", ["'tcsh'", "fish"]),
    ] {
        Folder::new()
            .rollstream(line)
            .run()
            .exited_with(2)
            .complaining(&parts);
    }
}

#[test]
fn shells_learn_the_commands_and_options() {
    for (shell, beginning) in [
        ("bash", "_rollstream()"),
        ("zsh", "#compdef rollstream"),
        ("fish", "complete -c rollstream"),
    ] {
        let script = Folder::new()
            .rollstream("completions")
            .args(shell)
            .run()
            .succeeded()
            .stdout;
        assert!(script.contains(beginning), "{shell}: {script}");
        assert!(
            script.contains("num-repeats-add-seed") && script.contains("completions"),
            "{shell}: {script}"
        );
    }
}

/// Examples can be copied from a narrow terminal, and no paragraph is broken twice.
#[test]
fn examples_and_paragraphs_fit_a_terminal_of_80_columns() {
    for command in [
        "aggregate",
        "check",
        "collect",
        "compare",
        "export",
        "import",
        "ls",
        "metrics",
        "profile",
        "resume",
        "show",
        "sql",
        "status",
    ] {
        let folder = Folder::new();
        let help = |columns: &str| {
            let help = folder.rollstream(&format!("{command} -h"));
            help.env("COLUMNS", columns).run().succeeded().stdout
        };
        let (narrow, wide) = (help("80"), help("110"));
        let (_, narrow) = narrow.split_once("\nExamples:\n").unwrap();
        let (_, wide) = wide.split_once("\nExamples:\n").unwrap();
        let (examples, prose) = narrow.split_once("\n\n").unwrap_or((narrow, ""));
        assert!(wide.starts_with(examples.trim_end()), "{command}: {narrow}");
        // A line ends where the next word had no room, or with its paragraph.
        for paragraph in prose.split("\n\n").filter(|text| !text.contains("\n  ")) {
            let lines: Vec<&str> = paragraph.trim_end().lines().collect();
            for pair in lines.windows(2) {
                let next = pair[1].split(' ').next().unwrap();
                assert!(pair[0].len() + next.len() >= 79, "{command}: {paragraph}");
            }
        }
    }
}
