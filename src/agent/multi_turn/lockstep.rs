use std::sync::Arc;

use futures::future::join_all;
use indexmap::IndexMap;
use tokio::sync::oneshot;

use super::episode::{Episode, Next, Setup, within};
use crate::environment::{Environment, StepResult};
use crate::retry::{Failure, FailureClass};

/// What becomes of a sample.
pub type Outcome = Result<Vec<u8>, Failure>;

/// A sample's place in a batch. It is given up when nobody waits for the outcome.
#[derive(Debug)]
pub struct Seat {
    episode: Episode,
    caller: oneshot::Sender<Outcome>,
    state: State,
}

#[derive(Debug)]
enum State {
    Playing,
    Over,
    Failed(Failure),
}

impl Seat {
    /// A place, and where its outcome comes.
    pub fn new(episode: Episode) -> (Self, oneshot::Receiver<Outcome>) {
        let (caller, outcome) = oneshot::channel();
        let seat = Self {
            episode,
            caller,
            state: State::Playing,
        };
        (seat, outcome)
    }

    /// Nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    /// Whoever goes away takes the request in flight along.
    async fn begin(&mut self, setup: &Setup) {
        tokio::select! {
            result = self.episode.begin(setup) => self.note(result),
            () = self.caller.closed() => {}
        }
    }

    async fn generate(&mut self, setup: &Setup) {
        let result = tokio::select! {
            result = self.episode.generate(setup) => result,
            () = self.caller.closed() => return,
        };
        if matches!(result, Ok(Next::End)) {
            self.state = State::Over;
        }
        self.note(result.map(|_| ()));
    }

    fn note(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.state = State::Failed(failure);
        }
    }

    fn is_playing(&self) -> bool {
        matches!(self.state, State::Playing)
    }

    /// A caller that has gone does not want it.
    fn leave(self) {
        let _ = self.caller.send(match self.state {
            State::Failed(failure) => Err(failure),
            State::Playing | State::Over => Ok(self.episode.into_answer()),
        });
    }

    fn fail(self, failure: Failure) {
        let _ = self.caller.send(Err(failure));
    }
}

/// Runs a batch to its end: all of its samples take a turn together. Whoever is finished leaves, unless
/// the rules let the whole batch fail; whoever has gone away is left out of the next call.
pub async fn run_batch(setup: &Setup, seats: Vec<Seat>) {
    let mut batch = Batch {
        setup,
        playing: seats,
        waiting: Vec::new(),
    };
    batch.playing.retain(|seat| !seat.is_abandoned());
    for seat in &mut batch.playing {
        if !seat.episode.goes_on() {
            seat.state = State::Over;
        }
    }
    join_all(playing(&mut batch.playing).map(|seat| seat.begin(setup))).await;
    while batch.sort_out() {
        join_all(playing(&mut batch.playing).map(|seat| seat.generate(setup))).await;
        if batch.sort_out() {
            step(setup, &mut batch.playing).await;
        }
    }
    batch.waiting.into_iter().for_each(Seat::leave);
}

fn playing(seats: &mut [Seat]) -> impl Iterator<Item = &mut Seat> {
    seats.iter_mut().filter(|seat| seat.is_playing())
}

struct Batch<'a> {
    setup: &'a Setup,
    playing: Vec<Seat>,
    /// Those that are over, as long as the others can still take them along.
    waiting: Vec<Seat>,
}

impl Batch<'_> {
    /// Lets those leave that are over, and says whether any go on.
    fn sort_out(&mut self) -> bool {
        self.playing.retain(|seat| !seat.is_abandoned());
        let fails_whole = self.setup.rules.fails_whole_batch();
        let failure = self.playing.iter().find_map(|seat| match &seat.state {
            State::Failed(failure) if fails_whole && !failure.class.leaves_pending() => {
                Some(failure.clone())
            }
            _ => None,
        });
        if let Some(failure) = failure {
            // What its answer says of one sample is not said of the others.
            let of_others = Failure {
                failure_terminal: false,
                answer: None,
                ..failure
            };
            for seat in self.playing.drain(..).chain(self.waiting.drain(..)) {
                match seat.state {
                    State::Failed(_) => seat.leave(),
                    _ => seat.fail(of_others.clone()),
                }
            }
            return false;
        }
        for seat in self.playing.extract_if(.., |seat| !seat.is_playing()) {
            if fails_whole && !matches!(seat.state, State::Failed(_)) {
                self.waiting.push(seat);
            } else {
                seat.leave();
            }
        }
        !self.playing.is_empty()
    }
}

/// One step of each environment with all of its samples, all environments at the same time.
async fn step(setup: &Setup, seats: &mut [Seat]) {
    let mut groups: IndexMap<Arc<str>, Vec<&mut Seat>> = IndexMap::new();
    for seat in seats {
        let name = Arc::clone(seat.episode.task_name());
        groups.entry(name).or_default().push(seat);
    }
    join_all(groups.into_values().map(|seats| step_group(setup, seats))).await;
}

async fn step_group(setup: &Setup, mut seats: Vec<&mut Seat>) {
    let Some(environment) = seats.first().map(|seat| seat.episode.environment().clone()) else {
        return;
    };
    let results = step_together(setup, &*environment, &mut seats).await;
    let results = results.and_then(|results| match results {
        Some(results) if results.len() != seats.len() => {
            let (given, asked) = (results.len(), seats.len());
            let why = format!("the environment gave {given} results for {asked} samples");
            Err(Failure::new(FailureClass::Data, why))
        }
        results => Ok(results),
    });
    match results {
        Ok(results) => {
            for (seat, result) in seats.iter_mut().zip(results.into_iter().flatten()) {
                let taken = match result {
                    Ok(result) => seat.episode.stepped(setup, result),
                    Err(failure) => Err(seat.episode.step_failed(failure)),
                };
                seat.note(taken);
                if seat.is_playing() && !seat.episode.goes_on() {
                    seat.state = State::Over;
                }
            }
        }
        Err(failure) => {
            for seat in seats {
                let failure = seat.episode.step_failed(failure.clone());
                seat.note(Err(failure));
            }
        }
    }
}

/// The results of the samples of a step.
type Results = Vec<Result<StepResult, Failure>>;

/// The results of one step; none if all callers went away before it was done.
async fn step_together(
    setup: &Setup,
    environment: &dyn Environment,
    seats: &mut [&mut Seat],
) -> Result<Option<Results>, Failure> {
    let (mut samples, callers): (Vec<_>, Vec<_>) = seats
        .iter_mut()
        .map(|seat| {
            let Seat {
                episode, caller, ..
            } = &mut **seat;
            (episode.as_sample(), caller.closed())
        })
        .unzip();
    let step = environment.step(&mut samples);
    let step = within(setup.limits.step_timeout, "step_timeout", step);
    tokio::select! {
        results = step => results.map(Some),
        _ = join_all(callers) => Ok(None),
    }
}
