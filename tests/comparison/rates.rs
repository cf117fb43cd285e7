//! How often a comparison finds a difference, over many simulated pairs of agents. A pair is a metric of the same two
//! runs, so that one comparison tests all of them.

use fastrand::Rng;
use rollstream::measure::compare::{ComparisonOptions, MetricComparison};

use super::run::{Asked, asked, compare};

/// Two agents: what they score at a task in one rollout, the base and the candidate, by the task's difficulty.
type Score = fn(&mut Rng, f64) -> f64;

struct Simulation {
    num_pairs: usize,
    num_tasks: usize,
    num_repeats: usize,
    base: Score,
    candidate: Score,
}

impl Simulation {
    /// The comparison of each pair.
    async fn compared(&self, seed: u64) -> Vec<MetricComparison> {
        let mut rng = Rng::with_seed(seed);
        let difficulties: Vec<Vec<f64>> = (0..self.num_tasks)
            .map(|_| (0..self.num_pairs).map(|_| rng.f64()).collect())
            .collect();
        let base = self.run(self.base, &difficulties, &mut rng);
        let candidate = self.run(self.candidate, &difficulties, &mut rng);
        let options = ComparisonOptions {
            metrics: (0..self.num_pairs)
                .map(|pair| format!("pair_{pair}"))
                .collect(),
            resamples: 2,
            permutations: 999,
            ..ComparisonOptions::default()
        };
        let rows = compare(&base, &candidate, &options).await;
        assert_eq!(rows.len(), self.num_pairs);
        rows
    }

    fn run(&self, score: Score, difficulties: &[Vec<f64>], rng: &mut Rng) -> Vec<Asked> {
        let task = |(number, difficulties): (usize, &Vec<f64>)| {
            let answers: Vec<String> = (0..self.num_repeats)
                .map(|_| {
                    let scores = difficulties.iter().enumerate();
                    let fields = scores.map(|(pair, difficulty)| {
                        format!(",\"pair_{pair}\":{}", score(rng, *difficulty))
                    });
                    format!("{{\"reward\":0{}}}", fields.collect::<String>())
                })
                .collect();
            let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
            asked(&number.to_string(), &answers)
        };
        difficulties.iter().enumerate().map(task).collect()
    }
}

/// The share of pairs whose own p-value is below 5 %.
fn found(rows: &[MetricComparison]) -> f64 {
    let found = rows.iter().filter(|row| row.p_value.unwrap() < 0.05);
    found.count() as f64 / rows.len() as f64
}

#[track_caller]
fn within(what: &str, rate: f64, least: f64, most: f64) {
    println!("{what}: {rate}");
    assert!(
        (least..=most).contains(&rate),
        "{what}: {rate} is not in {least} to {most}"
    );
}

fn all_tested_by(rows: &[MetricComparison], test: &str) {
    assert!(rows.iter().all(|row| row.test == test), "{:?}", rows[0]);
}

fn draw(rng: &mut Rng, probability: f64) -> f64 {
    f64::from(u8::from(rng.f64() < probability))
}

fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos()
}

/// Solves a task with 10 to 70 %, by its difficulty.
fn weak(rng: &mut Rng, difficulty: f64) -> f64 {
    draw(rng, 0.1 + 0.6 * difficulty)
}

/// How much more often the strong agent solves a task than the weak one.
const GAIN: f64 = 0.15;

fn strong(rng: &mut Rng, difficulty: f64) -> f64 {
    draw(rng, 0.1 + 0.6 * difficulty + GAIN)
}

/// Scores with tails longer than a normal variable's.
fn low(rng: &mut Rng, difficulty: f64) -> f64 {
    3.0 * difficulty + normal(rng) * (0.5 + rng.f64())
}

/// By how much the high scores are above the low ones.
const SHIFT: f64 = 0.5;

fn high(rng: &mut Rng, difficulty: f64) -> f64 {
    low(rng, difficulty) + SHIFT
}

/// Tasks that a test of 5 % needs for a power of 80 %, by the variance of the difference of a task.
fn tasks_for(difference: f64, variance: f64) -> usize {
    ((1.959964 + 0.841621f64).powi(2) * variance / (difference * difference)).ceil() as usize
}

/// Mean of `f` over all difficulties.
fn over_difficulties(f: impl Fn(f64) -> f64) -> f64 {
    (0..1000)
        .map(|n| f((f64::from(n) + 0.5) / 1000.0))
        .sum::<f64>()
        / 1000.0
}

/// Variance of the difference of a task's means between the weak and the strong agent.
fn binary_variance(num_repeats: f64) -> f64 {
    let of = |p: f64| p * (1.0 - p) / num_repeats;
    over_difficulties(|difficulty| {
        let p = 0.1 + 0.6 * difficulty;
        of(p) + of(p + GAIN)
    })
}

#[tokio::test]
async fn no_difference_is_found_in_5_percent_by_mcnemar() {
    let simulation = Simulation {
        num_pairs: 1000,
        num_tasks: 120,
        num_repeats: 1,
        base: weak,
        candidate: weak,
    };
    let rows = simulation.compared(1).await;
    all_tested_by(&rows, "mcnemar");
    within("mcnemar, no difference", found(&rows), 0.035, 0.065);
    // Corrected for all pairs, even one would be too many.
    assert!(rows.iter().all(|row| !row.significant));
}

#[tokio::test]
async fn no_difference_is_found_in_5_percent_by_mcnemar_with_repeats() {
    let simulation = Simulation {
        num_pairs: 1000,
        num_tasks: 60,
        num_repeats: 4,
        base: weak,
        candidate: weak,
    };
    let rows = simulation.compared(2).await;
    all_tested_by(&rows, "mcnemar_clustered");
    within(
        "mcnemar_clustered, no difference",
        found(&rows),
        0.035,
        0.065,
    );
}

#[tokio::test]
async fn no_difference_is_found_in_5_percent_by_permutation() {
    let simulation = Simulation {
        num_pairs: 1000,
        num_tasks: 30,
        num_repeats: 2,
        base: low,
        candidate: low,
    };
    let rows = simulation.compared(3).await;
    all_tested_by(&rows, "permutation");
    within("permutation, no difference", found(&rows), 0.035, 0.065);
}

/// The share found at the number of tasks that theory gives for 80 %, and at a quarter of that.
async fn at_theory(what: &str, num_tasks: usize, simulation: Simulation) {
    let full = Simulation {
        num_tasks,
        ..simulation
    };
    within(
        &format!("{what}, {num_tasks} tasks"),
        found(&full.compared(4).await),
        0.7,
        0.9,
    );
    let quarter = Simulation {
        num_tasks: num_tasks / 4,
        ..full
    };
    within(
        &format!("{what}, a quarter"),
        found(&quarter.compared(5).await),
        0.0,
        0.45,
    );
}

#[tokio::test]
async fn a_difference_is_found_where_theory_says_with_one_rollout() {
    let simulation = Simulation {
        num_pairs: 200,
        num_tasks: 0,
        num_repeats: 1,
        base: weak,
        candidate: strong,
    };
    at_theory("mcnemar", tasks_for(GAIN, binary_variance(1.0)), simulation).await;
}

#[tokio::test]
async fn a_difference_is_found_where_theory_says_with_repeats() {
    let simulation = Simulation {
        num_pairs: 200,
        num_tasks: 0,
        num_repeats: 4,
        base: weak,
        candidate: strong,
    };
    at_theory(
        "mcnemar_clustered",
        tasks_for(GAIN, binary_variance(4.0)),
        simulation,
    )
    .await;
}

#[tokio::test]
async fn a_difference_is_found_where_theory_says_by_permutation() {
    let simulation = Simulation {
        num_pairs: 200,
        num_tasks: 0,
        num_repeats: 2,
        base: low,
        candidate: high,
    };
    // The square of 0.5 + U is 13/12 on average; a task's difference has two such terms over two rollouts each.
    let variance = 13.0 / 12.0;
    at_theory("permutation", tasks_for(SHIFT, variance), simulation).await;
}
