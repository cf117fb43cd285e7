use std::io::{self, Write};

use serde_json::json;

use super::args::CheckArgs;
use super::gate::{Gate, gates};
use super::verdict::Verdict;
use crate::cli::Exit;
use crate::cli::exit::unless_gone;
use crate::cli::health::CheckedRun;
use crate::cli::measurement::metric_tables;
use crate::cli::sql::SqlSession;
use crate::error::Error;
use crate::health::HealthOptions;
use crate::session;

/// `rollstream check`: whether runs are as they should be.
pub(in crate::cli) async fn check(args: CheckArgs) -> Result<Exit, Error> {
    let gates: Result<Vec<Vec<Gate>>, Error> =
        args.gates.iter().map(|given| gates(given)).collect();
    let gates = gates?;
    let memory = args.memory.as_usize();
    let is_text = !args.display.quiet && !args.display.json;
    let mut is_read = true;
    let mut verdicts = Vec::new();
    if !gates.is_empty() {
        let metrics = metric_tables(&args.metrics, memory)?;
        let context = session::gathering(memory)?;
        let mut session = SqlSession::open(context, &args.runs, metrics).await?;
        // All gates see the runs at one moment, also when these are being written.
        session.look().await?;
        for gate in gates.into_iter().flatten() {
            let verdict = Verdict::of(gate, &session).await;
            if is_text && is_read {
                is_read = print(&verdict.text()?)?;
            }
            verdicts.push(verdict);
        }
    }
    let mut health = Vec::new();
    for run in args.runs.iter().filter(|_| args.health) {
        let options = HealthOptions {
            ignored: args.ignore_checks.clone(),
            memory,
        };
        let checked = CheckedRun::of(run, &options).await?;
        if is_text && is_read {
            is_read = print(&checked.text())?;
        }
        health.push(checked);
    }
    let passed =
        verdicts.iter().all(Verdict::is_passed) && health.iter().all(CheckedRun::is_passed);
    if args.display.json && !args.display.quiet {
        let gates: Result<Vec<_>, Error> = verdicts.iter().map(Verdict::json).collect();
        let mut document = json!({"gates": gates?, "passed": passed});
        if args.health {
            document["health"] = health.iter().map(CheckedRun::json).collect();
        }
        let document = serde_json::to_string_pretty(&document).map_err(Error::defect)?;
        print(&(document + "\n"))?;
    }
    end(verdicts, passed)
}

/// What cannot be evaluated is worse than a violation: nobody knows what it would have found.
fn end(verdicts: Vec<Verdict>, passed: bool) -> Result<Exit, Error> {
    let mut errors = Vec::new();
    for verdict in verdicts {
        if let Err(error) = verdict.found {
            errors.push((verdict.name, error));
        }
    }
    if errors.is_empty() {
        return Ok(if passed { Exit::Done } else { Exit::Violated });
    }
    let is_wrong = errors.iter().any(|(_, error)| error.exit_code() == 2);
    let texts: Vec<String> = errors
        .iter()
        .map(|(name, error)| format!("gate '{name}': {error}"))
        .collect();
    let text = texts.join("\n");
    Err(if is_wrong {
        Error::Usage(text)
    } else {
        Error::failed("", text)
    })
}

/// Prints a text; says whether somebody reads it.
fn print(text: &str) -> Result<bool, Error> {
    let mut output = io::stdout().lock();
    let written = output.write_all(text.as_bytes());
    let written = written.and_then(|()| output.flush());
    Ok(unless_gone(written.map_err(Into::into))?.is_none())
}
