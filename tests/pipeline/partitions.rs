//! The operator in several partitions: what is asked for is asked for once in all, and what belongs to an agent is
//! shared by all partitions.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use async_trait::async_trait;
use futures::TryStreamExt;
use rollstream::agent::{Agent, AgentLimits, Reply, RolloutRequest};
use rollstream::config::{Concurrency, Settings};
use rollstream::retry::{Failure, FailureClass};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use super::operator::{Operator, answered};
use super::workspace::until;

/// Far longer than anything takes: a test that fails must not hang.
const DEADLINE: Duration = Duration::from_secs(120);

/// Counts what it is asked, and how much at a time.
#[derive(Debug, Default)]
struct Counting {
    in_flight: AtomicUsize,
    most: AtomicUsize,
    asked: Mutex<BTreeMap<i64, usize>>,
}

#[async_trait]
impl Agent for Counting {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let task = request.key().task_index;
        *self.asked.lock().unwrap().entry(task).or_default() += 1;
        // Others get a turn meanwhile.
        tokio::task::yield_now().await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        answered(r#"{"reward": 1}"#)
    }

    fn address(&self) -> &str {
        "counting"
    }
}

fn limits() -> AgentLimits {
    AgentLimits::of("agent", &Settings::default())
}

fn tasks(batches: &[RecordBatch]) -> Vec<i64> {
    let of = |batch: &RecordBatch| {
        let column = batch.column_by_name("task_index").unwrap();
        column.as_primitive::<Int64Type>().values().to_vec()
    };
    let mut tasks: Vec<i64> = batches.iter().flat_map(of).collect();
    tasks.sort_unstable();
    tasks
}

async fn all(operator: &Operator, concurrency: usize) -> Vec<i64> {
    let rows = operator.stream(concurrency).try_collect::<Vec<_>>();
    let rows = timeout(DEADLINE, rows).await.expect("it stands still");
    tasks(&rows.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_is_answered_once_and_limits_hold_for_all_partitions_together() {
    for partitions in [1, 2, 5] {
        for (concurrency, limit) in [(7, None), (64, Some(6)), (3, None), (1, None)] {
            let agent = Arc::new(Counting::default());
            let limits = AgentLimits {
                concurrency: limit.map(Concurrency::Fixed),
                ..limits()
            };
            let operator = Operator::new(Arc::clone(&agent) as _, None, 13, 40)
                .limited(limits)
                .partitioned(partitions);
            let case = format!("{partitions} partitions, {concurrency} calls, {limit:?}");
            assert_eq!(
                all(&operator, concurrency).await,
                (0..520).collect::<Vec<_>>(),
                "{case}"
            );
            let asked = agent.asked.lock().unwrap().clone();
            assert_eq!(asked.len(), 520, "{case}");
            assert!(asked.values().all(|times| *times == 1), "{case}");
            let most = agent.most.load(Ordering::SeqCst);
            assert!(
                most <= limit.unwrap_or(concurrency).min(concurrency),
                "{case}: {most}"
            );
            assert_eq!(operator.progress.in_flight(), 0, "{case}");
        }
    }
}

/// Answers nobody; each call holds what is held.
#[derive(Debug, Default)]
struct Holding {
    held: Arc<()>,
    asked: Mutex<Vec<i64>>,
}

#[async_trait]
impl Agent for Holding {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let _held = Arc::clone(&self.held);
        self.asked.lock().unwrap().push(request.key().task_index);
        pending::<Reply>().await
    }

    fn address(&self) -> &str {
        "holding"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_places_are_used_and_what_is_dropped_or_aborted_leaves_none_to_others() {
    for is_aborted in [false, true] {
        let agent = Arc::new(Holding::default());
        let operator = Operator::new(Arc::clone(&agent) as _, None, 10, 20).partitioned(5);
        let stream = operator.stream(12);
        until("12 calls wait", || Arc::strong_count(&agent.held) == 1 + 12).await;
        if is_aborted {
            operator.shutdown.abort();
            let rows = timeout(DEADLINE, stream.try_collect::<Vec<_>>()).await;
            assert_eq!(tasks(&rows.unwrap().unwrap()).len(), 12);
            assert_eq!(operator.progress.in_flight(), 0);
        } else {
            drop(stream);
        }
        until("no call waits", || Arc::strong_count(&agent.held) == 1).await;
        assert_eq!(agent.asked.lock().unwrap().len(), 12);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_answers_nobody_takes_holds_up_no_other() {
    let agent = Arc::new(Counting::default());
    let operator = Operator::new(Arc::clone(&agent) as _, None, 20, 1000).partitioned(2);
    let mut partitions = operator.partitions(8);
    let taken = partitions.pop().unwrap();
    // Every other batch is its own.
    let rows = timeout(DEADLINE, taken.try_collect::<Vec<_>>()).await;
    let rows = tasks(&rows.expect("the other partition holds it up").unwrap());
    assert_eq!(rows.len(), 10_000);

    let left = partitions.pop().unwrap();
    let rows = timeout(DEADLINE, left.try_collect::<Vec<_>>()).await;
    assert_eq!(tasks(&rows.unwrap().unwrap()).len(), 10_000);
}

/// Answers as often as it is allowed to, and knows how many calls of each partition wait.
#[derive(Debug)]
struct Gated {
    gate: Semaphore,
    asked: AtomicUsize,
    waiting: [AtomicUsize; 2],
}

/// Rows of a batch, and calls in flight, of the test of fair shares.
const ROWS: usize = 50;
const PLACES: usize = 8;

impl Gated {
    fn waiting(&self) -> [usize; 2] {
        [0, 1].map(|partition: usize| self.waiting[partition].load(Ordering::SeqCst))
    }

    /// Lets one go, and waits until another has taken its place.
    async fn one(&self) {
        let asked = self.asked.load(Ordering::SeqCst);
        self.gate.add_permits(1);
        let is_filled = || {
            let all: usize = self.waiting().iter().sum();
            self.asked.load(Ordering::SeqCst) == asked + 1 && all == PLACES
        };
        until("the place is taken", is_filled).await;
    }
}

#[async_trait]
impl Agent for Gated {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let waiting = &self.waiting[(request.key().task_index as usize / ROWS) % 2];
        waiting.fetch_add(1, Ordering::SeqCst);
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        waiting.fetch_sub(1, Ordering::SeqCst);
        answered(r#"{"reward": 1}"#)
    }

    fn address(&self) -> &str {
        "gated"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_partition_gets_its_share_of_the_places_and_the_last_gets_all() {
    let agent = Arc::new(Gated {
        gate: Semaphore::new(0),
        asked: AtomicUsize::new(0),
        waiting: Default::default(),
    });
    let operator = Operator::new(Arc::clone(&agent) as _, None, 13, ROWS).partitioned(2);
    let rows = operator.stream(PLACES).try_collect::<Vec<_>>();
    let steps = async {
        let are_full = || agent.waiting().iter().sum::<usize>() == PLACES;
        let is_read = || operator.num_read() == 13;
        until("all places are taken", are_full).await;
        until("both have rows", is_read).await;
        // Whoever came first has more of them.
        let mut rounds = 0;
        while agent.waiting() != [PLACES / 2; 2] {
            agent.one().await;
            rounds += 1;
            assert!(rounds < 100, "{:?}", agent.waiting());
        }
        for _ in 0..50 {
            agent.one().await;
            assert_eq!(agent.waiting(), [PLACES / 2; 2]);
        }
        // The first partition has a batch more than the second.
        while agent.waiting() != [PLACES, 0] {
            agent.one().await;
        }
        agent.gate.add_permits(13 * ROWS);
    };
    let (rows, ()) = timeout(DEADLINE, async { tokio::join!(rows, steps) })
        .await
        .unwrap();
    assert_eq!(tasks(&rows.unwrap()).len(), 13 * ROWS);
}

/// Answers one after the other, from when all partitions have rows.
#[derive(Debug, Default)]
struct Orderly {
    has_begun: Notify,
    asked: Mutex<Vec<usize>>,
}

#[async_trait]
impl Agent for Orderly {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let partition = request.key().task_index as usize / 100 % 5;
        let is_first = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(partition);
            asked.len() == 1
        };
        if is_first {
            self.has_begun.notified().await;
        }
        answered(r#"{"reward": 1}"#)
    }

    fn address(&self) -> &str {
        "orderly"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_take_turns_where_there_is_one_place_for_all() {
    let agent = Arc::new(Orderly::default());
    let operator = Operator::new(Arc::clone(&agent) as _, None, 10, 100).partitioned(5);
    let rows = operator.stream(1).try_collect::<Vec<_>>();
    let begin = async {
        // Who has read a second batch has rows of the first.
        until("all have rows", || operator.num_read() == 10).await;
        agent.has_begun.notify_one();
    };
    let (rows, ()) = timeout(DEADLINE, async { tokio::join!(rows, begin) })
        .await
        .unwrap();
    assert_eq!(tasks(&rows.unwrap()).len(), 1000);
    let asked = agent.asked.lock().unwrap().clone();
    for partition in 0..5 {
        let first = asked.iter().position(|of| *of == partition).unwrap();
        assert!(
            first < 100,
            "partition {partition} comes after {first} others"
        );
    }
}

/// Fails each first attempt.
#[derive(Debug, Default)]
struct Flaky {
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Agent for Flaky {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        if request.key().attempt > 0 {
            return answered(r#"{"reward": 1}"#);
        }
        Reply::new(Err(Failure {
            http_status: Some(429),
            ..Failure::new(FailureClass::Infra, "later")
        }))
    }

    fn address(&self) -> &str {
        "flaky"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_has_nothing_but_retries_left_gets_places_for_them() {
    let agent = Arc::new(Flaky::default());
    let operator = Operator::new(Arc::clone(&agent) as _, None, 50, 4).partitioned(5);
    assert_eq!(all(&operator, 2).await.len(), 2 * 200);
    assert!(agent.most.load(Ordering::SeqCst) <= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_holds_for_all_partitions_together() {
    for partitions in [1, 5] {
        let agent = Arc::new(Counting::default());
        let limits = AgentLimits {
            requests_per_second: Some(50.0),
            ..limits()
        };
        let operator = Operator::new(Arc::clone(&agent) as _, None, 5, 10)
            .limited(limits)
            .partitioned(partitions);
        let began = Instant::now();
        assert_eq!(all(&operator, 64).await.len(), 50);
        // The first comes at once. Slower is no fault, faster is.
        assert!(
            began.elapsed() >= Duration::from_millis(49 * 20),
            "{partitions}"
        );
    }
}

/// Refuses the first call, and notes when calls come.
#[derive(Debug, Default)]
struct Refusing {
    refused_at: Mutex<Option<Instant>>,
    next: Mutex<Option<Instant>>,
}

const PAUSE: Duration = Duration::from_millis(500);

#[async_trait]
impl Agent for Refusing {
    async fn run(&self, _: RolloutRequest) -> Reply {
        let now = Instant::now();
        let mut refused_at = self.refused_at.lock().unwrap();
        if refused_at.is_none() {
            *refused_at = Some(now);
            return Reply::new(Err(Failure {
                http_status: Some(429),
                retry_after: Some(PAUSE),
                ..Failure::new(FailureClass::Infra, "too many")
            }));
        }
        self.next.lock().unwrap().get_or_insert(now);
        answered(r#"{"reward": 1}"#)
    }

    fn address(&self) -> &str {
        "refusing"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_asks_for_holds_for_all_partitions() {
    let agent = Arc::new(Refusing::default());
    let operator = Operator::new(Arc::clone(&agent) as _, None, 10, 10).partitioned(5);
    // One at a time: no other is on its way when it refuses.
    assert_eq!(all(&operator, 1).await.len(), 101);
    let refused_at = agent.refused_at.lock().unwrap().unwrap();
    let next = agent.next.lock().unwrap().unwrap();
    assert!(next - refused_at >= PAUSE, "{:?}", next - refused_at);
}

/// Is not there.
#[derive(Debug, Default)]
struct Absent;

#[async_trait]
impl Agent for Absent {
    async fn run(&self, _: RolloutRequest) -> Reply {
        Reply::new(Err(Failure {
            unreachable: true,
            ..Failure::new(FailureClass::Infra, "nobody is there")
        }))
    }

    fn address(&self) -> &str {
        "absent"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_down_is_found_out_and_abandoned_once() {
    let limits = AgentLimits {
        budgets: rollstream::retry::Budgets {
            infra: 1000,
            ..limits().budgets
        },
        ..limits()
    };
    let operator = Operator::new(Arc::new(Absent), None, 10, 10)
        .limited(limits)
        .patient(Duration::from_secs(1))
        .partitioned(5);
    let rows = all(&operator, 10).await;
    // Those that were on their way when it was found out, and no probe: it never answered.
    assert!((3..=10 + 3).contains(&rows.len()), "{rows:?}");
    let notices = operator.progress.take_notices();
    let said = |text: &str| {
        notices
            .iter()
            .filter(|notice| notice.contains(text))
            .count()
    };
    assert_eq!(said("can't be reached"), 1, "{notices:?}");
    assert_eq!(said("could not be reached for"), 1, "{notices:?}");
    assert_eq!(notices.len(), 2, "{notices:?}");
}
