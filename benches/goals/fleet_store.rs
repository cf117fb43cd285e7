//! What the processes of a large sweep ask of the store: [`Store`] adds it up by second.

use std::mem;
use std::ops::AddAssign;

use rollstream::config::Settings;

/// Microseconds since the sweep began.
pub type Micros = u64;

pub const SECOND: Micros = 1_000_000;

/// Requests to the store: puts and posts, listings, gets and heads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked(pub u64, pub u64, pub u64);

// What the program does. The small sweep beside the model shows whether it still does.

/// The intervals of copies of the journal, of reports and looks at the board, and of renewals of a lock.
const CHECKPOINT: Micros = SECOND;
const LOOK: Micros = 2 * SECOND;
const RENEWAL: Micros = 15 * SECOND;

/// By a shard from the spec to its first call: locks, tables, journals, tasks. Counted in a sweep.
const BEGIN: Asked = Asked(3, 22, 16);

/// Looks of a shard that begins at the names of all parts, of which it reads its own.
const LOOKS_AT_BEGIN: u64 = 2;

/// By a shard from its last part to the release of its lock. Counted, too.
const END: Asked = Asked(3, 1, 2);

/// Gets of each part of the run when the driver ends it, by recovery, counts and metrics. Counted, too.
const GETS_AT_END: u64 = 14;

/// In an object store, a segment may be as old as the elapsed time divided by this.
const SHARE_OF_TIME: u64 = 8;

/// A larger part is uploaded in pieces.
const PIECE_BYTES: f64 = 5.0 * 1024.0 * 1024.0;

/// Objects that a process reads at once.
const READS: u64 = 32;

/// Objects in a page of a listing.
const PAGE: u64 = 1000;

/// Bytes of an attempt in a part.
const ATTEMPT_BYTES: f64 = 40.0;

/// The journals of a shard, one for each partition.
#[derive(Debug)]
pub struct Journals {
    /// When the shard was taken, and when it could send.
    taken: Micros,
    pub ready: Micros,
    of: Vec<Journal>,
    answers: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Journal {
    /// The last checkpoints of the dispatches and of the rows.
    copied: [Micros; 2],
    rows: u64,
    began: Micros,
}

impl Journals {
    /// The partition whose turn it is.
    fn journal(&mut self) -> &mut Journal {
        let place = self.answers % self.of.len();
        &mut self.of[place]
    }
}

/// Counts what is asked.
#[derive(Debug, Default)]
pub struct Store {
    /// By second.
    pub asked: Vec<Asked>,
    pub parts: u64,
    round_trip: Micros,
    answer_bytes: f64,
    settings: Settings,
}

impl Store {
    pub fn new(round_trip: Micros, answer_bytes: f64) -> Self {
        Self {
            round_trip,
            answer_bytes,
            ..Self::default()
        }
    }

    /// What was asked in all.
    pub fn total(&self) -> Asked {
        let mut total = Asked::default();
        self.asked.iter().for_each(|asked| total += *asked);
        total
    }

    /// Begins a shard, which can send when its journals are ready.
    pub fn begin(&mut self, partitions: usize, now: Micros) -> Journals {
        let pages = Asked(0, LOOKS_AT_BEGIN * self.parts / PAGE, 0);
        Journals {
            taken: now,
            ready: now + self.add(now, pages) + self.add(now, BEGIN),
            of: vec![Journal::default(); partitions],
            answers: 0,
        }
    }

    /// Notes a dispatch.
    pub fn dispatch(&mut self, journals: &mut Journals, now: Micros) {
        self.copy(journals, 0, now);
    }

    /// Writes an answer to the journal, which becomes parts when it is full or old.
    pub fn land(&mut self, journals: &mut Journals, now: Micros) {
        journals.answers += 1;
        self.copy(journals, 1, now);
        let ready = journals.ready;
        let journal = journals.journal();
        if journal.rows == 0 {
            journal.began = now;
        }
        journal.rows += 1;
        let interval = self.settings.part_interval.duration().as_micros() as Micros;
        let oldest = interval.max((journal.began - ready) / SHARE_OF_TIME);
        let bytes = journal.rows as f64 * self.answer_bytes;
        if now - journal.began >= oldest || bytes >= self.settings.part_size.get() as f64 {
            let rows = mem::take(&mut journal.rows);
            self.commit(rows, now);
        }
    }

    /// Copies a file of the journal at the next checkpoint, if it is the first change since the last.
    fn copy(&mut self, journals: &mut Journals, file: usize, now: Micros) {
        let ready = journals.ready;
        let checkpoint = (now - ready) / CHECKPOINT + 1;
        if mem::replace(&mut journals.journal().copied[file], checkpoint) != checkpoint {
            self.add(ready + checkpoint * CHECKPOINT, Asked(1, 0, 0));
        }
    }

    /// Turns a segment into parts of rollouts and attempts, and forgets its copy.
    fn commit(&mut self, rows: u64, now: Micros) {
        let puts = |bytes: f64| match (bytes / PIECE_BYTES).ceil() as u64 {
            0 | 1 => 1,
            pieces => pieces + 2,
        };
        let rows = rows as f64;
        let puts = puts(rows * self.answer_bytes) + puts(rows * ATTEMPT_BYTES);
        self.parts += 2;
        self.add(now, Asked(puts, 1, 4));
    }

    /// Lands what is left of a shard, and returns when it has released its lock.
    pub fn end(&mut self, journals: &Journals, now: Micros) -> Micros {
        let rest = journals.of.iter().filter(|journal| journal.rows > 0);
        rest.for_each(|journal| self.commit(journal.rows, now));
        // The copies of the dispatch logs.
        self.add(now, Asked(0, 2 * journals.of.len() as u64, 0));
        let ended = now + self.add(now, END);
        let reports = LOOK + 2 * self.round_trip;
        for at in (journals.ready..ended).step_by(reports as usize) {
            self.add(at, Asked(1, 0, 1));
        }
        for at in (journals.taken..ended).step_by(RENEWAL as usize).skip(1) {
            self.add(at, Asked(1, 1, 2));
        }
        ended
    }

    /// Adds the looks of the driver, one after the other, and the end of the run. Returns how long a look takes where
    /// `working` shards have reported since the last one, as all that run have. The executors, if they are not ours, renew
    /// their claims, which the driver reads.
    pub fn drive(&mut self, shards: u64, working: u64, executors: u64, end: Micros) -> Micros {
        let pages = shards.div_ceil(PAGE);
        let reads = working.div_ceil(READS) + executors.div_ceil(READS);
        let look = (4 + pages + reads) * self.round_trip;
        for at in (0..end).step_by((look + LOOK) as usize) {
            self.add(at, Asked(2, pages + 2, working + executors));
        }
        for at in (0..end).step_by(LOOK as usize) {
            self.add(at, Asked(executors, 0, working));
        }
        self.add(end, Asked(0, 0, self.parts * GETS_AT_END));
        look
    }

    /// Adds what is asked at a time. Returns the time of that many requests, one after the other.
    fn add(&mut self, at: Micros, asked: Asked) -> Micros {
        let second = (at / SECOND) as usize;
        if self.asked.len() <= second {
            self.asked.resize(second + 1, Asked::default());
        }
        self.asked[second] += asked;
        let Asked(puts, lists, gets) = asked;
        (puts + lists + gets) * self.round_trip
    }
}

impl AddAssign for Asked {
    fn add_assign(&mut self, Self(puts, lists, gets): Self) {
        self.0 += puts;
        self.1 += lists;
        self.2 += gets;
    }
}
