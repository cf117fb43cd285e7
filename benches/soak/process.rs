//! What a process takes while it lives: [`Sample`], and the [`Life`] that they are of.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// The beginning of a life, in which all that grows at first has grown.
pub const WARM_UP: Duration = Duration::from_secs(15);

/// A look at a process.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Since the process began.
    pub age: Duration,
    /// Resident memory, in kB.
    pub memory: f64,
    /// The most that was ever resident, in kB.
    pub peak: f64,
    /// Open file descriptors.
    pub files: f64,
    pub threads: f64,
    /// Size of the run's files, in bytes.
    pub run_bytes: f64,
}

impl Sample {
    /// Looks at a process and its run; nothing if the process has gone.
    pub fn take(pid: u32, age: Duration, run: &Path) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        Some(Self {
            age,
            memory: field("VmRSS:")?,
            peak: field("VmHWM:")?,
            files: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as f64,
            threads: field("Threads:")?,
            run_bytes: size(run) as f64,
        })
    }
}

/// Size of all files below, in bytes. They come and go meanwhile.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// A process of the collector, from its start to its end.
#[derive(Debug, Clone)]
pub struct Life {
    /// Number of the sweep.
    pub sweep: u64,
    pub samples: Vec<Sample>,
    /// Rollouts that the agent gave in that time.
    pub answered: u64,
    pub took: Duration,
    pub end: &'static str,
}

impl Life {
    /// What was seen after the warm-up.
    pub fn settled(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| sample.age >= WARM_UP)
    }

    /// The largest of something.
    pub fn most(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        self.samples.iter().map(of).fold(0.0, f64::max)
    }

    /// Something at an age; nothing if it was not that old.
    pub fn at(&self, age: Duration, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        let mut samples = self.samples.iter();
        samples.find(|sample| sample.age >= age).map(of)
    }

    /// Growth of something after the warm-up, per minute.
    pub fn slope(&self, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        slope(std::slice::from_ref(self), of)
    }
}

/// Growth of something within lives, per minute, by least squares after the warm-up: one slope for all lives, and a level
/// for each. Nothing where none was older.
pub fn slope(lives: &[Life], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    let (mut above, mut below) = (0.0, 0.0);
    for life in lives {
        let points: Vec<(f64, f64)> = life
            .settled()
            .map(|sample| (sample.age.as_secs_f64() / 60.0, of(sample)))
            .collect();
        let (add_above, add_below) = deviations(&points);
        above += add_above;
        below += add_below;
    }
    (below > 0.0).then(|| above / below)
}

/// Growth of what lives have on the average after their warm-up, from each life to the next. Nothing where there are less
/// than two.
pub fn slope_of_lives(lives: &[Life], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    let means = lives.iter().filter_map(|life| {
        let count = life.settled().count();
        (count > 0).then(|| life.settled().map(&of).sum::<f64>() / count as f64)
    });
    let points: Vec<(f64, f64)> = means
        .enumerate()
        .map(|(n, mean)| (n as f64, mean))
        .collect();
    let (above, below) = deviations(&points);
    (below > 0.0).then(|| above / below)
}

/// Sums of the products of deviations, and of the squares of those of the first.
fn deviations(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len().max(1) as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let products = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y));
    let squares = points.iter().map(|(x, _)| (x - mean_x).powi(2));
    (products.sum(), squares.sum())
}
