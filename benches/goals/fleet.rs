//! A large sweep on a cluster, in virtual time: requests to the store, the tail, and what it costs. A small real sweep
//! beside the same one in the model says how far the model can be believed.
//!
//! ```sh
//! cargo bench --features cluster --bench goals -- fleet
//! ```

use std::thread::available_parallelism;

use anyhow::Context;
use clap::Args;
use tempfile::TempDir;

use super::Settings;
use super::fleet_model::{Model, Outcome, seconds};
use super::fleet_store::Asked;
use crate::common::{Child, Goal, Report, SimServer, check_done, rollstream, write_tasks};
use crate::s3_server::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};

/// A prefix of a bucket of S3 takes so many puts in a second.
const MOST_PUTS: f64 = 3500.0;

/// A driver that looks for longer is dead to its executors, in seconds.
const LEASE: f64 = 60.0;

/// A simulated sweep of many executors.
#[derive(Debug, Args)]
pub struct Fleet {
    #[command(flatten)]
    model: Model,
    /// Rollouts [default: 100000000; 1000000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Dollars of 1,000 puts, posts or listings
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.005)]
    put_price: f64,
    /// Dollars of 1,000 gets
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.0004)]
    get_price: f64,
}

impl Fleet {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        if cfg!(feature = "cluster") {
            calibrate(settings, report)?;
            report.save(&settings.options)?;
        } else {
            report.note("fleet: the real sweep beside the model needs --features cluster");
        }
        let rollouts = settings.size(self.rollouts, 100_000_000, 1_000_000) as u64;
        let executors = self.model.executors;
        for (what, slow) in [("alike", 0), ("some slow", executors.div_ceil(20))] {
            let model = Model {
                rollouts,
                slow,
                ..self.model.clone()
            };
            let case = format!("fleet of {executors}, {rollouts} rollouts, {what}");
            self.show(&case, &model.run(), report);
            report.save(&settings.options)?;
        }
        Ok(())
    }

    fn show(&self, case: &str, outcome: &Outcome, report: &mut Report) {
        let end = seconds(outcome.end);
        let ideal = ("all calls in use", &[seconds(outcome.ideal)][..]);
        report.compare(case, "time", "s", &[end], ideal);
        report.figure(case, "tail", "s", &[seconds(outcome.tail)]);
        let Asked(puts, lists, gets) = outcome.store.total();
        let worst = outcome.store.asked.iter().map(|asked| asked.0).max();
        let worst = worst.unwrap_or_default() as f64;
        report.figure(case, "puts", "/s", &[puts as f64 / end]);
        let puts_at_worst = report.figure(case, "puts at worst", "/s", &[worst]);
        puts_at_worst.goal(Goal::AtMost(MOST_PUTS));
        report.figure(case, "listings", "/s", &[lists as f64 / end]);
        report.figure(case, "gets", "/s", &[gets as f64 / end]);
        let look = report.figure(case, "look of the driver", "s", &[seconds(outcome.look)]);
        look.goal(Goal::AtMost(LEASE));
        report.figure(case, "parts", "", &[outcome.store.parts as f64]);
        let dollars = (puts + lists) as f64 * self.put_price + gets as f64 * self.get_price;
        report.figure(case, "requests", "$", &[dollars / 1000.0]);
        let hours = end * self.model.executors as f64 / 3600.0;
        report.figure(case, "time of the executors", "h", &[hours]);
    }
}

/// Counts what a sweep on this machine asks of a store, beside the model of the same sweep.
fn calibrate(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let rollouts = settings.size(None, 8_000, 2_000);
    let latency = "lognormal:200ms,0.5";
    let model = Model {
        executors: 4,
        slots: 1,
        cores: available_parallelism().map_or(1, usize::from),
        calls: 16,
        latency: latency.parse().map_err(anyhow::Error::msg)?,
        repeats_of_a_task: 4,
        answer_bytes: 1024.0,
        round_trip_ms: 5,
        claims: false,
        rollouts: rollouts as u64,
        slow: 0,
    };
    let store = S3Server::start();
    let sim = SimServer::start(&["--latency", latency, "--body-size", "1KB"])?;
    let directory = TempDir::with_prefix("rollstream-bench-")?;
    let input = directory.path().join("tasks.jsonl");
    write_tasks(&input, rollouts / 4)?;
    let mut command = rollstream();
    command.args(["collect", "--json", "--cluster", "local:4"]);
    command.args(["--concurrency", "64", "--num-repeats", "4"]);
    command.args(["--output", &format!("s3://{BUCKET}/run")]);
    command.args(["--agent-url", &format!("sim={}", sim.agent_url())]);
    command.arg("--input").arg(&input);
    command.env("ROLLSTREAM_STATE_DIR", directory.path().join("state"));
    command.env("AWS_ENDPOINT", format!("http://{}", store.address()));
    command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
    command.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    command.envs([("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "us-east-1")]);
    let (output, usage) = Child::start(&mut command)?.finish()?;
    check_done(&output, rollouts).context("the sweep on the S3 server")?;
    let requests = store.requests();
    let real = |actions: &[&str]| -> f64 {
        let counted = actions.iter().filter_map(|action| requests.get(*action));
        counted.map(|count| *count as f64).sum()
    };
    let outcome = model.run();
    let Asked(puts, lists, gets) = outcome.store.total();
    let case = format!("model of 4 executors, {rollouts} rollouts");
    for (figure, unit, model, real) in [
        ("time", "s", seconds(outcome.end), usage.wall.as_secs_f64()),
        ("puts", "", puts as f64, real(&["PUT", "POST"])),
        ("listings", "", lists as f64, real(&["LIST"])),
        ("gets", "", gets as f64, real(&["GET", "HEAD"])),
    ] {
        report.compare(&case, figure, unit, &[model], ("the program", &[real]));
    }
    Ok(())
}
