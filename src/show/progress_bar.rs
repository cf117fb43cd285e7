//! The progress of a sweep while it runs: the progress bar on a terminal, a line every few seconds, or JSON events.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use console::truncate_str;
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::report::event;
use super::text;
use crate::progress::{AgentProgress, ExecutorProgress, Phase, Progress, Rates};
use crate::report::AgentMetric;

/// Most agents, and most executors, that get a line of their own on a terminal.
const MAX_AGENTS: usize = 12;

/// Most metrics that are shown while a sweep runs.
const MAX_METRICS: usize = 12;

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
    messages: Messages,
}

/// Writes messages to standard error, above the bars of a display if it has any.
#[derive(Debug, Clone)]
pub struct Messages(Option<MultiProgress>);

impl Messages {
    /// Writes a message. The error is ignored: the terminal may be gone.
    pub fn say(&self, text: &str) {
        let text = text::visible_lines(text);
        // A line that ends at the edge of the terminal would be taken for two.
        let width = text::terminal_width(io::stderr()).map(|width| width.saturating_sub(1));
        let text = text::wrapped(&text, 2, width);
        let _ = match &self.0 {
            Some(screen) => screen.println(text).and_then(|()| to_line_start()),
            None => writeln!(io::stderr(), "{text}"),
        };
    }
}

impl ProgressDisplay {
    /// Begins to show the progress, and new metrics when there are some.
    pub fn start(progress: Arc<Progress>, live: Option<LiveMetrics>, mode: ProgressMode) -> Self {
        let mut task = JoinSet::new();
        let mut messages = Messages(None);
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
                let target = ProgressDrawTarget::stderr_with_hz(10);
                let screen = MultiProgress::with_draw_target(target);
                messages.0 = Some(screen.clone());
                task.spawn(draw_bars(observer, screen, colors));
            }
        }
        Self {
            task,
            progress,
            mode,
            messages,
        }
    }

    /// Returns what writes messages while the display is there, and after it.
    pub fn messages(&self) -> Messages {
        self.messages.clone()
    }

    /// Ends the display. Lines and JSON events end with the last state if the sweep ended well. When this
    /// returns, no bar is left on the terminal.
    pub async fn finish(mut self, ended_well: bool) {
        self.task.shutdown().await;
        print_notices(&self.progress.take_notices(), self.mode);
        if ended_well {
            let last = Observer::new(self.progress, None).look();
            // It is finished, and no longer finishing.
            let phase = Phase::Sending;
            Snapshot { phase, ..last }.print(self.mode);
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
            _ => {
                Messages(None).say(&format!("warning: {notice}"));
                Ok(())
            }
        };
    }
}

/// The state of a sweep at one moment.
struct Snapshot {
    total: AgentProgress,
    agents: Vec<(String, AgentProgress)>,
    /// Those of a cluster.
    executors: Vec<ExecutorProgress>,
    in_flight: usize,
    phase: Phase,
    rates: Rates,
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
                for metric in key_metrics(&self.metrics) {
                    let _ = writeln!(io::stderr(), "{}", metric_line(metric, usize::MAX));
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

    /// The time until nothing is pending at this rate; none for a sweep that stops.
    fn eta(&self) -> Option<Duration> {
        if self.phase != Phase::Sending {
            return None;
        }
        Duration::try_from_secs_f64(self.total.pending() as f64 / self.rates.rollouts).ok()
    }

    /// What the sweep is doing, the most important first.
    fn activity(&self) -> Vec<String> {
        let in_flight = text::count(self.in_flight as u64);
        match self.phase {
            Phase::Sending => {
                let eta = self.eta().map_or_else(|| "-".to_owned(), text::duration);
                vec![
                    format!("{:.1}/s", self.rates.rollouts),
                    format!("ETA {eta}"),
                    format!("{in_flight} in flight"),
                ]
            }
            Phase::Stopping(until) => {
                let calls = if self.in_flight == 1 { "call" } else { "calls" };
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                let left = left.map(|left| format!("{} at most", text::duration(left)));
                let waits = format!("stopping: waits for {in_flight} {calls}");
                [waits].into_iter().chain(left).collect()
            }
            Phase::Dropping => vec!["stopping: drops the calls".to_owned()],
            Phase::Finishing => vec!["finishing: writes Parquet and metrics".to_owned()],
        }
    }

    /// The failures, and the attempts that were retried.
    fn trouble(&self) -> Vec<String> {
        let retries = match self.total.num_retries() {
            0 => None,
            1 => Some("1 retry".to_owned()),
            retries => Some(format!("{} retries", text::count(retries))),
        };
        let failures = text::failures(&self.total.failed);
        [failures].into_iter().chain(retries).collect()
    }

    /// What the calls cost and how fast they are, as far as it is known.
    fn speed(&self) -> Vec<String> {
        let cost = self.cost().map(|cost| {
            let digits = if cost < 1.0 { 4 } else { 2 };
            format!("cost {cost:.digits$}")
        });
        let latency = self.rates.latency.map(|(median, high)| {
            let [median, high] = [median, high].map(|time| format!("{time:.2}s"));
            format!("latency p50 {median} p95 {high}")
        });
        let tokens = self.rates.output_tokens.map(|rate| {
            let rate = text::count(rate.round() as u64);
            format!("{rate} output tokens/s")
        });
        [cost, latency, tokens].into_iter().flatten().collect()
    }

    fn cost(&self) -> Option<f64> {
        let costs = self.agents.iter().filter_map(|(_, agent)| agent.cost());
        costs.reduce(|a, b| a + b)
    }

    /// The lines below the bar.
    fn lines(&self, width: usize) -> impl Iterator<Item = String> {
        let has_trouble = self.total.num_failed() + self.total.num_retries() > 0;
        let trouble = has_trouble.then(|| text::fitting(self.trouble(), width));
        let speed = self.speed();
        let speed = (!speed.is_empty()).then(|| text::fitting(speed, width));
        let agents = self.agents.iter().take(MAX_AGENTS);
        let agents = agents.flat_map(move |(name, agent)| {
            let line = text::wrapped(&agent_line(name, agent), 2, Some(width));
            line.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        let executors = self.executors.iter().take(MAX_AGENTS);
        let executors = executors.map(|executor| text::one_line(&executor.to_string()));
        let lines = trouble.into_iter().chain(speed).chain(agents);
        lines.chain(executors)
    }

    fn text(&self) -> String {
        let (done, planned) = (HumanCount(self.total.done), HumanCount(self.total.planned));
        let numbers = [self.activity(), self.trouble(), self.speed()].concat();
        let numbers = numbers.join(", ");
        let mut line = format!("{done}/{planned} rollouts, {numbers}");
        for (name, agent) in &self.agents {
            line.push_str(" | ");
            line.push_str(&agent_line(name, agent));
        }
        for executor in &self.executors {
            line.push_str(&format!(" | {executor}"));
        }
        line
    }

    fn json(&self) -> Value {
        let agents = self.agents.iter().map(|(name, agent)| {
            let mut counts = counts(agent);
            counts.insert("concurrency_limit".into(), json!(agent.concurrency_limit));
            counts.insert("mean_reward".into(), json!(agent.rewards.mean()));
            let now = agent.rewards_now.mean();
            counts.insert("mean_reward_of_this_process".into(), json!(now));
            counts.insert("num_scored_tasks".into(), json!(agent.num_scored_tasks));
            counts.insert("num_tasks".into(), json!(agent.num_tasks));
            (name.clone(), Value::Object(counts))
        });
        let state = match self.phase {
            Phase::Sending => "sending",
            Phase::Stopping(_) => "stopping",
            Phase::Dropping => "dropping",
            Phase::Finishing => "finishing",
        };
        let mut event = counts(&self.total);
        event.insert("state".into(), json!(state));
        event.insert("in_flight".into(), json!(self.in_flight));
        event.insert("rollouts_per_second".into(), json!(self.rates.rollouts));
        let eta = self.eta().map(|eta| eta.as_secs_f64());
        event.insert("eta_seconds".into(), json!(eta));
        let tokens = self.rates.output_tokens;
        event.insert("output_tokens_per_second".into(), json!(tokens));
        let latency = self.rates.latency;
        let latency = latency.map(|(median, high)| json!({ "p50": median, "p95": high }));
        event.insert("latency_seconds".into(), json!(latency));
        event.insert("cost".into(), json!(self.cost()));
        event.insert("agents".into(), Value::Object(agents.collect()));
        if !self.executors.is_empty() {
            event.insert("executors".into(), json!(self.executors));
        }
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

/// The line of an agent: its pending rollouts, the mean reward of the run so far and, on a resume, of this process,
/// and the limit of calls in flight where it adapts.
fn agent_line(name: &str, agent: &AgentProgress) -> String {
    let mean = agent.rewards.mean();
    let mut line = format!(
        "{}: {} left, mean reward {}",
        text::one_line(name),
        text::count(agent.pending()),
        mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.4}"))
    );
    if agent.num_tasks > 0 && agent.rewards.count > 0 {
        let [scored, tasks] = [agent.num_scored_tasks, agent.num_tasks].map(text::count);
        line.push_str(&format!(" over {scored} of {tasks} tasks"));
    }
    let now = agent.rewards_now.mean().filter(|_| agent.is_resumed());
    if let Some(now) = now {
        line.push_str(&format!(", {now:.4} in this process"));
    }
    if let Some(limit) = agent.concurrency_limit {
        line.push_str(&format!(", limit {limit}"));
    }
    line
}

/// The metrics that are scores: the reward, and what is 0 or 1.
fn key_metrics(metrics: &Option<Arc<[AgentMetric]>>) -> impl Iterator<Item = &AgentMetric> {
    let metrics = metrics.iter().flat_map(|metrics| metrics.iter());
    let is_key = |metric: &&AgentMetric| metric.metric == "reward" || metric.pass_at.is_some();
    metrics.filter(is_key).take(MAX_METRICS)
}

/// The line of a metric: `sim reward 0.5595 ± 0.0564 (standard error), pass@4 0.8571, 168 rollouts`.
fn metric_line(metric: &AgentMetric, width: usize) -> String {
    let mean = text::number_or_dash(metric.mean);
    let mut line = format!("{} {} {mean}", metric.agent_name, metric.metric);
    if let Some(stderr) = metric.stderr {
        line.push_str(&format!(" ± {} (standard error)", text::number(stderr)));
    }
    let pass = metric.pass_at.filter(|pass| pass.k > 1);
    let pass = pass.map(|pass| format!("pass@{} {}", pass.k, text::number(pass.pass_at_k)));
    let count = format!("{} rollouts", text::count(metric.count));
    let parts = [Some(line), pass, Some(count)].into_iter().flatten();
    text::fitting(parts.map(|part| text::one_line(&part)), width)
}

/// Takes snapshots of a progress.
struct Observer {
    progress: Arc<Progress>,
    live: Option<LiveMetrics>,
}

impl Observer {
    fn new(progress: Arc<Progress>, live: Option<LiveMetrics>) -> Self {
        Self { progress, live }
    }

    fn look(&mut self) -> Snapshot {
        let metrics = self.live.as_mut().and_then(|live| {
            let is_new = live.has_changed().unwrap_or(false);
            is_new.then(|| Arc::clone(&live.borrow_and_update()))
        });
        Snapshot {
            total: self.progress.total(),
            agents: self.progress.by_agent().into_iter().collect(),
            executors: self.progress.executors(),
            in_flight: self.progress.in_flight(),
            phase: self.progress.phase(),
            rates: self.progress.rates(),
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

/// Width of a terminal that does not tell it.
const DEFAULT_WIDTH: usize = 80;

async fn draw_bars(mut observer: Observer, screen: MultiProgress, colors: bool) {
    let _cleared = Cleared(screen.clone());
    let bar = screen.add(ProgressBar::new(observer.progress.total().planned));
    let (mut lines, mut metrics) = (Vec::new(), None);
    let messages = Messages(Some(screen.clone()));
    let mut length_of_bar = 0;
    let mut ticks = interval(Duration::from_millis(200));
    loop {
        ticks.tick().await;
        let now = observer.look();
        for notice in &now.notices {
            messages.say(&format!("warning: {notice}"));
        }
        let width = text::terminal_width(io::stderr()).unwrap_or(DEFAULT_WIDTH);
        // A line that ends at the edge of the terminal leaves its remains there.
        let width = width.saturating_sub(1);
        let length = (width / 4).clamp(4, 30);
        if length != length_of_bar
            && let Ok(style) = ProgressStyle::with_template(&template(length, colors))
        {
            bar.set_style(style);
            length_of_bar = length;
        }
        let [done, planned] = [now.total.done, now.total.planned].map(text::count);
        let room = width.saturating_sub(length + done.len() + planned.len() + 3);
        bar.set_length(now.total.planned);
        bar.set_position(now.total.done);
        bar.set_message(text::fitting(now.activity(), room));
        if now.metrics.is_some() {
            metrics = now.metrics.clone();
        }
        let room = width.saturating_sub(2);
        let measured = key_metrics(&metrics).map(|metric| metric_line(metric, room));
        let texts: Vec<String> = now.lines(room).chain(measured).collect();
        lines.resize_with(lines.len().max(texts.len()), || add_line(&screen));
        for line in lines.drain(texts.len()..) {
            screen.remove(&line);
        }
        for (line, text) in lines.iter().zip(texts) {
            line.set_message(truncate_str(&text, room, "…").into_owned());
        }
        let _ = to_line_start();
    }
}

fn add_line(screen: &MultiProgress) -> ProgressBar {
    let line = screen.add(ProgressBar::no_length());
    if let Ok(style) = ProgressStyle::with_template("  {msg}") {
        line.set_style(style);
    }
    line
}

/// Moves the cursor away from the end of the last line of the bars. There, the `^C` that a terminal shows would begin a
/// line of its own, and a bar that is out of date would stay above.
fn to_line_start() -> io::Result<()> {
    write!(io::stderr(), "\r")
}

fn template(length: usize, colors: bool) -> String {
    let color = if colors { ".cyan/blue" } else { "" };
    format!("{{bar:{length}{color}}} {{human_pos}}/{{human_len}} {{msg}}")
}

/// Clears the bars when the task that draws them ends, however it ends.
struct Cleared(MultiProgress);

impl Drop for Cleared {
    fn drop(&mut self) {
        // A terminal that is gone needs no clearing.
        let _ = self.0.clear();
    }
}
