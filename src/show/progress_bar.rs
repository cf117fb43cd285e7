use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::report::event;
use super::text;
use crate::measure::AgentMetric;
use crate::progress::{AgentProgress, Progress};

/// Agents that get a line of their own on a terminal.
const MAX_AGENTS: usize = 12;

/// Metrics that are shown while a sweep runs.
const MAX_METRICS: usize = 12;

/// Seconds after which a look at the rate weighs a third of what it did.
const SMOOTHING: f64 = 10.0;

/// The metrics of a sweep while it runs, the newest ones.
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

/// Progress of a sweep, shown until it is finished or dropped.
#[derive(Debug)]
pub struct ProgressDisplay {
    task: JoinSet<()>,
    progress: Arc<Progress>,
    show: Option<fn(&Line)>,
    mode: ProgressMode,
}

impl ProgressDisplay {
    /// Begins to show `progress`.
    /// The metrics, where there are some, are shown whenever there are new ones.
    pub fn start(progress: Arc<Progress>, live: Option<LiveMetrics>, mode: ProgressMode) -> Self {
        let mut task = JoinSet::new();
        let mut every = |period: Duration, show: fn(&Line)| {
            task.spawn(every(
                period,
                Watch::new(Arc::clone(&progress), live.clone()),
                show,
            ));
            Some(show)
        };
        let show = match mode {
            ProgressMode::Quiet => None,
            ProgressMode::Lines => every(Duration::from_secs(5), Line::to_stderr),
            ProgressMode::Json => every(Duration::from_secs(1), Line::to_stdout),
            ProgressMode::Terminal { colors } => {
                let watch = Watch::new(Arc::clone(&progress), live.clone());
                task.spawn(terminal(Arc::clone(&progress), watch, colors));
                None
            }
        };
        Self {
            task,
            progress,
            show,
            mode,
        }
    }

    /// Says what came up since the last time.
    fn tell_the_rest(&self) {
        for notice in self.progress.take_notices() {
            let told = match self.mode {
                ProgressMode::Quiet => Ok(()),
                ProgressMode::Json => {
                    let notice = serde_json::json!({ "text": notice });
                    writeln!(io::stdout(), "{}", event("notice", &notice))
                }
                _ => writeln!(io::stderr(), "warning: {notice}"),
            };
            // Where nobody reads what is shown, nobody need be told.
            let _ = told;
        }
    }

    /// Ends it; where lines are shown, and `came_to_an_end`, with the last of them. When this
    /// returns, no bar is left on the terminal.
    pub async fn finish(mut self, came_to_an_end: bool) {
        self.task.shutdown().await;
        self.tell_the_rest();
        if let Some(show) = self.show.filter(|_| came_to_an_end) {
            show(&Watch::new(self.progress, None).look());
        }
    }
}

/// The state of a sweep at one moment.
struct Line {
    total: AgentProgress,
    agents: Vec<(String, AgentProgress)>,
    in_flight: usize,
    rate: f64,
    /// What came up since the line before.
    notices: Vec<String>,
    /// What was measured since the line before.
    metrics: Option<Arc<[AgentMetric]>>,
}

impl Line {
    // Where nobody reads what is shown, nobody need be told.
    fn to_stderr(&self) {
        for notice in &self.notices {
            let _ = writeln!(io::stderr(), "warning: {notice}");
        }
        for metric in self.key_metrics() {
            let _ = writeln!(io::stderr(), "{}", text::metric(metric));
        }
        let _ = writeln!(io::stderr(), "{}", self.text());
    }

    fn to_stdout(&self) {
        for notice in &self.notices {
            let notice = serde_json::json!({ "text": notice });
            let _ = writeln!(io::stdout(), "{}", event("notice", &notice));
        }
        if let Some(metrics) = &self.metrics {
            let metrics = serde_json::json!({ "metrics": metrics });
            let _ = writeln!(io::stdout(), "{}", event("metrics", &metrics));
        }
        let _ = writeln!(io::stdout(), "{}", event("progress", &self.json()));
    }

    /// Of what was measured, the scores: the reward, and what is 0 or 1.
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
        format!(
            "{:.1}/s, ETA {eta}, {} in flight, {}{}",
            self.rate,
            text::count(self.in_flight as u64),
            text::failures(&self.total),
            text::retries(&self.total)
        )
    }

    fn text(&self) -> String {
        let (done, planned) = (
            text::count(self.total.done),
            text::count(self.total.planned),
        );
        let mut line = format!("{done}/{planned} rollouts, {}", self.numbers());
        for (name, progress) in &self.agents {
            line.push_str(" | ");
            line.push_str(&text::agent(name, progress));
        }
        line
    }

    fn json(&self) -> serde_json::Value {
        let agents: serde_json::Map<_, _> = self
            .agents
            .iter()
            .map(|(name, progress)| {
                let value = serde_json::json!({
                    "planned": progress.planned,
                    "done": progress.done,
                    "failed": progress.failed,
                    "pending": progress.pending(),
                    "failed_attempts": progress.failed_attempts,
                    "concurrency_limit": progress.concurrency_limit,
                    "mean_reward": progress.mean_reward(),
                });
                (name.clone(), value)
            })
            .collect();
        serde_json::json!({
            "planned": self.total.planned,
            "done": self.total.done,
            "failed": self.total.failed,
            "pending": self.total.pending(),
            "failed_attempts": self.total.failed_attempts,
            "in_flight": self.in_flight,
            "rollouts_per_second": self.rate,
            "eta_seconds": self.eta().map(|eta| eta.as_secs_f64()),
            "agents": agents,
        })
    }
}

/// Looks at a progress from time to time. The rate is that of the last stretch, smoothed, so that it
/// follows a server that slows down.
struct Watch {
    progress: Arc<Progress>,
    live: Option<LiveMetrics>,
    last: Option<(Instant, u64)>,
    rate: f64,
}

impl Watch {
    fn new(progress: Arc<Progress>, live: Option<LiveMetrics>) -> Self {
        Self {
            progress,
            live,
            last: None,
            rate: 0.0,
        }
    }

    fn look(&mut self) -> Line {
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
        let agents = self.progress.by_agent().into_iter().collect();
        Line {
            total,
            agents,
            in_flight: self.progress.in_flight(),
            rate: self.rate,
            notices: self.progress.take_notices(),
            metrics: self.live.as_mut().and_then(|live| {
                let is_new = live.has_changed().unwrap_or(false);
                is_new.then(|| Arc::clone(&live.borrow_and_update()))
            }),
        }
    }
}

async fn every(period: Duration, mut watch: Watch, show: fn(&Line)) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        show(&watch.look());
    }
}

async fn terminal(progress: Arc<Progress>, mut watch: Watch, colors: bool) {
    let screen = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    let _cleared = Cleared(screen.clone());
    let bar = screen.add(ProgressBar::new(progress.total().planned));
    let template = match colors {
        true => "{bar:30.cyan/blue} {human_pos}/{human_len} {wide_msg}",
        false => "{bar:30} {human_pos}/{human_len} {wide_msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let names: Vec<String> = progress.by_agent().into_keys().take(MAX_AGENTS).collect();
    let lines: Vec<(String, ProgressBar)> = names
        .into_iter()
        .map(|name| (name, screen.add(ProgressBar::no_length())))
        .collect();
    for (_, line) in &lines {
        if let Ok(style) = ProgressStyle::with_template("  {wide_msg}") {
            line.set_style(style);
        }
    }
    let mut metrics: Vec<ProgressBar> = Vec::new();
    let mut ticks = interval(Duration::from_millis(200));
    loop {
        ticks.tick().await;
        let now = watch.look();
        for (place, metric) in now.key_metrics().enumerate() {
            if metrics.len() == place {
                let line = screen.add(ProgressBar::no_length());
                if let Ok(style) = ProgressStyle::with_template("  {wide_msg}") {
                    line.set_style(style);
                }
                metrics.push(line);
            }
            if let Some(line) = metrics.get(place) {
                line.set_message(text::metric(metric));
            }
        }
        for notice in &now.notices {
            let _ = screen.println(format!("warning: {notice}"));
        }
        bar.set_position(now.total.done);
        bar.set_message(now.numbers());
        for (name, line) in &lines {
            if let Some((_, progress)) = now.agents.iter().find(|(agent, _)| agent == name) {
                line.set_message(text::agent(name, progress));
            }
        }
    }
}

/// Clears the bars when the task that moves them ends, however it does.
struct Cleared(MultiProgress);

impl Drop for Cleared {
    fn drop(&mut self) {
        // A terminal that has gone needs no clearing.
        let _ = self.0.clear();
    }
}
