//! [`Board`]: the objects in a run by which the driver and the executors of a cluster talk.
//!
//! ```text
//! cluster/DIGEST/spec.json              settings without secrets, version
//! cluster/DIGEST/control.json           what the driver wants, and that it lives
//! cluster/DIGEST/shards/NUMBER.json     how far a shard is
//! cluster/DIGEST/withdrawn/NAME.json    why an executor has withdrawn
//! cluster/DIGEST/claims/NAME.json       the slots that an executor needs, while it does
//! cluster/executors.json                what each executor does, for all who look at the run
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::Settings;
use crate::progress::{AgentProgress, ExecutorProgress};
use crate::schema::SCHEMA_VERSION;
use crate::store::{CLUSTER, EXECUTORS, Process, RunRecord, RunStore, StoreError};

/// The time between two looks at the board.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

/// The longest time for one object: a board that does not answer must not hold up a driver that drains.
const PATIENCE: Duration = Duration::from_secs(10);

/// Objects that are read at once: a sweep may have thousands of shards, and a look must not take as long as a lease.
const MAX_READS: usize = 32;

/// The objects of a directory, each as it was last read: those of shards that have ended do not change any more.
pub(super) type Known<T> = BTreeMap<String, (ObjectMeta, T)>;

/// What executors need to know of a sweep. Secrets are not in it: the settings name the variables that hold them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) version: String,
    pub(super) schema_version: u32,
    /// When the driver began: no two of its sweeps have the same spec.
    pub(super) began: SystemTime,
    /// The slots of all executors, which share the limits of the settings.
    pub(super) slots: usize,
    /// Whether executors wait to be admitted, since more may join.
    pub(super) admits: bool,
    pub(super) settings: Settings,
}

impl Spec {
    pub(super) fn new(settings: Settings, slots: usize, admits: bool) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            schema_version: SCHEMA_VERSION,
            began: SystemTime::now(),
            slots,
            admits,
            settings,
        }
    }
}

/// A spec of any version.
#[derive(Deserialize)]
struct AnySpec {
    version: String,
}

/// What was found where a spec should be.
pub(super) enum FoundSpec {
    Readable(Box<Spec>),
    OtherVersion(String),
    Unreadable,
    /// The sweep has ended.
    Missing,
    /// There is no run.
    NoRun,
}

/// What the driver wants of the executors.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Send what is pending.
    #[default]
    Send,
    /// Send nothing more; calls in flight may end.
    Drain,
    /// Drop the calls in flight.
    Drop,
}

/// The driver's order. `beat` grows as long as the driver lives.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Control {
    pub(super) order: Order,
    pub(super) beat: u64,
    /// Until when agents asked to be left alone.
    pub(super) paused: BTreeMap<String, SystemTime>,
    /// The executors that may send.
    pub(super) admitted: BTreeSet<String>,
}

/// How far a shard is, by the executor that has its lock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ShardReport {
    pub(super) executor: String,
    /// Grows with every report.
    pub(super) beat: u64,
    /// Whether the executor is at it.
    pub(super) works: bool,
    /// Whether all of it was sent: what is pending now is for a resume.
    pub(super) is_over: bool,
    pub(super) in_flight: usize,
    /// Whether it sends nothing more because the time for that is over.
    pub(super) is_spent: bool,
    /// Until when agents asked the executor to leave them alone.
    pub(super) paused: BTreeMap<String, SystemTime>,
    /// The counts when the executor began.
    pub(super) before: BTreeMap<String, AgentProgress>,
    /// The counts now.
    pub(super) now: BTreeMap<String, AgentProgress>,
    /// What the user should know, the oldest first.
    pub(super) notices: Vec<String>,
}

/// An executor that has withdrawn from the sweep.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Withdrawal {
    pub(super) executor: String,
    pub(super) why: String,
}

/// The slots that an executor needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) executor: String,
    /// Another may go on under its name.
    pub(super) process: Process,
    pub(super) slots: usize,
    /// Whether it works on a shard, or waits for that.
    pub(super) is_active: bool,
    /// Grows as long as the executor lives.
    pub(super) at: SystemTime,
}

fn claim_name(executor: &str) -> String {
    format!("claims/{executor}.json")
}

/// The objects of one sweep.
#[derive(Debug, Clone)]
pub(super) struct Board {
    run: RunStore,
    digest: String,
}

impl Board {
    /// The board of the sweep whose spec has this digest.
    pub(super) fn new(run: RunStore, digest: &str) -> Self {
        Self {
            run,
            digest: digest.to_owned(),
        }
    }

    /// Writes the spec, and returns its board.
    pub(super) async fn begin(run: RunStore, spec: &Spec) -> Result<Self, StoreError> {
        let text = run.json(CLUSTER, spec)?;
        let board = Self {
            digest: blake3::hash(&text).to_hex()[..16].to_owned(),
            run,
        };
        board.put("spec.json", spec).await?;
        Ok(board)
    }

    /// Identifies the spec.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the settings of the sweep.
    pub(super) async fn spec(&self) -> Result<FoundSpec, StoreError> {
        let Some(text) = self.text("spec.json").await? else {
            let has_run = RunRecord::load(&self.run).await?.is_some();
            return Ok(if has_run {
                FoundSpec::Missing
            } else {
                FoundSpec::NoRun
            });
        };
        Ok(match serde_json::from_slice::<AnySpec>(&text) {
            Ok(spec) if spec.version != env!("CARGO_PKG_VERSION") => {
                FoundSpec::OtherVersion(spec.version)
            }
            _ => serde_json::from_slice(&text).map_or(FoundSpec::Unreadable, FoundSpec::Readable),
        })
    }

    pub(super) async fn control(&self) -> Result<Option<Control>, StoreError> {
        self.get("control.json").await
    }

    pub(super) async fn set_control(&self, control: &Control) -> Result<(), StoreError> {
        self.put("control.json", control).await
    }

    pub(super) async fn report(&self, number: u32, report: &ShardReport) -> Result<(), StoreError> {
        self.put(&format!("shards/{number}.json"), report).await
    }

    /// Returns all reports, of which those that have not changed are `known`.
    pub(super) async fn reports(
        &self,
        known: &mut Known<ShardReport>,
    ) -> Result<BTreeMap<String, ShardReport>, StoreError> {
        self.all("shards", known).await
    }

    pub(super) async fn withdraw(&self, withdrawal: &Withdrawal) -> Result<(), StoreError> {
        let name = format!("withdrawn/{}.json", withdrawal.executor);
        self.put(&name, withdrawal).await
    }

    pub(super) async fn withdrawals(&self) -> Result<BTreeMap<String, Withdrawal>, StoreError> {
        self.all("withdrawn", &mut Known::new()).await
    }

    pub(super) async fn claim(&self, claim: &Claim) -> Result<(), StoreError> {
        self.put(&claim_name(&claim.executor), claim).await
    }

    /// Returns what an executor of this name claims, if any does.
    pub(super) async fn claim_of(&self, executor: &str) -> Result<Option<Claim>, StoreError> {
        self.get(&claim_name(executor)).await
    }

    /// Puts a claim unless there is one of its name, and returns the one that is there.
    pub(super) async fn first_claim(&self, claim: &Claim) -> Result<Claim, StoreError> {
        let known = self.claim_of(&claim.executor).await?;
        if let Some(known) = known {
            return Ok(known);
        }
        let name = self.name(&claim_name(&claim.executor));
        let created = self.run.create(&name, self.run.json(&name, claim)?);
        self.run.within(PATIENCE, "create", &name, created).await?;
        let there = self.claim_of(&claim.executor).await?;
        Ok(there.unwrap_or_else(|| claim.clone()))
    }

    pub(super) async fn claims(&self) -> Result<BTreeMap<String, Claim>, StoreError> {
        self.all("claims", &mut Known::new()).await
    }

    /// Tells all who look at the run what each executor does.
    pub(super) async fn tell(&self, executors: &[ExecutorProgress]) -> Result<(), StoreError> {
        let text = self.run.json(EXECUTORS, &executors)?;
        let put = self.run.put(EXECUTORS, text);
        self.run.within(PATIENCE, "write", EXECUTORS, put).await
    }

    fn name(&self, object: &str) -> String {
        format!("{CLUSTER}/{}/{object}", self.digest)
    }

    async fn put(&self, object: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let name = self.name(object);
        let text = self.run.json(&name, value)?;
        self.run
            .within(PATIENCE, "write", &name, self.run.put(&name, text))
            .await
    }

    async fn text(&self, object: &str) -> Result<Option<bytes::Bytes>, StoreError> {
        let name = self.name(object);
        self.run
            .within(PATIENCE, "read", &name, self.run.get(&name))
            .await
    }

    /// Returns an object; nothing where it can't be read, for it is written anew soon.
    async fn get<T: DeserializeOwned>(&self, object: &str) -> Result<Option<T>, StoreError> {
        let text = self.text(object).await?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    async fn all<T: DeserializeOwned + Clone>(
        &self,
        directory: &str,
        known: &mut Known<T>,
    ) -> Result<BTreeMap<String, T>, StoreError> {
        let name = self.name(directory);
        let listing = self.run.list(&name);
        let listed = self.run.within(PATIENCE, "list", &name, listing).await?;
        let named = listed.into_iter().filter_map(|meta| {
            let file = meta.location.filename()?.to_owned();
            Some((file, meta))
        });
        let is_new = |(file, meta): &(String, ObjectMeta)| {
            known.get(file).is_none_or(|(known, _)| known != meta)
        };
        let reads = named.filter(is_new).map(|(file, meta)| async move {
            let value = self.get(&format!("{directory}/{file}")).await?;
            Ok::<_, StoreError>(value.map(|value| (file, (meta, value))))
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffer_unordered(MAX_READS);
        while let Some(read) = reads.try_next().await? {
            known.extend(read);
        }
        let values = known
            .iter()
            .map(|(file, (_, value))| (file.clone(), value.clone()));
        Ok(values.collect())
    }
}
