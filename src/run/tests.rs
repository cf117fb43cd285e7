//! [`AdaptiveLimit`] against servers whose capacity is known: a discrete-event simulation, the same
//! in every run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use super::adaptive_concurrency::{AdaptiveLimit, Sample};

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Overload {
    /// Refuses at once; nothing may be sent for this many round trips.
    Refuses {
        retry_after: f64,
    },
    Queues,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Served { sent: u64 },
    Refused { sent: u64 },
    Resume,
}

/// A server of limited capacity and clients that always have work.
struct Simulation {
    limit: AdaptiveLimit,
    origin: Instant,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    overload: Overload,
    capacity: usize,
    /// The geometric mean of one call's work in nanoseconds.
    work: f64,
    sigma: f64,
    serving: usize,
    waiting: VecDeque<u64>,
    in_flight: usize,
    paused_until: u64,
    state: u64,
}

/// The limit over a stretch of time.
#[derive(Debug, Default)]
struct Stretch {
    mean: f64,
    /// Share of the time within 20 % of the capacity.
    within: f64,
}

impl Simulation {
    fn new(overload: Overload, sigma: f64, capacity: usize, work: u64, seed: u64) -> Self {
        Self {
            limit: AdaptiveLimit::new(16, 1024),
            origin: Instant::now(),
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            overload,
            capacity,
            work: work as f64,
            sigma,
            serving: 0,
            waiting: VecDeque::new(),
            in_flight: 0,
            paused_until: 0,
            state: seed,
        }
    }

    /// Returns a number in the open interval (0, 1), by SplitMix64.
    fn unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((z >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn draw_work(&mut self) -> u64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        (self.work * (self.sigma * normal).exp()) as u64
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn send(&mut self) {
        while self.now >= self.paused_until && self.in_flight < self.limit.limit() {
            self.in_flight += 1;
            if self.serving < self.capacity {
                self.serve(self.now);
            } else if self.overload == Overload::Queues {
                self.waiting.push_back(self.now);
            } else {
                let refused = self.now + (self.work / 100.0) as u64;
                self.schedule(refused, Event::Refused { sent: self.now });
            }
        }
    }

    fn serve(&mut self, sent: u64) {
        self.serving += 1;
        let done = self.now + self.draw_work();
        self.schedule(done, Event::Served { sent });
    }

    fn ended(&mut self, sent: u64, congested: bool) {
        let sample = Sample {
            latency: Duration::from_nanos(self.now - sent),
            in_flight: self.in_flight,
            congested,
        };
        let now = self.origin + Duration::from_nanos(self.now);
        self.limit.completed(now, sample);
        self.in_flight -= 1;
    }

    /// Runs the simulation for this many round trips of the mean work.
    fn run(&mut self, round_trips: f64) -> Stretch {
        self.send();
        let (start, end) = (self.now, self.now + (round_trips * self.work) as u64);
        let (mut area, mut within) = (0.0, 0.0);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            let limit = self.limit.limit() as f64;
            let time = (at.min(end) - self.now) as f64;
            area += time * limit;
            if (limit / self.capacity as f64 - 1.0).abs() <= 0.2 {
                within += time;
            }
            if at > end {
                self.now = end;
                self.schedule(at, event);
                break;
            }
            self.now = at;
            match event {
                Event::Served { sent } => {
                    self.serving -= 1;
                    while self.serving < self.capacity
                        && let Some(sent) = self.waiting.pop_front()
                    {
                        self.serve(sent);
                    }
                    self.ended(sent, false);
                }
                Event::Refused { sent } => {
                    if let Overload::Refuses { retry_after } = self.overload
                        && retry_after > 0.0
                    {
                        self.paused_until = self.now + (retry_after * self.work) as u64;
                        self.schedule(self.paused_until, Event::Resume);
                    }
                    self.ended(sent, true);
                }
                Event::Resume => {}
            }
            self.send();
        }
        let time = (end - start) as f64;
        Stretch {
            mean: area / time,
            within: within / time,
        }
    }
}

const OVERLOADS: [Overload; 3] = [
    Overload::Refuses { retry_after: 0.0 },
    Overload::Refuses { retry_after: 3.0 },
    Overload::Queues,
];
const SIGMAS: [f64; 2] = [0.0, 0.6];

fn every_server(mut check: impl FnMut(Simulation, &str)) {
    for overload in OVERLOADS {
        for sigma in SIGMAS {
            for seed in 0..6 {
                let case = format!("{overload:?}, sigma {sigma}, seed {seed}");
                check(Simulation::new(overload, sigma, 48, SECOND, seed), &case);
            }
        }
    }
}

fn assert_follows(stretch: &Stretch, capacity: f64, case: &str) {
    let off = (stretch.mean / capacity - 1.0).abs();
    assert!(off <= 0.2, "{case}: {stretch:?}");
    assert!(stretch.within >= 0.85, "{case}: {stretch:?}");
}

/// Round trips until the limit is within 20 % of the capacity.
fn time_to_capacity(simulation: &mut Simulation) -> usize {
    (0..1000)
        .find(|_| {
            let ratio = simulation.limit.limit() as f64 / simulation.capacity as f64;
            let arrived = (ratio - 1.0).abs() <= 0.2;
            if !arrived {
                simulation.run(1.0);
            }
            arrived
        })
        .unwrap()
}

#[test]
fn stays_at_the_capacity_of_the_server() {
    every_server(|mut simulation, case| {
        let round_trips = time_to_capacity(&mut simulation);
        assert!(round_trips < 40, "{case}: {round_trips}");
        simulation.run(40.0);
        assert_follows(&simulation.run(600.0), 48.0, case);
    });
}

#[test]
fn follows_a_capacity_that_rises_and_falls() {
    every_server(|mut simulation, case| {
        simulation.run(150.0);
        for (capacity, patience) in [(96, 60), (24, 60)] {
            simulation.capacity = capacity;
            let round_trips = time_to_capacity(&mut simulation);
            assert!(
                round_trips < patience,
                "{case}, capacity {capacity}: {round_trips} round trips"
            );
            simulation.run(60.0);
            let mean = simulation.run(300.0).mean / capacity as f64;
            assert!((mean - 1.0).abs() <= 0.2, "{case}, {capacity}: {mean}");
        }
    });
}

#[test]
fn milliseconds_and_hours_are_the_same() {
    for work in [SECOND / 1000, 3600 * SECOND] {
        for overload in OVERLOADS {
            let mut simulation = Simulation::new(overload, 0.6, 48, work, 1);
            simulation.run(80.0);
            assert_follows(
                &simulation.run(600.0),
                48.0,
                &format!("{overload:?}, {work} ns"),
            );
        }
    }
}

#[test]
fn slower_tasks_are_not_a_queue() {
    for factor in [0.2, 1.3, 2.0, 10.0] {
        for sigma in SIGMAS {
            for seed in 0..6 {
                let case = format!("{factor} times as slow, sigma {sigma}, seed {seed}");
                let mut simulation = Simulation::new(OVERLOADS[0], sigma, 48, SECOND, seed);
                simulation.run(100.0);
                simulation.work *= factor;
                simulation.run(100.0);
                assert_follows(&simulation.run(300.0), 48.0, &case);
            }
        }
    }
}

#[test]
fn a_lone_server_is_asked_one_at_a_time() {
    let mut simulation = Simulation::new(OVERLOADS[0], 0.0, 1, SECOND, 0);
    simulation.run(30.0);
    let stretch = simulation.run(200.0);
    assert!(stretch.mean < 2.0, "{stretch:?}");
}
