//! [`OfflineRun`]: the files that W&B's package writes of a run when it is offline, which `wandb sync` uploads.
//!
//! ```text
//!   wandb/offline-run-DATE_TIME-ID/run-ID.wandb     its log
//!   wandb/offline-run-DATE_TIME-ID/files/...        its files, such as media/table/NAME.table.json
//!   wandb/offline-run-DATE_TIME-ID/NAME.table.json  the table once more, as the file of an artifact
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::iter::repeat_with;
use std::path::{Path, PathBuf};
use std::time::Instant;

use chrono::{DateTime, Local, TimeDelta};
use data_encoding::{BASE64, HEXLOWER};
use md5::{Digest, Md5};
use memchr::memmem;
use ring::digest::{Context, SHA256};
use serde_json::{Map, Value, json};

use super::TrackError;
use super::end::RolloutTable;
use super::wandb_log::{Log, Message};

/// Kinds of records.
const HISTORY: u32 = 2;
const SUMMARY: u32 = 3;
const CONFIG: u32 = 5;
const FILES: u32 = 6;
const ARTIFACT: u32 = 8;
const RUN: u32 = 17;
const EXIT: u32 = 18;

/// The key of the step in an item, and how the item's value begins.
const STEP: &[u8] = b"\x12\x05_step\x82\x01";

/// The key of the table with the rollouts, and its file in the artifact.
const TABLE: &str = "Rollouts";
const TABLE_FILE: &str = "Rollouts.table.json";
/// Where tables are among the files of a run.
const TABLES: &str = "media/table";
/// How a table is kept that is logged once.
const LOG_MODE: &str = "IMMUTABLE";

/// Bytes of a table that are read at a time.
const PIECE: usize = 256 * 1024;

/// A run, open until [`Self::finish`].
pub(super) struct OfflineRun {
    pub(super) folder: PathBuf,
    project: String,
    id: String,
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
            project: project.to_owned(),
            id: id.to_owned(),
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

    /// Logs the rollouts, as a file of the run and as an artifact.
    pub(super) async fn table(&mut self, table: &RolloutTable) -> Result<(), TrackError> {
        let (from, to) = (table.path.clone(), self.folder.clone());
        let (rows, step) = (table.rows, self.step);
        let copied = tokio::task::spawn_blocking(move || CopiedTable::make(&from, &to, rows, step));
        let copied = copied.await;
        let copied = copied.unwrap_or_else(|error| Err(io::Error::other(error)));
        let copied = copied.map_err(failed(&self.folder))?;
        let file = Message::default().with(1, &copied.path);
        self.append(FILES, Message::default().with(1, file))?;
        // W&B gives ids of its own when it gets the artifact: until then, these stand for it, and for its name.
        let [client, sequence] = [drawn_id(), drawn_id()];
        let artifact = copied.artifact(&self.project, &self.id);
        self.append(ARTIFACT, artifact.with(15, &client).with(16, &sequence))?;
        let described = json!({
            "_type": "table-file",
            "artifact_path": format!("wandb-client-artifact://{client}/{TABLE_FILE}"),
            "_latest_artifact_path": format!("wandb-client-artifact://{sequence}:latest/{TABLE_FILE}"),
            "sha256": copied.sha256,
            "size": table.bytes,
            "path": copied.path,
            "ncols": 1,
            "nrows": table.rows,
            "log_mode": LOG_MODE,
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

/// A name that nobody else draws.
fn drawn_id() -> String {
    repeat_with(|| fastrand::digit(36)).take(128).collect()
}

/// The table in the folder of a run.
struct CopiedTable {
    /// Its path in the files of the run.
    path: String,
    sha256: String,
    /// The file of the artifact: the same with a head.
    artifact: PathBuf,
    artifact_bytes: u64,
    artifact_md5: String,
}

impl CopiedTable {
    /// Reads a table once, and writes both files.
    fn make(from: &Path, folder: &Path, rows: u64, step: u64) -> io::Result<Self> {
        let tables = folder.join("files").join(TABLES);
        fs::create_dir_all(&tables)?;
        // Its name is to have the digest.
        let unnamed = tables.join(TABLE_FILE);
        let artifact = std::path::absolute(folder.join(TABLE_FILE))?;
        let (mut table, mut copy) = (File::open(from)?, File::create(&unnamed)?);
        let mut with_head = File::create(&artifact)?;
        let (mut sha256, mut md5) = (Context::new(&SHA256), Md5::new());
        let types = json!({"wb_type": "typedDict", "params": {"type_map": {"Rollout": {"wb_type": "string"}}}});
        let head = json!({
            "_type": "table",
            "column_types": types,
            "log_mode": LOG_MODE,
            "ncols": 1,
            "nrows": rows,
        });
        // One object of both.
        let head = head.to_string();
        let head = format!("{},", head.strip_suffix('}').unwrap_or_default());
        md5.update(&head);
        with_head.write_all(head.as_bytes())?;
        let (mut piece, mut opened) = (vec![0; PIECE], 1);
        loop {
            let read = table.read(&mut piece)?;
            if read == 0 {
                break;
            }
            sha256.update(&piece[..read]);
            copy.write_all(&piece[..read])?;
            md5.update(&piece[opened..read]);
            with_head.write_all(&piece[opened..read])?;
            opened = 0;
        }
        let sha256 = HEXLOWER.encode(sha256.finish().as_ref());
        let name = format!("{TABLE}_{step}_{}.table.json", &sha256[..20]);
        fs::rename(&unnamed, tables.join(&name))?;
        Ok(Self {
            path: format!("{TABLES}/{name}"),
            sha256,
            artifact_bytes: with_head.metadata()?.len(),
            artifact_md5: BASE64.encode(&md5.finalize()),
            artifact,
        })
    }

    /// Returns the record of the artifact in a run, without its ids.
    fn artifact(&self, project: &str, id: &str) -> Message {
        let layout = Message::default()
            .with(1, "storageLayout")
            .with(2, "\"V2\"");
        let file = Message::default()
            .with(1, TABLE_FILE)
            .with(2, &self.artifact_md5)
            .number(4, self.artifact_bytes)
            .with(6, self.artifact.as_os_str().as_encoded_bytes())
            // No copy of it goes to a cache.
            .number(8, 1);
        let manifest = Message::default()
            .number(1, 1)
            .with(2, "wandb-storage-policy-v1")
            .with(3, layout)
            .with(4, file);
        let files = format!(
            "wandb-artifact-manifest-v1\n{TABLE_FILE}:{}\n",
            self.artifact_md5
        );
        Message::default()
            .with(1, id)
            .with(2, project)
            .with(4, "run_table")
            .with(5, format!("run-{id}-{TABLE}"))
            .with(6, HEXLOWER.encode(&Md5::digest(files)))
            .with(11, "latest")
            .with(12, manifest)
            // No other process adds to it.
            .number(14, 1)
            .with(20, "MANIFEST_MD5")
    }
}

/// A value of the history or of the summary.
fn item(key: &[&str], value: &Value) -> Message {
    let parts = key.iter();
    let item = parts.fold(Message::default(), |item, part| item.with(2, part));
    item.with(16, value.to_string())
}
