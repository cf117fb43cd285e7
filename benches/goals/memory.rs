//! Memory that does not grow: the peak of a long sweep beside that of a short one; and that of a single huge answer.

use clap::Args;
use tempfile::TempDir;

use super::Settings;
use crate::common::{Goal, Growth, Report, SimServer, Sweep, Usage, millions, write_tasks};

#[derive(Debug, Args)]
pub struct Memory {
    /// Rollouts of the long sweep [default: 5000000; 500000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Rollouts of the short sweep
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    few_rollouts: usize,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeats_of_a_task: usize,
    /// Size of an answer
    #[arg(long, value_name = "SIZE", default_value = "1KB")]
    body_size: String,
    /// Bytes of the huge answer
    #[arg(long, value_name = "BYTES", default_value_t = 40_000_000)]
    huge: u64,
    /// Calls in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    concurrency: usize,
}

impl Memory {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        self.huge_answer(settings, report)?;
        report.save(&settings.options)?;
        let longest = settings.size(self.rollouts, 5_000_000, 500_000);
        let sizes = if settings.growth {
            settings.sizes_up_to(longest)
        } else {
            vec![self.few_rollouts, longest]
        };
        let mut peaks: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
        let mut usages: Vec<Vec<Usage>> = vec![Vec::new(); sizes.len()];
        for _ in 0..settings.options.repeats_or(1) {
            for ((rollouts, peaks), usages) in sizes.iter().zip(&mut peaks).zip(&mut usages) {
                let usage = self.sweep(
                    *rollouts,
                    self.repeats_of_a_task,
                    &self.body_size,
                    self.concurrency,
                )?;
                peaks.push(millions(usage.peak_memory as f64));
                usages.push(usage);
            }
        }
        let mut growth = Growth::default();
        let short = format!("{} rollouts", sizes.first().copied().unwrap_or_default());
        let of_short = peaks.first().cloned().unwrap_or_default();
        for ((rollouts, peaks), usages) in sizes.iter().zip(&peaks).zip(&usages) {
            let case = format!("memory, {rollouts} rollouts of {}", self.body_size);
            let of = |of: fn(&Usage) -> f64| usages.iter().map(of).collect::<Vec<f64>>();
            let time = of(|usage| usage.wall.as_secs_f64());
            let cpu = of(|usage| usage.cpu.as_secs_f64());
            report
                .compare(&case, "peak memory", "MB", peaks, (&short, &of_short))
                .goal(Goal::RatioAtMost(1.2));
            report.figure(&case, "time", "s", &time);
            report.figure(&case, "CPU", "s", &cpu);
            growth.add("peak memory", *rollouts, peaks);
            growth.add("time", *rollouts, &time);
            growth.add("CPU", *rollouts, &cpu);
        }
        growth.report("memory", report);
        Ok(())
    }

    fn huge_answer(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let (mut huge, mut small) = (Vec::new(), Vec::new());
        for _ in 0..settings.options.repeats() {
            let of_size = |size: u64| self.sweep(1, 1, &format!("{size}B"), 1);
            huge.push(of_size(self.huge)?.peak_memory as f64);
            small.push(of_size(1_000)?.peak_memory as f64);
        }
        let case = format!("memory, one answer of {} MB", millions(self.huge as f64));
        let megabytes = |bytes: &f64| millions(*bytes);
        report.measured(
            &case,
            ("peak memory", "MB", &megabytes),
            &huge,
            ("one of 1 KB", &small),
        );
        let copies = huge
            .iter()
            .zip(&small)
            .map(|(huge, small)| (huge - small) / self.huge as f64);
        report
            .figure(&case, "copies of it", "", &copies.collect::<Vec<f64>>())
            .goal(Goal::AtMost(3.0));
        Ok(())
    }

    fn sweep(
        &self,
        rollouts: usize,
        num_repeats: usize,
        body_size: &str,
        concurrency: usize,
    ) -> anyhow::Result<Usage> {
        let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", body_size])?;
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let input = directory.path().join("tasks.jsonl");
        let num_tasks = rollouts.div_ceil(num_repeats);
        write_tasks(&input, num_tasks)?;
        let sweep = Sweep {
            input: &input,
            run: &directory.path().join("run"),
            agents: &[("sim", sim.agent_url())],
            num_rollouts: num_tasks * num_repeats,
            num_repeats,
            concurrency,
            flags: &[],
        };
        sweep.run()
    }
}
