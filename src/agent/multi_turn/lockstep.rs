use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use indexmap::IndexMap;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::MultiTurnOptions;
use super::episode::{AfterGeneration, Episode};
use crate::environment::{Environment, StepResult};
use crate::retry::{Failure, FailureClass};

/// A batch that is not full begins when no sample has come for this long.
const LINGER: Duration = Duration::from_millis(20);

/// Gathers samples into batches and runs the batches. All of its work ends when it is dropped.
#[derive(Debug)]
pub struct Batcher {
    options: Arc<MultiTurnOptions>,
    queue: Mutex<Option<Queue>>,
}

/// The channel in which samples wait, and the task that gathers them into batches.
#[derive(Debug)]
struct Queue {
    episodes: mpsc::Sender<BatchedEpisode>,
    /// The task that gathers batches. It ends when this is dropped.
    _task: JoinSet<()>,
}

impl Batcher {
    /// Creates a batcher. Nothing runs before the first sample comes.
    pub fn new(options: Arc<MultiTurnOptions>) -> Self {
        Self {
            options,
            queue: Mutex::default(),
        }
    }

    /// Adds a sample. If the sample gets lost, the receiver of its outcome returns an error.
    pub async fn join(&self, batched: BatchedEpisode) {
        let episodes = self.queue();
        let _ = episodes.send(batched).await;
    }

    fn queue(&self) -> mpsc::Sender<BatchedEpisode> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // The runtime of an earlier call may be gone, and so may its tasks.
        if let Some(queue) = queue.as_ref().filter(|queue| !queue.episodes.is_closed()) {
            return queue.episodes.clone();
        }
        let batch_size = self
            .options
            .batch_size
            .map_or(BATCH_SIZE, NonZeroUsize::get);
        let (episodes, arriving) = mpsc::channel(batch_size.min(MOST_ARRIVING));
        let mut task = JoinSet::new();
        task.spawn(gather(Arc::clone(&self.options), batch_size, arriving));
        *queue = Some(Queue {
            episodes: episodes.clone(),
            _task: task,
        });
        episodes
    }
}

/// The most samples of a batch, unless settings say otherwise.
const BATCH_SIZE: usize = 1024;

/// The most samples that wait for a batch.
const MOST_ARRIVING: usize = 1024;

async fn gather(
    options: Arc<MultiTurnOptions>,
    size: usize,
    mut arriving: mpsc::Receiver<BatchedEpisode>,
) {
    let mut batches = JoinSet::new();
    while let Some(first) = arriving.recv().await {
        let mut episodes = vec![first];
        while episodes.len() < size {
            match timeout(LINGER, arriving.recv()).await {
                Ok(Some(batched)) => episodes.push(batched),
                Ok(None) | Err(_) => break,
            }
            episodes.retain(|batched| !batched.is_abandoned());
        }
        while batches.try_join_next().is_some() {}
        let options = Arc::clone(&options);
        batches.spawn(async move { run_batch(&options, episodes).await });
    }
    while batches.join_next().await.is_some() {}
}

/// The answer of a sample as JSON text, or its failure.
pub type Outcome = Result<Vec<u8>, Failure>;

/// A sample in a batch. It is abandoned if nobody waits for the outcome.
#[derive(Debug)]
pub struct BatchedEpisode {
    episode: Episode,
    caller: oneshot::Sender<Outcome>,
    state: Phase,
}

#[derive(Debug)]
enum Phase {
    Playing,
    Over,
    Failed(Failure),
}

impl BatchedEpisode {
    /// Creates a place in a batch, and the receiver of its outcome.
    pub fn new(episode: Episode) -> (Self, oneshot::Receiver<Outcome>) {
        let (caller, outcome) = oneshot::channel();
        let batched = Self {
            episode,
            caller,
            state: Phase::Playing,
        };
        (batched, outcome)
    }

    /// Returns whether nobody waits for the outcome any more.
    pub fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    /// Begins the episode. If the caller goes away, the request in flight ends too.
    async fn begin(&mut self, options: &MultiTurnOptions) {
        tokio::select! {
            result = self.episode.begin(options) => self.note(result),
            () = self.caller.closed() => {}
        }
    }

    async fn generate(&mut self, options: &MultiTurnOptions) {
        let result = tokio::select! {
            result = self.episode.generate(options) => result,
            () = self.caller.closed() => return,
        };
        if matches!(result, Ok(AfterGeneration::End)) {
            self.state = Phase::Over;
        }
        self.note(result.map(|_| ()));
    }

    fn note(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.state = Phase::Failed(failure);
        }
    }

    fn is_playing(&self) -> bool {
        matches!(self.state, Phase::Playing)
    }

    /// Sends the outcome to the caller, if the caller is still there.
    fn leave(self) {
        let _ = self.caller.send(match self.state {
            Phase::Failed(failure) => Err(failure),
            Phase::Playing | Phase::Over => Ok(self.episode.into_answer()),
        });
    }

    fn fail(self, failure: Failure) {
        let _ = self.caller.send(Err(failure));
    }
}

/// Runs a batch to its end: all of its samples take each turn together. A finished sample leaves, unless rules fail a
/// whole batch at once. A sample whose caller went away is left out of the next call.
pub async fn run_batch(options: &MultiTurnOptions, episodes: Vec<BatchedEpisode>) {
    let mut batch = LockstepBatch {
        options,
        playing: episodes,
        waiting: Vec::new(),
    };
    batch.playing.retain(|batched| !batched.is_abandoned());
    for batched in &mut batch.playing {
        if !batched.episode.goes_on() {
            batched.state = Phase::Over;
        }
    }
    join_all(playing(&mut batch.playing).map(|batched| batched.begin(options))).await;
    while batch.sort_out() {
        join_all(playing(&mut batch.playing).map(|batched| batched.generate(options))).await;
        if batch.sort_out() {
            step(options, &mut batch.playing).await;
        }
    }
    batch.waiting.into_iter().for_each(BatchedEpisode::leave);
}

fn playing(episodes: &mut [BatchedEpisode]) -> impl Iterator<Item = &mut BatchedEpisode> {
    episodes.iter_mut().filter(|batched| batched.is_playing())
}

struct LockstepBatch<'a> {
    options: &'a MultiTurnOptions,
    playing: Vec<BatchedEpisode>,
    /// The ended samples that a failure of the others can still fail.
    waiting: Vec<BatchedEpisode>,
}

impl LockstepBatch<'_> {
    /// Removes the ended samples, and returns whether any remain.
    fn sort_out(&mut self) -> bool {
        self.playing.retain(|batched| !batched.is_abandoned());
        let fails_whole = self.options.rules.is_lockstep();
        let failure = self
            .playing
            .iter()
            .find_map(|batched| match &batched.state {
                Phase::Failed(failure) if fails_whole && !failure.class.leaves_pending() => {
                    Some(failure.clone())
                }
                _ => None,
            });
        if let Some(failure) = failure {
            // The answer and its flags are about one sample, not about the others.
            let of_others = Failure {
                failure_terminal: false,
                answer: None,
                ..failure
            };
            for batched in self.playing.drain(..).chain(self.waiting.drain(..)) {
                match batched.state {
                    Phase::Failed(_) => batched.leave(),
                    _ => batched.fail(of_others.clone()),
                }
            }
            return false;
        }
        for batched in self.playing.extract_if(.., |batched| !batched.is_playing()) {
            if fails_whole && !matches!(batched.state, Phase::Failed(_)) {
                self.waiting.push(batched);
            } else {
                batched.leave();
            }
        }
        !self.playing.is_empty()
    }
}

/// Takes one step of each environment with all of its samples, in all environments at the same time.
async fn step(options: &MultiTurnOptions, episodes: &mut [BatchedEpisode]) {
    let mut groups: IndexMap<Arc<str>, Vec<&mut BatchedEpisode>> = IndexMap::new();
    for batched in episodes {
        let name = Arc::clone(batched.episode.task_name());
        groups.entry(name).or_default().push(batched);
    }
    join_all(
        groups
            .into_values()
            .map(|episodes| step_group(options, episodes)),
    )
    .await;
}

async fn step_group(options: &MultiTurnOptions, mut episodes: Vec<&mut BatchedEpisode>) {
    let Some(environment) = episodes
        .first()
        .map(|batched| batched.episode.environment().clone())
    else {
        return;
    };
    let results = step_together(&*environment, &mut episodes).await;
    let results = results.and_then(|results| match results {
        Some(results) if results.len() != episodes.len() => {
            let (given, asked) = (results.len(), episodes.len());
            let why = format!("the environment gave {given} results for {asked} samples");
            Err(Failure::new(FailureClass::Data, why))
        }
        results => Ok(results),
    });
    match results {
        Ok(results) => {
            for (batched, result) in episodes.iter_mut().zip(results.into_iter().flatten()) {
                let taken = match result {
                    Ok(result) => batched.episode.stepped(options, result),
                    Err(failure) => Err(batched.episode.step_failed(failure)),
                };
                batched.note(taken);
                if batched.is_playing() && !batched.episode.goes_on() {
                    batched.state = Phase::Over;
                }
            }
        }
        Err(failure) => {
            for batched in episodes {
                let failure = batched.episode.step_failed(failure.clone());
                batched.note(Err(failure));
            }
        }
    }
}

/// The results of the samples of a step.
type Results = Vec<Result<StepResult, Failure>>;

/// Returns the results of one step; none if all callers went away before its end.
async fn step_together(
    environment: &dyn Environment,
    episodes: &mut [&mut BatchedEpisode],
) -> Result<Option<Results>, Failure> {
    let (mut samples, callers): (Vec<_>, Vec<_>) = episodes
        .iter_mut()
        .map(|batched| {
            let BatchedEpisode {
                episode, caller, ..
            } = &mut **batched;
            (episode.as_sample(), caller.closed())
        })
        .unzip();
    let step = environment.step(&mut samples);
    tokio::select! {
        results = step => results.map(Some),
        _ = join_all(callers) => Ok(None),
    }
}
