//! [`ViewedRun`] and [`Look`]: a run, and what it held when it was looked at.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion::dataframe::DataFrame;
use datafusion::prelude::SessionContext;
use foldhash::fast::FixedState;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use super::tasks;
use crate::error::Error;
use crate::measure::{MetricTables, MetricsReport, earlier, metrics_of};
use crate::query::SqlSession;
use crate::schema::METRICS;
use crate::session::rows::Decode;
use crate::session::{self, NamedRun, Rows, Spool};
use crate::store::{JournalFile, RunLock, RunRecord, RunStore, StoreError, part_name};
use crate::transcript::Reader;

/// Time for which a look at a run on a disk is taken for the present.
const FRESH: Duration = Duration::from_secs(1);

/// The same for a run in an object store, where every look is several requests.
const FRESH_REMOTE: Duration = Duration::from_secs(10);

/// The memory of a run's queries before they write to temporary files, in bytes.
pub(super) const MEMORY: usize = 64_000_000;

/// The most bytes of made sections that a look keeps.
const MAX_KEPT: usize = 8_000_000;

/// A run that is viewed.
pub(super) struct ViewedRun {
    /// How it is called.
    pub label: String,
    /// Its place.
    pub run: RunStore,
    metrics: Arc<MetricTables>,
    latest: AsyncMutex<Option<(Arc<Look>, Instant)>>,
}

/// A run at one moment.
pub(super) struct Look {
    /// The number of the run in addresses.
    pub number: usize,
    /// How the run is called.
    pub label: String,
    /// Its store.
    pub run: RunStore,
    /// Its record.
    pub record: RunRecord,
    /// Its tables.
    pub session: SqlSession,
    /// The state of its files at that moment.
    pub version: u64,
    spool: Spool,
    tasks: OnceCell<SessionContext>,
    reader: OnceCell<Reader>,
    metrics: OnceCell<MetricsReport>,
    is_measured: bool,
    sections: Mutex<HashMap<String, String>>,
}

impl ViewedRun {
    /// A run of which nothing is known yet.
    pub(super) fn new(label: String, run: RunStore, metrics: Arc<MetricTables>) -> Self {
        Self {
            label,
            run,
            metrics,
            latest: AsyncMutex::default(),
        }
    }

    /// Looks at the run, unless it was looked at just now.
    pub(super) async fn look(&self, number: usize) -> Result<Arc<Look>, Error> {
        let mut latest = self.latest.lock().await;
        if let Some((look, at)) = latest.as_mut() {
            if at.elapsed() < self.patience() {
                return Ok(Arc::clone(look));
            }
            if self.version().await? == look.version {
                *at = Instant::now();
                return Ok(Arc::clone(look));
            }
        }
        let look = Arc::new(self.look_now(number).await?);
        *latest = Some((Arc::clone(&look), Instant::now()));
        Ok(look)
    }

    /// Time for which a look is taken for the present.
    pub(super) fn patience(&self) -> Duration {
        match self.run.local_path() {
            Some(_) => FRESH,
            None => FRESH_REMOTE,
        }
    }

    async fn look_now(&self, number: usize) -> Result<Look, Error> {
        // First: what changes meanwhile is another version.
        let version = self.version().await?;
        let no_run = || StoreError::NoRun {
            place: self.run.display(""),
        };
        let record = RunRecord::load(&self.run).await?.ok_or_else(no_run)?;
        let run = NamedRun {
            label: self.label.clone(),
            schema: None,
            run: self.run.clone(),
        };
        let context = session::gathering(MEMORY)?;
        let mut session = SqlSession::new(context, vec![run], Arc::clone(&self.metrics))?;
        session.look().await?;
        let metrics = earlier(&self.run).await?;
        Ok(Look {
            number,
            label: self.label.clone(),
            run: self.run.clone(),
            record,
            session,
            version,
            spool: Spool::new()?,
            tasks: OnceCell::new(),
            reader: OnceCell::new(),
            is_measured: metrics.is_some(),
            metrics: OnceCell::new_with(metrics),
            sections: Mutex::default(),
        })
    }

    /// The version that was looked at last; `None` if there was no look.
    pub(super) async fn looked_at(&self) -> Option<u64> {
        let latest = self.latest.lock().await;
        latest.as_ref().map(|(look, _)| look.version)
    }

    /// A number that changes whenever the files of the run do, or a process that works on it ends.
    async fn version(&self) -> Result<u64, Error> {
        let mut hasher = FixedState::default().build_hasher();
        for file in self.run.list("").await? {
            (file.location.as_ref(), file.size, file.last_modified).hash(&mut hasher);
        }
        for holder in RunLock::holders(&self.run).await? {
            holder.alive.hash(&mut hasher);
        }
        if let Some(identified) = RunRecord::load(&self.run).await? {
            let run = self.run.identified(&identified.run_id);
            for segment in JournalFile::segments(run.journal_dir())? {
                let size = std::fs::metadata(segment.path()).map(|file| file.len());
                (segment.path(), size.unwrap_or_default()).hash(&mut hasher);
            }
        }
        Ok(hasher.finish())
    }
}

impl Look {
    /// Returns the rows of a query over the tables of the run.
    pub(super) async fn rows<T>(&self, sql: &str, decode: Decode<T>) -> Result<Vec<T>, Error> {
        let rows = Rows::start(self.session.plan(sql).await?, decode).await?;
        Ok(rows.collect().await?)
    }

    /// Returns a session with `tasks`: a row for each task, as `queries/transcript/tasks.sql` describes it.
    pub(super) async fn tasks(&self) -> Result<&SessionContext, Error> {
        let made = async {
            let context = session::gathering(MEMORY)?;
            let table = self
                .session
                .plan(&tasks::table(&self.session).await?)
                .await?;
            self.spool.keep(&context, tasks::NAME, table).await?;
            Ok(context)
        };
        self.tasks.get_or_try_init(|| made).await
    }

    /// Returns a reader of the run's rollouts.
    pub(super) async fn reader(&self) -> Result<&Reader, Error> {
        self.reader
            .get_or_try_init(|| Reader::open(self.run.clone()))
            .await
    }

    /// Returns the metrics: those that were written, or else those of now.
    pub(super) async fn metrics(&self) -> Result<&MetricsReport, Error> {
        self.metrics
            .get_or_try_init(|| metrics_of(self.session.context()))
            .await
    }

    /// Returns a metric family: as it was written, unless an earlier version wrote it without one of these columns, or
    /// else as it is now.
    pub(super) async fn family(&self, name: &str, columns: &[&str]) -> Result<DataFrame, Error> {
        let (context, file) = (self.session.context(), part_name(METRICS, name));
        if self.is_measured && self.run.exists(&file).await? {
            let written = session::any_part(context, &self.run, &file).await?;
            let has = |column: &&str| written.schema().has_column_with_unqualified_name(column);
            if columns.iter().all(has) {
                return Ok(written);
            }
        }
        Ok(context.table(name).await?)
    }

    /// Returns a section of a page that was made before.
    pub(super) fn kept(&self, name: &str) -> Option<String> {
        let sections = self.sections.lock().unwrap_or_else(PoisonError::into_inner);
        sections.get(name).cloned()
    }

    /// Keeps a section of a page.
    pub(super) fn keep(&self, name: &str, section: &str) {
        let mut sections = self.sections.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: usize = sections.values().map(String::len).sum();
        if kept + section.len() <= MAX_KEPT {
            sections.insert(name.to_owned(), section.to_owned());
        }
    }
}
