//! A sweep on many machines in virtual time.
//!
//! Every call is an event, so that no formula stands for the tail: an executor has places for calls, which its shards take
//! in turns as they fall free; a slot asks for the next shard when one has sent all, and a shard ends with its longest call.
//! What the processes ask of the store on the way is in [`Store`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use clap::Args;
use rollstream::sim::{Draws, Latency};

use super::fleet_store::{Journals, Micros, SECOND, Store};

/// The sweep and its machines.
#[derive(Debug, Clone, Args)]
pub struct Model {
    /// Executors
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub executors: usize,
    /// Slots of an executor
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub slots: usize,
    /// Cores of an executor
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub cores: usize,
    /// Calls in flight of an executor
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub calls: usize,
    /// Time to an answer
    #[arg(long, value_name = "DISTRIBUTION", default_value = "lognormal:30s,1")]
    pub latency: Latency,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repeats_of_a_task: u64,
    /// Bytes of a rollout in a part
    #[arg(long, value_name = "N", default_value_t = 4096.0)]
    pub answer_bytes: f64,
    /// Time of a request to the store, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub round_trip_ms: u64,
    /// Whether executors claim their slots, as those of `local:N` do not.
    #[arg(skip = true)]
    pub claims: bool,
    #[arg(skip)]
    pub rollouts: u64,
    /// Executors whose calls take [`SLOWNESS`] times as long.
    #[arg(skip)]
    pub slow: usize,
}

/// How much slower the calls of a slow executor are.
const SLOWNESS: u64 = 20;

/// Shards of a slot, how many of them an executor has at a time, and the fewest rollouts of a partition: those of the
/// program.
const SHARDS_PER_SLOT: usize = 8;
const MOST_SHARDS: usize = 4;
const ROLLOUTS_OF_A_PARTITION: u64 = 4096;

/// What became of the sweep.
#[derive(Debug)]
pub struct Outcome {
    pub store: Store,
    pub end: Micros,
    /// From the first executor without a shard to the end.
    pub tail: Micros,
    /// The time that the calls take if all places are in use until the end.
    pub ideal: Micros,
    /// The time of a look of the driver.
    pub look: Micros,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A call was answered.
    Answer,
    /// A shard can send.
    Ready,
    /// A slot may be free for a shard.
    Ask,
}

/// A shard at work.
#[derive(Debug)]
struct Shard {
    pending: u64,
    in_flight: u64,
    journals: Journals,
}

#[derive(Debug)]
struct Machine {
    slowness: u64,
    slots: usize,
    shards: Vec<Option<Shard>>,
    /// Calls that it may still make.
    free: usize,
    turn: usize,
    draws: Draws,
}

/// A sweep at work.
struct Simulation<'a> {
    model: &'a Model,
    /// With their machines and the places of shards there.
    events: BinaryHeap<Reverse<(Micros, usize, usize, Event)>>,
    machines: Vec<Machine>,
    /// The rollouts of the shards that nobody has taken.
    shards: VecDeque<u64>,
    store: Store,
    /// The time of all calls on machines that are not slow.
    called: Micros,
    first_idle: Option<Micros>,
    end: Micros,
}

impl Model {
    /// Runs the sweep from its first shard to the end of the run.
    pub fn run(&self) -> Outcome {
        let shards = self.shards();
        let count = shards.len() as u64;
        let slots = (0..self.executors)
            .flat_map(|machine| (0..self.slots).map(move |slot| (machine, slot)));
        let mut simulation = Simulation {
            model: self,
            events: slots
                .map(|(machine, slot)| Reverse((0, machine, slot, Event::Ask)))
                .collect(),
            machines: (0..self.executors)
                .map(|number| self.machine(number))
                .collect(),
            shards,
            store: Store::new(self.round_trip_ms * 1000, self.answer_bytes),
            called: 0,
            first_idle: None,
            end: 0,
        };
        while let Some(Reverse(event)) = simulation.events.pop() {
            simulation.happen(event);
        }
        let Simulation {
            mut store,
            end,
            called,
            first_idle,
            ..
        } = simulation;
        let working = (self.executors * self.slots) as u64;
        let claims = if self.claims { self.executors } else { 0 };
        let look = store.drive(count, working, claims as u64, end);
        let places = (self.executors - self.slow) as u64 * SLOWNESS + self.slow as u64;
        Outcome {
            store,
            end,
            tail: end - first_idle.unwrap_or(end),
            ideal: called / (places * self.calls as u64) * SLOWNESS,
            look,
        }
    }

    /// Tasks are dealt out to shards by their index.
    fn shards(&self) -> VecDeque<u64> {
        let tasks = self.rollouts / self.repeats_of_a_task;
        let count = (self.executors * self.slots * SHARDS_PER_SLOT) as u64;
        let count = count.min(tasks).max(1);
        let tasks_of = |shard| (tasks + count - 1 - shard) / count;
        (0..count)
            .map(|shard| tasks_of(shard) * self.repeats_of_a_task)
            .collect()
    }

    fn machine(&self, number: usize) -> Machine {
        Machine {
            slowness: if number < self.slow { SLOWNESS } else { 1 },
            slots: self.slots,
            shards: (0..self.slots * MOST_SHARDS).map(|_| None).collect(),
            free: self.calls,
            turn: 0,
            draws: Draws::keyed(1, &[number as u64]),
        }
    }
}

impl Simulation<'_> {
    fn happen(&mut self, (now, machine, place, event): (Micros, usize, usize, Event)) {
        match event {
            Event::Answer => self.answer(machine, place, now),
            Event::Ask => self.ask(machine, now),
            Event::Ready => {}
        }
        self.fill(machine, now);
    }

    fn push(&mut self, at: Micros, machine: usize, place: usize, event: Event) {
        self.events.push(Reverse((at, machine, place, event)));
    }

    fn ask(&mut self, machine: usize, now: Micros) {
        let of = &mut self.machines[machine];
        let sends = |shard: &&Shard| shard.pending > 0;
        let sending = of.shards.iter().flatten().filter(sends).count();
        let place = of.shards.iter().position(Option::is_none);
        let Some(place) = place.filter(|_| sending < of.slots) else {
            return;
        };
        let Some(pending) = self.shards.pop_front() else {
            if of.shards.iter().all(Option::is_none) {
                self.first_idle.get_or_insert(now);
            }
            return;
        };
        let partitions = (pending / ROLLOUTS_OF_A_PARTITION) as usize;
        let partitions = partitions.min(self.model.cores / self.model.slots).max(1);
        let journals = self.store.begin(partitions, now);
        let ready = journals.ready;
        self.machines[machine].shards[place] = Some(Shard {
            pending,
            in_flight: 0,
            journals,
        });
        self.push(ready, machine, place, Event::Ready);
    }

    /// Sends calls of the shards in turns, as long as there are places.
    fn fill(&mut self, number: usize, now: Micros) {
        let machine = &mut self.machines[number];
        let places = machine.shards.len();
        let mut passed = 0;
        while machine.free > 0 && passed < places {
            let place = machine.turn % places;
            machine.turn = place + 1;
            let can_send = |shard: &&mut Shard| shard.pending > 0 && shard.journals.ready <= now;
            let Some(shard) = machine.shards[place].as_mut().filter(can_send) else {
                passed += 1;
                continue;
            };
            passed = 0;
            shard.pending -= 1;
            if shard.pending == 0 {
                self.events.push(Reverse((now, number, place, Event::Ask)));
            }
            shard.in_flight += 1;
            machine.free -= 1;
            self.store.dispatch(&mut shard.journals, now);
            let latency = self.model.latency.sample(&mut machine.draws).as_micros() as Micros;
            self.called += latency;
            let at = now + latency * machine.slowness;
            self.events
                .push(Reverse((at, number, place, Event::Answer)));
        }
    }

    fn answer(&mut self, machine: usize, place: usize, now: Micros) {
        let of = &mut self.machines[machine];
        of.free += 1;
        let Some(shard) = of.shards[place].as_mut() else {
            return;
        };
        shard.in_flight -= 1;
        self.store.land(&mut shard.journals, now);
        if shard.pending + shard.in_flight == 0 {
            let ended = self.store.end(&shard.journals, now);
            of.shards[place] = None;
            self.end = self.end.max(ended);
            self.push(ended, machine, place, Event::Ask);
        }
    }
}

pub fn seconds(micros: Micros) -> f64 {
    micros as f64 / SECOND as f64
}
