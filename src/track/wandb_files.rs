//! [`OfflineRun`]: the files that W&B's package writes of a run when it is offline, which `wandb sync` uploads.
//!
//! ```text
//!   wandb/offline-run-DATE_TIME-ID/run-ID.wandb     its log
//!   wandb/offline-run-DATE_TIME-ID/files/...        its files, such as media/table/NAME.table.json
//! ```
//!
//! The log is that of LevelDB, after seven bytes of its own: frames in blocks of 32 KiB. Each record is a protocol buffer whose
//! numbers are those of W&B's `wandb_internal.proto`. It is written at once, so whoever kills the process leaves whole ones.
//! The crate `prost` would bring a compiler of protocols for six kinds of records that hold numbers and texts.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use chrono::{DateTime, Local, TimeDelta};
use memchr::memmem;
use ring::digest::{Context, SHA256};
use serde_json::{Map, Value, json};

use super::TrackError;
use super::end::RolloutTable;

/// How a log begins: the service, a number, and the version of the format.
const MAGIC: [u8; 7] = *b":W&B\xe1\xbe\x00";
/// Bytes of a block of a log.
const BLOCK: u64 = 32 * 1024;
/// Bytes before the payload of a frame: its checksum, its length, and which part of a record it is.
const FRAME: u64 = 7;

/// Kinds of records.
const HISTORY: u32 = 2;
const SUMMARY: u32 = 3;
const CONFIG: u32 = 5;
const FILES: u32 = 6;
const RUN: u32 = 17;
const EXIT: u32 = 18;

/// The key of the step in an item, and how the item's value begins.
const STEP: &[u8] = b"\x12\x05_step\x82\x01";

/// The key of the table with the rollouts.
const TABLE: &str = "Rollouts";

/// Bytes of a table that are read at a time.
const PIECE: usize = 256 * 1024;

/// A run, open until [`Self::finish`].
pub(super) struct OfflineRun {
    pub(super) folder: PathBuf,
    log: Log,
    began: Instant,
    /// The step of the next record of the history.
    step: u64,
}

/// Returns the step after those that earlier processes logged of a run, by the logs that they left below `place`.
pub(super) fn next_step(place: &Path, id: &str) -> u64 {
    let folders = fs::read_dir(place.join("wandb")).into_iter().flatten();
    let folders = folders.filter_map(|folder| Some(folder.ok()?.path()));
    let logs = folders.filter_map(|folder| fs::read(folder.join(format!("run-{id}.wandb"))).ok());
    let steps = logs.filter_map(|log| {
        // The last value of this key that no frame cuts. A step is in the history and in the summary.
        let mut keys = memmem::rfind_iter(&log, STEP);
        keys.find_map(|at| {
            let (length, value) = log.get(at + STEP.len()..)?.split_first()?;
            let value = value.get(..usize::from(*length))?;
            str::from_utf8(value).ok()?.parse::<u64>().ok()
        })
    });
    steps.max().map_or(0, |last| last + 1)
}

impl OfflineRun {
    /// Starts a run below `place`, at a step. `wandb sync` appends what it logs to an earlier run of this id.
    pub(super) fn create(
        place: &Path,
        [project, name, id]: [&str; 3],
        step: u64,
    ) -> Result<Self, TrackError> {
        let now = Local::now();
        let folder = new_folder(&place.join("wandb"), now, id)?;
        let files = folder.join("files");
        fs::create_dir(&files).map_err(failed(&files))?;
        let path = folder.join(format!("run-{id}.wandb"));
        let mut log = Log::create(&path).map_err(failed(&path))?;
        let started = Message::default()
            .number(1, now.timestamp().unsigned_abs())
            .number(2, now.timestamp_subsec_nanos().into());
        let run = Message::default()
            .with(1, id)
            .with(3, project)
            .with(8, name)
            .with(17, started)
            // It may be there.
            .number(24, 1);
        log.append(RUN, run).map_err(failed(&path))?;
        Ok(Self {
            folder,
            log,
            began: Instant::now(),
            step,
        })
    }

    fn append(&mut self, kind: u32, body: Message) -> Result<(), TrackError> {
        let done = self.log.append(kind, body);
        done.map_err(failed(&self.folder))
    }

    pub(super) fn config(&mut self, config: &Value) -> Result<(), TrackError> {
        let settings = config.as_object().into_iter().flatten();
        let settings = settings.fold(Message::default(), |settings, (key, value)| {
            let setting = Message::default().with(1, key);
            settings.with(1, setting.with(16, value.to_string()))
        });
        self.append(CONFIG, settings)
    }

    /// Logs metrics at a step, or at the next one. What is before it is left out, as the package does.
    pub(super) fn log(
        &mut self,
        metrics: &Map<String, Value>,
        step: Option<u64>,
    ) -> Result<(), TrackError> {
        let step = step.unwrap_or(self.step);
        if step < self.step {
            return Ok(());
        }
        let runtime = self.began.elapsed();
        let now = Local::now().timestamp_micros() as f64 / 1e6;
        let own = [
            ("_runtime", json!(runtime.as_secs_f64())),
            ("_step", json!(step)),
            ("_timestamp", json!(now)),
        ];
        let metrics = metrics.iter().map(|(key, value)| (key.as_str(), value));
        let metrics = metrics.chain(own.iter().map(|(key, value)| (*key, value)));
        let (mut history, mut summary) = (Message::default(), Message::default());
        for (key, value) in metrics {
            let Value::Object(fields) = value else {
                history = history.with(1, item(&[key], value));
                if !value.is_null() {
                    summary = summary.with(1, item(&[key], value));
                }
                continue;
            };
            for (field, value) in fields {
                history = history.with(1, item(&[key, field], value));
                summary = summary.with(1, item(&[key, field], value));
            }
        }
        let runtime = item(&["_wandb", "runtime"], &json!(runtime.as_secs()));
        let history = history.with(2, Message::default().number(1, step));
        self.append(HISTORY, history)?;
        self.append(SUMMARY, summary.with(1, runtime))?;
        self.step = step + 1;
        Ok(())
    }

    /// Logs the rollouts: as the file of a table, but not as an artifact. The log would name an artifact's file by a path
    /// on this machine, which on another one `wandb sync` would not find.
    pub(super) async fn table(&mut self, table: &RolloutTable) -> Result<(), TrackError> {
        let files = self.folder.join("files");
        let (from, to, step) = (table.path.clone(), files.clone(), self.step);
        let copied = tokio::task::spawn_blocking(move || copy_table(&from, &to, step)).await;
        let copied = copied.unwrap_or_else(|error| Err(io::Error::other(error)));
        let (path, sha256) = copied.map_err(failed(&files))?;
        let file = Message::default().with(1, &path);
        self.append(FILES, Message::default().with(1, file))?;
        let described = json!({
            "_type": "table-file",
            "sha256": sha256,
            "size": table.bytes,
            "path": path,
            "ncols": 1,
            "nrows": table.rows,
            "log_mode": "IMMUTABLE",
        });
        self.log(&Map::from_iter([(TABLE.to_owned(), described)]), None)
    }

    pub(super) fn finish(&mut self, exit_code: u64) -> Result<(), TrackError> {
        self.append(EXIT, Message::default().number(1, exit_code))
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> TrackError {
    let path = path.to_owned();
    |source| TrackError::Files { path, source }
}

/// Makes the folder of a run. A name that an earlier process has taken within the same second gets the next one.
fn new_folder(parent: &Path, now: DateTime<Local>, id: &str) -> Result<PathBuf, TrackError> {
    fs::create_dir_all(parent).map_err(failed(parent))?;
    let mut time = now;
    loop {
        let date = time.format("%Y%m%d_%H%M%S");
        let folder = parent.join(format!("offline-run-{date}-{id}"));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                time += TimeDelta::seconds(1);
            }
            made => return made.map(|()| folder.clone()).map_err(failed(&folder)),
        }
    }
}

/// Copies a table to the files of a run, and returns its path there and its SHA-256.
fn copy_table(from: &Path, files: &Path, step: u64) -> io::Result<(String, String)> {
    let (mut digest, mut piece) = (Context::new(&SHA256), vec![0; PIECE]);
    let mut table = File::open(from)?;
    loop {
        let read = table.read(&mut piece)?;
        if read == 0 {
            break;
        }
        digest.update(&piece[..read]);
    }
    let digest = digest.finish();
    let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    let sha256: String = digits.collect();
    let path = format!("media/table/{TABLE}_{step}_{}.table.json", &sha256[..20]);
    fs::create_dir_all(files.join("media/table"))?;
    fs::copy(from, files.join(&path))?;
    Ok((path, sha256))
}

/// A value of the history or of the summary.
fn item(key: &[&str], value: &Value) -> Message {
    let parts = key.iter();
    let item = parts.fold(Message::default(), |item, part| item.with(2, part));
    item.with(16, value.to_string())
}

/// A log of records.
struct Log {
    file: File,
    /// Bytes that it has.
    bytes: u64,
    /// Records that it has.
    records: u64,
}

impl Log {
    fn create(path: &Path) -> io::Result<Self> {
        let file = File::create_new(path)?;
        file.write_all_at(&MAGIC, 0)?;
        Ok(Self {
            file,
            bytes: MAGIC.len() as u64,
            records: 0,
        })
    }

    fn append(&mut self, kind: u32, body: Message) -> io::Result<()> {
        let record = Message::default().number(1, self.records + 1);
        let Message(record) = record.with(kind, body);
        let (mut rest, mut frames) = (record.as_slice(), Vec::new());
        let mut is_first = true;
        loop {
            let left = BLOCK - (self.bytes + frames.len() as u64) % BLOCK;
            if left < FRAME {
                frames.resize(frames.len() + left as usize, 0);
                continue;
            }
            let room = (left - FRAME) as usize;
            let (payload, more) = rest.split_at(rest.len().min(room));
            let part: u8 = match (is_first, more.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut checksum = crc32fast::Hasher::new();
            checksum.update(&[part]);
            checksum.update(payload);
            frames.extend(checksum.finalize().to_le_bytes());
            frames.extend((payload.len() as u16).to_le_bytes());
            frames.push(part);
            frames.extend(payload);
            (rest, is_first) = (more, false);
            if rest.is_empty() {
                break;
            }
        }
        // What a full disk has cut off is written over.
        self.file.write_all_at(&frames, self.bytes)?;
        self.bytes += frames.len() as u64;
        self.records += 1;
        Ok(())
    }
}

/// A message of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Message {
    /// Adds a number.
    fn number(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// Adds a text or a message.
    fn with(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
