//! What the lives of all collectors say together: [`tell`].

use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::accounting::Account;
use super::common::{Options, Report, millions, thousands};
use super::process::{Life, Sample, WARM_UP, slope, slope_of_lives};

/// What is measured of a sample.
type Measure = fn(&Sample) -> f64;

/// What is counted of a sweep.
type Count = fn(&Account) -> u64;

/// Prints what each life took, then the figures of all.
pub fn tell(options: &Options, lives: &[Life], accounts: &[Account]) -> anyhow::Result<()> {
    println!("{}", table(lives));
    let mut report = Report::new("soak");
    let rates: Vec<f64> = lives
        .iter()
        .map(|life| life.answered as f64 / life.took.as_secs_f64())
        .collect();
    report.figure("each life", "rate", "rollouts/s", &rates);
    let measures: [(&str, &'static str, Measure); 3] = [
        ("memory", "kB", |sample| sample.memory),
        ("descriptors", "files", |sample| sample.files),
        ("threads", "threads", |sample| sample.threads),
    ];
    for (name, unit, of) in measures {
        growth(&mut report, lives, name, unit, of);
    }
    let peaks: Vec<f64> = lives
        .iter()
        .map(|life| life.most(|sample| sample.peak))
        .collect();
    let in_mb: Vec<f64> = peaks.iter().map(|peak| thousands(*peak)).collect();
    report.figure("each life", "peak memory", "MB", &in_mb);
    // Lives that were too short to warm up say nothing of the others.
    let warm = lives.iter().filter(|life| life.settled().next().is_some());
    let peaks: Vec<f64> = warm.map(|life| life.most(|sample| sample.peak)).collect();
    if let Some(first) = peaks.first() {
        let largest = peaks.iter().copied().fold(0.0, f64::max);
        report.figure(
            "all lives",
            "largest peak to the first",
            "ratio",
            &[largest / first],
        );
    }
    let runs: Vec<f64> = lives
        .iter()
        .map(|life| millions(life.most(|sample| sample.run_bytes)))
        .collect();
    report.figure("each life", "largest size of the run", "MB", &runs);
    let counts: [(&str, Count); 8] = [
        ("planned", |account| account.planned),
        ("done", |account| account.done),
        ("failed", |account| account.failed),
        ("pending", |account| account.pending),
        ("attempts", |account| account.attempts),
        ("requests", |account| account.requests),
        ("interrupted", |account| account.interrupted),
        ("without a request", |account| account.unseen),
    ];
    for (name, of) in counts {
        let values: Vec<f64> = accounts.iter().map(|account| of(account) as f64).collect();
        report.figure("each sweep", name, "rows", &values);
    }
    report.finish(options)?;
    let total = |of: Count| accounts.iter().map(of).sum::<u64>();
    let kills = lives.iter().filter(|life| life.end == "killed").count();
    println!(
        "{} sweeps, {} lives, {kills} kills: {} planned = {} done + {} failed + {} pending; {} requests, {} attempts, \
         {} of them interrupted, {} without a request, {} late",
        accounts.len(),
        lives.len(),
        total(|account| account.planned),
        total(|account| account.done),
        total(|account| account.failed),
        total(|account| account.pending),
        total(|account| account.requests),
        total(|account| account.attempts),
        total(|account| account.interrupted),
        total(|account| account.unseen),
        total(|account| account.late),
    );
    Ok(())
}

/// Whether something stays the same, within lives and from each to the next.
fn growth(report: &mut Report, lives: &[Life], name: &str, unit: &'static str, of: Measure) {
    let age = format!("{} s old", WARM_UP.as_secs());
    let young: Vec<f64> = lives
        .iter()
        .filter_map(|life| life.at(WARM_UP, of))
        .collect();
    report.figure(&age, name, unit, &young);
    let last: Vec<f64> = lives
        .iter()
        .filter_map(|life| life.settled().last().map(of))
        .collect();
    report.figure("at its end", name, unit, &last);
    let slopes: Vec<f64> = lives.iter().filter_map(|life| life.slope(of)).collect();
    let growth = format!("{name}, growth per minute");
    report.figure("each life", &growth, unit, &slopes);
    if let Some(slope) = slope(lives, of) {
        report.figure("all lives", &growth, unit, &[slope]);
    }
    if let Some(slope) = slope_of_lives(lives, of) {
        report.figure("life to life", &format!("{name}, growth"), unit, &[slope]);
    }
}

/// A line for each life.
fn table(lives: &[Life]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "sweep",
        "life",
        "end",
        "s",
        "rollouts/s",
        "MB at 15 s",
        "at 30 s",
        "at 45 s",
        "last",
        "peak",
        "kB/min",
        "files at 15 s",
        "last",
        "most",
        "threads",
        "run MB",
    ]);
    for (number, life) in lives.iter().enumerate() {
        let shown =
            |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.0}"));
        let memory = |sample: &Sample| thousands(sample.memory);
        let files = |sample: &Sample| sample.files;
        let at = |seconds| life.at(Duration::from_secs(seconds), memory);
        let last = life.samples.last();
        let seconds = life.took.as_secs_f64();
        let cells = [
            Some(seconds),
            Some(life.answered as f64 / seconds),
            at(15),
            at(30),
            at(45),
            last.map(memory),
            Some(life.most(|sample| thousands(sample.peak))),
            life.slope(|sample| sample.memory),
            life.at(WARM_UP, files),
            last.map(files),
            Some(life.most(files)),
            Some(life.most(|sample| sample.threads)),
            Some(life.most(|sample| millions(sample.run_bytes))),
        ];
        let names = [
            life.sweep.to_string(),
            number.to_string(),
            life.end.to_owned(),
        ];
        let cells = cells.map(shown);
        let cells = names.into_iter().chain(cells);
        table.add_row(cells.map(|text| Cell::new(text).set_alignment(CellAlignment::Right)));
    }
    table
}
