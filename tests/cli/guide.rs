//! The README and the guide pages: every command is run, in the order of its page, and prints what the page shows.
//! `ROLLSTREAM_UPDATE_GUIDE=1` writes what the commands print now into the pages.
//!
//! Each page has a folder of its own, with the repository's `tests` in it and an S3 server behind the `AWS_` variables:
//!
//! | block | what happens |
//! |---|---|
//! | `sh` | every command must succeed |
//! | `console` | the lines below `$ COMMAND` are what it prints; `...` stands for anything, also for lines |
//! | `toml`, `yaml`, `sql`, `python` | becomes a file, whose path is the comment in the first line |
//! | `text`, `rust` | nothing: the one is for readers, the other a documentation test |
//!
//! A table cell that is a command is run too, and every path in a table headed `file` must exist at the end. A command
//! may fail if the next one is `echo $?`; one that ends with ` &` runs until the end of the page. Ports of 127.0.0.1 are
//! replaced by free ones.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use regex::{Captures, Regex};
use rollstream::guide::{PAGES, page};
use rollstream::schema;
use rollstream::sim::SimConfig;

use crate::common::{Folder, Program, Running, Simulated, instant, sums};
use crate::s3_server::{ACCESS_KEY, S3Server, SECRET_KEY};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Commands that are not run: the page, how they begin, and why.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README", "cargo ", "builds, and runs these tests"),
    ("sql", "python3 ", "needs DuckDB and pandas"),
    ("extending", "python3.13 ", "installs NeMo Gym"),
    ("extending", "ROLLSTREAM_NEMO_GYM=", "needs NeMo Gym"),
    ("extending", "cargo bench ", "takes an hour"),
    ("extending", "CARGO_PROFILE_", "builds"),
    ("extending", "perf ", "needs perf"),
    ("extending", "valgrind ", "needs valgrind"),
];

/// What differs from run to run, and what stands for it in a comparison.
static MASKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let masks = [
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"( - +(\d+|-) +)[\d,.]+ ", "$1 RATE "),
        (r"[\d.,]+ rollouts/s", "RATE"),
        (r"died (\S+): \d+ of (\d+ rollouts).*", "died $1 of $2"),
        (r"\b(\d+(\.\d+)? ?(ms|s|m|h) ?)+\b", "TIME"),
        (r"[ \t]+", " "),
        (r"([-─═+┼┬┴])[-─═+┼┬┴]+", "$1"),
    ];
    let compiled = masks.map(|(pattern, mask)| (Regex::new(pattern).unwrap(), mask));
    compiled.into()
});

static PORT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(127\.0\.0\.1:|port )(\d{4,5})\b").unwrap());

macro_rules! pages {
    ($($test:ident $page:literal)*) => {
        $(#[test] fn $test() { try_page($page); })*
        const TRIED: &[&str] = &[$($page),*];
    };
}

pages! {
    readme "README"
    collecting "collecting"
    resuming "resuming"
    agents "agents"
    native "native"
    metrics "metrics"
    viewing "viewing"
    comparing "comparing"
    sql "sql"
    gates "gates"
    object_stores "object-stores"
    cluster "cluster"
    deploying "deploying"
    nemo_gym "nemo-gym"
    operating "operating"
    extending "extending"
}

/// Runs a page, and fails with all that is wrong with it.
fn try_page(page: &'static str) {
    let folder = if page == "README" { "" } else { "src/guide" };
    let path = Path::new(ROOT).join(folder).join(format!("{page}.md"));
    let text = fs::read_to_string(&path).unwrap();
    let mut session = Session::start(page);
    let mut updated = String::new();
    let mut promised = Vec::new();
    let mut lines = text.lines();
    let mut names_files = false;
    while let Some(line) = lines.next() {
        updated.push_str(line);
        updated.push('\n');
        names_files = line.starts_with("| file") || (names_files && line.starts_with('|'));
        if let Some(kind) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            updated.push_str(&session.block(kind, &block));
            updated.push_str("```\n");
        } else if line.starts_with('|') {
            let mut cells = line.split(" | ").map(code);
            if names_files {
                promised.extend(cells.next().flatten());
            }
            for command in cells.flatten() {
                if command.starts_with("rollstream ") {
                    session.run(command, None, false);
                }
            }
        }
    }
    for path in promised {
        if !session.folder.has(path) {
            session.wrong.push(format!("there is no {path}"));
        }
    }
    for (_, command, reason) in NOT_RUN.iter().filter(|(on, ..)| *on == page) {
        println!("{page}: not run: {command}: {reason}");
        let used = session.skipped.contains(command);
        assert!(used, "{page} has no command that begins with '{command}'");
    }
    if env::var_os("ROLLSTREAM_UPDATE_GUIDE").is_some() && updated != text {
        fs::write(&path, updated).unwrap();
    }
    assert!(
        session.wrong.is_empty(),
        "{page}: {}",
        session.wrong.join("\n\n")
    );
}

/// The content of a table cell that is code alone.
fn code(cell: &str) -> Option<&str> {
    let cell = cell.trim_matches(['|', ' ']);
    cell.strip_prefix('`')?
        .strip_suffix('`')
        .filter(|code| !code.contains('`'))
}

/// A page at work.
struct Session {
    page: &'static str,
    folder: Folder,
    _store: S3Server,
    environment: Vec<(String, String)>,
    /// Ports that the page names, and the free ones in their place.
    ports: BTreeMap<String, u16>,
    background: Vec<Running>,
    exit_code: i32,
    skipped: Vec<&'static str>,
    wrong: Vec<String>,
}

impl Session {
    fn start(page: &'static str) -> Self {
        let folder = Folder::new();
        symlink(Path::new(ROOT).join("tests"), folder.path("tests")).unwrap();
        let store = S3Server::start();
        let programs = Path::new(env!("CARGO_BIN_EXE_rollstream")).parent();
        let path = format!(
            "{}:{}",
            programs.unwrap().display(),
            env::var("PATH").unwrap()
        );
        let endpoint = format!("http://{}", store.address());
        let environment = [
            ("PATH", path.as_str()),
            ("AWS_ENDPOINT", &endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            page,
            folder,
            _store: store,
            environment: environment.into(),
            ports: BTreeMap::new(),
            background: Vec::new(),
            exit_code: 0,
            skipped: Vec::new(),
            wrong: Vec::new(),
        }
    }

    /// Does what a block asks for, and returns its lines with what was printed.
    fn block(&mut self, kind: &str, lines: &[&str]) -> String {
        match kind {
            "sh" => return self.commands("", lines),
            "console" => return self.commands("$ ", lines),
            "toml" | "yaml" | "sql" | "python" => {
                let path = self
                    .folder
                    .path(lines[0].trim_start_matches(['#', '-', ' ']));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let text = self.with_free_ports(&lines.join("\n"));
                fs::write(path, text + "\n").unwrap();
            }
            kind => {
                let is_passive = kind == "text" || kind.starts_with("rust");
                assert!(is_passive, "{}: {kind}", self.page);
            }
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Runs commands, which begin with `prompt`. Only if there is one, their output stands below them.
    fn commands(&mut self, prompt: &str, lines: &[&str]) -> String {
        let mut updated = String::new();
        let mut lines = lines.iter().copied().peekable();
        while let Some(first) = lines.next() {
            let command = whole(first.strip_prefix(prompt).unwrap(), &mut lines);
            let mut expected = String::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with(prompt)) {
                expected.push_str(line);
                expected.push('\n');
            }
            let may_fail = lines.peek() == Some(&"$ echo $?");
            let shown = Some(expected.as_str()).filter(|_| !prompt.is_empty());
            let printed = self.run(&command, shown, may_fail);
            updated.push_str(&format!("{prompt}{command}\n{printed}"));
        }
        updated
    }

    /// Runs a command and returns what it printed: as the page has it, unless that is wrong.
    fn run(&mut self, command: &str, expected: Option<&str>, may_fail: bool) -> String {
        let kept = expected.unwrap_or_default().to_owned();
        let skipped = |(page, start, _): &&(&str, &str, &str)| {
            *page == self.page && command.starts_with(start)
        };
        if let Some((_, start, _)) = NOT_RUN.iter().find(skipped) {
            self.skipped.push(start);
            return kept;
        }
        let line = self.with_free_ports(command);
        if let Some((name, value)) = line
            .strip_prefix("export ")
            .and_then(|line| line.split_once('='))
        {
            self.environment.push((name.to_owned(), value.to_owned()));
            return kept;
        }
        let printed = if let Some(server) = line.strip_suffix(" &") {
            // The simulation prints where it listens, in one piece.
            let running = self.shell(&format!("exec {server}")).start();
            let lines = 0..kept.lines().count().max(1);
            let printed = lines.map(|_| running.until_it_prints("")).collect();
            self.background.push(running);
            printed
        } else {
            let ended = self
                .shell(&format!("(exit {})\n{line}", self.exit_code))
                .run();
            self.exit_code = ended.code.unwrap();
            if self.exit_code != 0 && !may_fail {
                let complaint = format!(
                    "$ {command}\nexit code {}\n{}",
                    self.exit_code, ended.stderr
                );
                self.wrong.push(complaint);
            }
            let stderr = ended.stderr.lines();
            let error = stderr.skip_while(|line| !line.starts_with("error: "));
            let error: String = error.map(|line| format!("{line}\n")).collect();
            ended.stdout + &error
        };
        let lines = printed.trim_end().lines();
        let lines = lines.map(|line| self.with_named_ports(line.trim_end()) + "\n");
        let printed: String = lines.collect();
        if expected.is_none_or(|expected| matches(expected, &printed)) {
            return kept;
        }
        self.wrong
            .push(format!("$ {command}\nprints\n{printed}and not\n{kept}"));
        printed
    }

    /// A shell in the page's folder, with the program in its path.
    fn shell(&self, line: &str) -> Program {
        let shell = Program::shell(&self.folder.path(""), line);
        let environment = self.environment.iter();
        environment.fold(shell, |shell, (name, value)| shell.env(name, value))
    }

    fn with_free_ports(&mut self, text: &str) -> String {
        // Where the head server listens unless it is told otherwise.
        let text = if text.starts_with("rollstream sim ") && !text.contains(" --port ") {
            text.replacen("sim ", "sim --port 11000 ", 1)
        } else {
            text.to_owned()
        };
        let free = |found: &Captures| {
            let port = self
                .ports
                .entry(found[2].to_owned())
                .or_insert_with(free_port);
            format!("{}{port}", &found[1])
        };
        PORT.replace_all(&text, free).into_owned()
    }

    fn with_named_ports(&self, text: &str) -> String {
        let ports = self.ports.iter();
        ports.fold(text.to_owned(), |text, (name, port)| {
            text.replace(&format!(":{port}"), &format!(":{name}"))
        })
    }
}

/// A port that nobody listens on, outside of the range from which the system takes ports for connections.
fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() * 61;
    let ports = std::iter::repeat_with(|| first + u32::from(TRIED.fetch_add(1, Ordering::Relaxed)));
    let mut ports = ports.map(|port| u16::try_from(10_000 + port % 20_000).unwrap());
    ports
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

/// A command from its first line on: up to the line that closes its quotes and ends with no backslash.
fn whole<'a>(first: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut command = first.to_owned();
    while command.ends_with('\\') || has_open_quote(&command) {
        command.push('\n');
        command.push_str(lines.next().unwrap());
    }
    command
}

fn has_open_quote(command: &str) -> bool {
    let mut open = None;
    for letter in command.chars().filter(|letter| "'\"".contains(*letter)) {
        match open {
            None => open = Some(letter),
            Some(quote) if quote == letter => open = None,
            Some(_) => {}
        }
    }
    open.is_some()
}

/// Whether a command printed what its page shows.
fn matches(expected: &str, printed: &str) -> bool {
    let masked = |text: &str| {
        let masks = MASKS.iter();
        masks.fold(text.to_owned(), |text, (pattern, mask)| {
            pattern.replace_all(&text, *mask).into_owned()
        })
    };
    let lines = expected.lines().map(|line| match line.trim() {
        "..." => "(.*\n)*".to_owned(),
        line => regex::escape(&masked(line)).replace(r"\.\.\.", ".*") + "\n",
    });
    let pattern = format!("^{}$", lines.collect::<String>());
    let trimmed: String = masked(printed)
        .lines()
        .map(|line| line.trim().to_owned() + "\n")
        .collect();
    Regex::new(&pattern).unwrap().is_match(&trimmed)
}

#[test]
fn every_topic_is_tried_and_listed_and_printed_as_it_stands() {
    let folder = Folder::new();
    let help = folder.rollstream("help").run().succeeded().stdout;
    for (topic, text) in PAGES {
        let printed = folder
            .rollstream("help")
            .args(topic)
            .run()
            .succeeded()
            .stdout;
        assert_eq!(printed, *text);
        assert!(help.contains(&format!("\n  {topic} ")), "{topic}: {help}");
        assert!(TRIED.contains(topic), "{topic}");
    }
    let help = folder.rollstream("help collect").run().succeeded().stdout;
    assert!(help.contains("--input"));
    folder.rollstream("help nothing-known").run().exited_with(2);
}

#[test]
fn every_column_is_explained() {
    let text = page("sql").unwrap();
    let tables = [
        schema::tasks(),
        schema::rollouts(),
        schema::attempts(),
        schema::calls(),
    ];
    for field in tables.iter().flat_map(|table| table.fields()) {
        assert!(text.contains(&format!("`{}`", field.name())), "{field}");
    }
}

// NeMo Gym's keys are taken, no more than noted, or refused, as the guide says.
#[test]
fn every_key_of_nemo_gym_is_what_its_page_says() {
    let tasks = sums(3).into_iter().map(|task| task.for_agent("sim"));
    let folder = Folder::with_tasks(tasks);
    let sim = Simulated::start(SimConfig {
        gym: "0.7".parse().unwrap(),
        ..instant(["sim"])
    });
    let help = folder.rollstream("collect --help").run().succeeded().stdout;
    let text = page("nemo-gym").unwrap();
    let (_, keys) = text.split_once("\n| key | ").unwrap();
    let rows = keys.lines().skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let rows: Vec<(&str, &str)> = rows.map(|row| row.split_once(" | ").unwrap()).collect();
    assert!(rows.len() >= 38, "{rows:?}");
    assert!(text.matches("\n| `results/").count() >= 12, "{text}");
    folder.write("prompt.yaml", "user: '{question}'\n");
    folder.write(
        "bare.jsonl",
        "{\"question\": \"What is 1 + 1?\", \"agent_ref\": {\"name\": \"sim\"}}\n",
    );
    for (key, what) in rows {
        let key = code(key).unwrap();
        // A prompt takes the place of the input that the other rows bring.
        let tasks = if key.starts_with("prompt_config") {
            "bare"
        } else {
            "tasks"
        };
        let ended = folder
            .rollstream("plan +output_jsonl_fpath=results/x.jsonl")
            .args(&sim.options())
            .arg(format!("+input_jsonl_fpath={tasks}.jsonl"))
            .arg(format!("+{key}"))
            .run();
        let is_well = ended.code == Some(0);
        let text = ended.stdout + &ended.stderr;
        let name = key.split('=').next().unwrap();
        match what.split(':').next().unwrap() {
            "refused" => assert!(!is_well && text.contains(name), "{key}: {text}"),
            "happens anyway" => assert!(is_well && text.contains(name), "{key}: {text}"),
            _ => assert!(is_well && !text.contains("unknown"), "{key}: {text}"),
        }
        let flags = what.split('`').filter(|part| part.starts_with("--"));
        for flag in flags.map(|flag| flag.split(' ').next().unwrap()) {
            assert!(help.contains(flag), "{flag}");
        }
    }
}
