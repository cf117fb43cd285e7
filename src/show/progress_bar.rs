//! The progress of a sweep while it runs: the progress bar on a terminal, a line every few seconds, or JSON events.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::report::event;
use super::text;
use crate::progress::{AgentProgress, Progress};
use crate::report::AgentMetric;

/// Most agents that get a line of their own on a terminal.
const MAX_AGENTS: usize = 12;

/// Most metrics that are shown while a sweep runs.
const MAX_METRICS: usize = 12;

/// Time constant of the smoothed rate, in seconds.
const SMOOTHING: f64 = 10.0;

/// The newest metrics of a running sweep.
type LiveMetrics = watch::Receiver<Arc<[AgentMetric]>>;

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressMode {
    /// Not at all.
    Quiet,
    /// Bars that move, on standard error.
    Terminal {
        /// With colours.
        colors: bool,
    },
    /// A line every few seconds, on standard error.
    Lines,
    /// JSON events, one a line, on standard output.
    Json,
}

/// Shows the progress of a sweep until it is finished or dropped.
#[derive(Debug)]
pub struct ProgressDisplay {
    task: JoinSet<()>,
    progress: Arc<Progress>,
    mode: ProgressMode,
}

impl ProgressDisplay {
    /// Begins to show the progress, and new metrics when there are some.
    pub fn start(progress: Arc<Progress>, live: Option<LiveMetrics>, mode: ProgressMode) -> Self {
        let mut task = JoinSet::new();
        let observer = Observer::new(Arc::clone(&progress), live);
        match mode {
            ProgressMode::Quiet => {}
            ProgressMode::Lines => {
                task.spawn(print_every(Duration::from_secs(5), observer, mode));
            }
            ProgressMode::Json => {
                task.spawn(print_every(Duration::from_secs(1), observer, mode));
            }
            ProgressMode::Terminal { colors } => {
                task.spawn(draw_bars(observer, colors));
            }
        }
        Self {
            task,
            progress,
            mode,
        }
    }

    /// Ends the display. Lines and JSON events end with the last state if the sweep ended well. When this
    /// returns, no bar is left on the terminal.
    pub async fn finish(mut self, ended_well: bool) {
        self.task.shutdown().await;
        print_notices(&self.progress.take_notices(), self.mode);
        if ended_well {
            Observer::new(self.progress, None).look().print(self.mode);
        }
    }
}

/// Prints warnings. A reader that has gone needs none.
fn print_notices(notices: &[String], mode: ProgressMode) {
    for notice in notices {
        let _ = match mode {
            ProgressMode::Quiet => Ok(()),
            ProgressMode::Json => {
                let event = event("notice", &json!({ "text": notice }));
                writeln!(io::stdout(), "{event}")
            }
            _ => writeln!(io::stderr(), "warning: {notice}"),
        };
    }
}

/// The state of a sweep at one moment.
struct Snapshot {
    total: AgentProgress,
    agents: Vec<(String, AgentProgress)>,
    in_flight: usize,
    rate: f64,
    /// Warnings since the snapshot before.
    notices: Vec<String>,
    /// Metrics measured since the snapshot before.
    metrics: Option<Arc<[AgentMetric]>>,
}

impl Snapshot {
    /// Prints the snapshot as a line or as events. A reader that has gone needs none.
    fn print(&self, mode: ProgressMode) {
        print_notices(&self.notices, mode);
        match mode {
            ProgressMode::Quiet | ProgressMode::Terminal { .. } => {}
            ProgressMode::Lines => {
                for metric in self.key_metrics() {
                    let _ = writeln!(io::stderr(), "{}", metric_line(metric));
                }
                let _ = writeln!(io::stderr(), "{}", self.text());
            }
            ProgressMode::Json => {
                if let Some(metrics) = &self.metrics {
                    let event = event("metrics", &json!({ "metrics": metrics }));
                    let _ = writeln!(io::stdout(), "{event}");
                }
                let _ = writeln!(io::stdout(), "{}", event("progress", &self.json()));
            }
        }
    }

    /// The metrics that are scores: the reward, and what is 0 or 1.
    fn key_metrics(&self) -> impl Iterator<Item = &AgentMetric> {
        let metrics = self.metrics.iter().flat_map(|metrics| metrics.iter());
        let is_key = |metric: &&AgentMetric| metric.metric == "reward" || metric.pass_at.is_some();
        metrics.filter(is_key).take(MAX_METRICS)
    }

    fn eta(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.total.pending() as f64 / self.rate).ok()
    }

    fn numbers(&self) -> String {
        let eta = self.eta().map_or_else(|| "-".to_owned(), text::duration);
        let retries = match self.total.num_retries() {
            0 => String::new(),
            1 => ", 1 retry".to_owned(),
            retries => format!(", {} retries", HumanCount(retries)),
        };
        format!(
            "{:.1}/s, ETA {eta}, {} in flight, {}{retries}",
            self.rate,
            HumanCount(self.in_flight as u64),
            text::failures(&self.total.failed),
        )
    }

    fn text(&self) -> String {
        let (done, planned) = (HumanCount(self.total.done), HumanCount(self.total.planned));
        let mut line = format!("{done}/{planned} rollouts, {}", self.numbers());
        for (name, agent) in &self.agents {
            line.push_str(" | ");
            line.push_str(&agent_line(name, agent));
        }
        line
    }

    fn json(&self) -> Value {
        let agents = self.agents.iter().map(|(name, agent)| {
            let mut counts = counts(agent);
            counts.insert("concurrency_limit".into(), json!(agent.concurrency_limit));
            counts.insert("mean_reward".into(), json!(agent.mean_reward()));
            (name.clone(), Value::Object(counts))
        });
        let mut event = counts(&self.total);
        event.insert("in_flight".into(), json!(self.in_flight));
        event.insert("rollouts_per_second".into(), json!(self.rate));
        let eta = self.eta().map(|eta| eta.as_secs_f64());
        event.insert("eta_seconds".into(), json!(eta));
        event.insert("agents".into(), Value::Object(agents.collect()));
        Value::Object(event)
    }
}

/// The counts of an agent, or of all, in an event.
fn counts(agent: &AgentProgress) -> Map<String, Value> {
    let counts = [
        ("planned", json!(agent.planned)),
        ("done", json!(agent.done)),
        ("failed", json!(agent.failed)),
        ("pending", json!(agent.pending())),
        ("failed_attempts", json!(agent.failed_attempts)),
    ];
    counts
        .map(|(name, count)| (name.to_owned(), count))
        .into_iter()
        .collect()
}

/// The line of an agent: its pending rollouts, mean reward so far and, if it adapts, the limit of calls in flight.
fn agent_line(name: &str, agent: &AgentProgress) -> String {
    let reward = agent
        .mean_reward()
        .map_or_else(|| "-".to_owned(), |mean| format!("{mean:.4}"));
    let limit = agent
        .concurrency_limit
        .map_or_else(String::new, |limit| format!(", limit {limit}"));
    let pending = HumanCount(agent.pending());
    format!("{name}: {pending} left, mean reward {reward}{limit}")
}

/// The line of a metric: `sim reward 0.5595 ± 0.0564, pass@4 0.8571, 168 rollouts`.
fn metric_line(metric: &AgentMetric) -> String {
    let mean = text::number_or_dash(metric.mean);
    let mut line = format!("{} {} {mean}", metric.agent_name, metric.metric);
    if let Some(stderr) = metric.stderr {
        line.push_str(&format!(" \u{b1} {}", text::number(stderr)));
    }
    if let Some(pass) = metric.pass_at.filter(|pass| pass.k > 1) {
        line.push_str(&format!(
            ", pass@{} {}",
            pass.k,
            text::number(pass.pass_at_k)
        ));
    }
    line.push_str(&format!(", {} rollouts", HumanCount(metric.count)));
    text::one_line(&line)
}

/// Takes snapshots of a progress. The rate is that of the time since the last one, smoothed, so it
/// follows a server that slows down.
struct Observer {
    progress: Arc<Progress>,
    live: Option<LiveMetrics>,
    last: Option<(Instant, u64)>,
    rate: f64,
}

impl Observer {
    fn new(progress: Arc<Progress>, live: Option<LiveMetrics>) -> Self {
        Self {
            progress,
            live,
            last: None,
            rate: 0.0,
        }
    }

    fn look(&mut self) -> Snapshot {
        let total = self.progress.total();
        let finished = total.done_now + total.failed_now;
        let now = Instant::now();
        let all = now.duration_since(self.progress.started()).as_secs_f64();
        self.rate = match self.last {
            Some((since, before)) if all > SMOOTHING => {
                let seconds = now.duration_since(since).as_secs_f64();
                let rate = finished.saturating_sub(before) as f64 / seconds.max(1e-3);
                self.rate + (rate - self.rate) * (1.0 - (-seconds / SMOOTHING).exp())
            }
            // Too early for a trend: the mean since the beginning.
            _ => finished as f64 / all.max(1e-3),
        };
        self.last = Some((now, finished));
        let metrics = self.live.as_mut().and_then(|live| {
            let is_new = live.has_changed().unwrap_or(false);
            is_new.then(|| Arc::clone(&live.borrow_and_update()))
        });
        Snapshot {
            total,
            agents: self.progress.by_agent().into_iter().collect(),
            in_flight: self.progress.in_flight(),
            rate: self.rate,
            notices: self.progress.take_notices(),
            metrics,
        }
    }
}

async fn print_every(period: Duration, mut observer: Observer, mode: ProgressMode) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        observer.look().print(mode);
    }
}

async fn draw_bars(mut observer: Observer, colors: bool) {
    let screen = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    let _cleared = Cleared(screen.clone());
    let bar = screen.add(ProgressBar::new(observer.progress.total().planned));
    let template = if colors {
        "{bar:30.cyan/blue} {human_pos}/{human_len} {wide_msg}"
    } else {
        "{bar:30} {human_pos}/{human_len} {wide_msg}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let add_line = || {
        let line = screen.add(ProgressBar::no_length());
        if let Ok(style) = ProgressStyle::with_template("  {wide_msg}") {
            line.set_style(style);
        }
        line
    };
    let names = observer.progress.by_agent().into_keys().take(MAX_AGENTS);
    let agents: Vec<(String, ProgressBar)> = names.map(|name| (name, add_line())).collect();
    let mut metrics: Vec<ProgressBar> = Vec::new();
    let mut ticks = interval(Duration::from_millis(200));
    loop {
        ticks.tick().await;
        let now = observer.look();
        for (place, metric) in now.key_metrics().enumerate() {
            if metrics.len() == place {
                metrics.push(add_line());
            }
            if let Some(line) = metrics.get(place) {
                line.set_message(metric_line(metric));
            }
        }
        for notice in &now.notices {
            let _ = screen.println(format!("warning: {notice}"));
        }
        bar.set_position(now.total.done);
        bar.set_message(now.numbers());
        for (name, line) in &agents {
            if let Some((_, agent)) = now.agents.iter().find(|(agent, _)| agent == name) {
                line.set_message(agent_line(name, agent));
            }
        }
    }
}

/// Clears the bars when the task that draws them ends, however it ends.
struct Cleared(MultiProgress);

impl Drop for Cleared {
    fn drop(&mut self) {
        // A terminal that has gone needs no clearing.
        let _ = self.0.clear();
    }
}
