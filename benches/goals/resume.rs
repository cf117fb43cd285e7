//! Resuming a sweep that is nearly done: from the start of the program to the first request that an agent
//! sees, compared with a sweep of which nothing is done; and resuming a finished sweep, compared with queries
//! over the same run. Each is measured in a process of its own, in turns.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rollstream::sim::{Latency, Sim, SimConfig};
use tempfile::TempDir;

use super::Settings;
use super::resume_place::{Place, Resumed, Work};
use crate::common::{FigureOf, Goal, Growth, Report, Usage, millions};

const BASELINE: &str = "nothing done";

const SQL: &str = "rollstream sql";

const TWO_COLUMNS: &str = "two columns";

/// Tasks of the sweep of which nothing is done.
const FEW_TASKS: usize = 10;

/// Time and memory until a resumed sweep sends its first request.
#[derive(Debug, Args)]
pub struct Resume {
    /// Tasks [default: 50000; 1000 with --quick]
    #[arg(long, value_name = "N")]
    pub tasks: Option<usize>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub repeats_of_a_task: usize,
    /// Bytes of an answer
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    pub body_size: usize,
    /// Calls in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    pub concurrency: usize,
    /// Do this in DIRECTORY
    #[arg(long, hide = true, requires = "directory")]
    work: Option<Work>,
    #[arg(long, hide = true)]
    directory: Option<PathBuf>,
}

impl Resume {
    /// What is done in this process.
    pub fn work(&self) -> Option<anyhow::Result<()>> {
        let (work, directory) = (self.work?, self.directory.as_ref()?);
        let done =
            |runtime: tokio::runtime::Runtime| runtime.block_on(work.done_in(self, directory));
        let runtime = tokio::runtime::Runtime::new().map_err(anyhow::Error::from);
        Some(runtime.and_then(done))
    }

    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let sim = SimConfig {
            latency: Latency::Fixed(Duration::ZERO),
            body_size: self.body_size,
            ..SimConfig::default()
        };
        let runtime = tokio::runtime::Runtime::new()?;
        let sim = runtime.block_on(Sim::start(sim))?;
        let tasks = settings.size(self.tasks, 50_000, 1_000);
        let mut growth = Growth::default();
        for tasks in settings.sizes_up_to(tasks) {
            self.measure_size(
                tasks,
                &sim,
                settings.options.repeats_or(2),
                report,
                &mut growth,
            )?;
            report.save(&settings.options)?;
        }
        growth.report("resume", report);
        Ok(())
    }

    fn measure_size(
        &self,
        num_tasks: usize,
        sim: &Sim,
        repeats: usize,
        report: &mut Report,
        growth: &mut Growth,
    ) -> anyhow::Result<()> {
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let nothing = directory.path().join("few");
        let nothing = Place::make(self, &nothing, FEW_TASKS, Work::Begin)?;
        let nearly = directory.path().join("many");
        let nearly = Place::make(self, &nearly, num_tasks, Work::BeginAndFill)?;
        let (mut many, mut few): (Vec<Resumed>, Vec<Resumed>) = (Vec::new(), Vec::new());
        let mut finished: [Vec<Usage>; 3] = Default::default();
        for _ in 0..repeats {
            nearly.restore()?;
            nothing.restore()?;
            many.push(nearly.resume(self, sim)?);
            few.push(nothing.resume(self, sim)?);
            // The sweep is finished now.
            let took = [
                nearly.resume_finished(self, sim)?,
                nearly.sql()?,
                nearly.two_columns(self)?,
            ];
            finished
                .iter_mut()
                .zip(took)
                .for_each(|(all, took)| all.push(took));
        }
        let size = format!("resume, {num_tasks} x {}", self.repeats_of_a_task);
        let case = format!("{size}, 99 % done");
        let figures: [(FigureOf<Resumed>, Option<Goal>); 4] = [
            (
                ("first request", "s", &|of| of.first_request.as_secs_f64()),
                Some(Goal::AtMost(5.0)),
            ),
            (
                ("peak memory then", "MB", &|of| {
                    millions(of.memory_then as f64)
                }),
                None,
            ),
            (
                ("peak memory", "MB", &|of| {
                    millions(of.usage.peak_memory as f64)
                }),
                Some(Goal::AtMost(512.0)),
            ),
            (("CPU", "s", &|of| of.usage.cpu.as_secs_f64()), None),
        ];
        for (figure, goal) in figures {
            let values: Vec<f64> = many.iter().map(figure.2).collect();
            growth.add(figure.0, num_tasks, &values);
            let measured = report.measured(&case, figure, &many, (BASELINE, &few));
            measured.goal = goal;
        }
        let case = format!("{size}, finished");
        let [resumed, sql, columns] = &finished;
        for baseline in [(SQL, &**sql), (TWO_COLUMNS, &**columns)] {
            for figure in Usage::FIGURES {
                report.measured(&case, figure, resumed, baseline);
            }
        }
        Ok(())
    }
}
