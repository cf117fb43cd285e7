//! What is measured, and how: a [`Measurement`] of a [`Source`] becomes Parquet tables and `aggregate_metrics.json`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use arrow::array::{ArrayRef, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::prelude::SessionContext;
use futures::future::{try_join, try_join_all};
use futures::{StreamExt, TryStreamExt, stream};

use super::catalog::MetricCatalog;
use super::families::{
    AGENT_STATISTICS, COVERAGE, MetricTable, PRICES, TASK_STATISTICS, price_rows, without_reserved,
};
use super::nemo_gym::{self, Asking, KeyMetrics, PassMajorityOptions, aggregate_metrics};
use super::queries::MetricQueries;
use super::report::{MetricsReport, OBSERVED, Shown, Variant, given_fields, report};
use super::source::Source;
use super::subsets::Subsets;
use super::zeros;
use crate::agent::MetricServers;
use crate::config::Settings;
use crate::error::Error;
use crate::export::EnvironmentServers;
use crate::gym::{AGGREGATE_METRICS, GymRules};
use crate::import::{TaskLabels, Zeros};
use crate::schema::{METRICS, ROLLOUTS};
use crate::session::{self, AHEAD, Spool};
use crate::store::{Document, EnvironmentServer, PartWriter, RunStore, part_name};

/// How missing rollouts count: those that were planned and are not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Missing {
    /// Not at all
    #[default]
    Drop,
    /// As zero in every metric
    Zero,
    /// Not at all; also computes the lowest and highest value that each number can have
    Bounds,
}

/// What tokens cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// The price of a million input tokens.
    pub input: f64,
    /// The price of a million output tokens.
    pub output: f64,
}

impl Price {
    /// Returns the prices of the agents whose settings have one. A price that is not set is zero.
    pub fn of_agents(settings: &Settings) -> BTreeMap<String, Self> {
        let prices = settings.agents.iter().filter_map(|(name, agent)| {
            agent.input_price.or(agent.output_price)?;
            let price = Self {
                input: agent.input_price.unwrap_or_default(),
                output: agent.output_price.unwrap_or_default(),
            };
            Some((name.clone(), price))
        });
        prices.collect()
    }
}

/// Which metrics are computed, and how.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The metric families.
    pub queries: MetricQueries,
    /// Values of the families' parameters; the others keep their defaults.
    pub parameters: HashMap<String, ScalarValue>,
    /// How missing rollouts count; with [`Missing::Drop`], the parameter `missing` decides.
    pub missing: Missing,
    /// A column, or a path into the requests or answers: the metrics are also computed for each of its values.
    pub by: Option<String>,
    /// What tokens cost, by agent.
    pub prices: BTreeMap<String, Price>,
    /// Memory in bytes that queries may use before they spill to temporary files.
    pub memory: usize,
    /// Whether `aggregate_metrics.json` is written, with every rollout in it.
    pub json: bool,
    /// The metrics of a NeMo Gym benchmark, beside the statistics in `aggregate_metrics.json`.
    pub benchmark: Option<PassMajorityOptions>,
    /// The key metrics in `aggregate_metrics.json`; empty for the means.
    pub key_metrics: Vec<KeyMetrics>,
    /// The servers that are asked for agents' own metrics; `None` if none is asked.
    pub agent_servers: Option<Arc<MetricServers>>,
    /// The labels of tasks in `aggregate_metrics.json`.
    pub labels: TaskLabels,
    /// The environment servers in `aggregate_metrics.json`, by the agent name of their rollouts.
    pub servers: BTreeMap<String, EnvironmentServer>,
    /// Whether the answers have NeMo Gym's stamps already, as those of its files do.
    pub is_stamped: bool,
    /// The rules of NeMo Gym that apply.
    pub rules: &'static GymRules,
    /// Which rollouts without a result count as zero.
    pub zeros: Zeros,
}

impl Measurement {
    /// Creates a measurement of these families with default settings.
    pub fn new(queries: MetricQueries, memory: usize) -> Self {
        Self {
            queries,
            parameters: HashMap::new(),
            missing: Missing::default(),
            by: None,
            prices: BTreeMap::new(),
            memory,
            json: true,
            benchmark: None,
            key_metrics: Vec::new(),
            agent_servers: None,
            labels: TaskLabels::default(),
            servers: BTreeMap::new(),
            is_stamped: false,
            rules: GymRules::of(None),
            zeros: Zeros::default(),
        }
    }

    /// Returns the environment servers, if the rules have them.
    pub(super) fn environment_servers(&self) -> EnvironmentServers {
        self.rules.servers.then(|| self.servers.clone())
    }
}

/// The families that `aggregate_metrics.json` is written from.
const STATISTICS: [&str; 2] = [AGENT_STATISTICS, TASK_STATISTICS];
/// Those, and the one that says whether there is anything to write.
const OF_JSON: [&str; 3] = [AGENT_STATISTICS, TASK_STATISTICS, COVERAGE];

/// Column that tells bounds from observed numbers.
const BOUND: &str = "bound";
const RENUMBERED: &str = "the runs use the same task or rollout numbers: tasks are matched by content and renumbered, \
                          and the rollouts of later runs follow those of earlier ones";
/// Column that holds the value of a subset.
const SUBSET: &str = "subset";

/// Computes every metric family, and writes the tables and the JSON into `out`; without `out`, nothing is written.
///
/// # Errors
/// The source can't be read, a metric fails, or the output can't be written.
pub(crate) async fn measure(
    source: &Source<'_>,
    out: Option<&RunStore>,
    measurement: &Measurement,
) -> Result<MetricsReport, Error> {
    let spool = Spool::new()?;
    let subsets = match &measurement.by {
        Some(by) => Some(Subsets::of(source, by, measurement.memory, &spool).await?),
        None => None,
    };
    let bounds: &[Option<&'static str>] = match measurement.missing {
        Missing::Bounds => &[Some(OBSERVED), Some("low"), Some("high")],
        _ => &[None],
    };
    let values = subsets.iter().flat_map(|subsets| subsets.values());
    let subset_values = std::iter::once(None).chain(values.map(|value| Some(value.clone())));
    let mut landed = Landed::new(out, measurement);
    for subset in subset_values {
        for &bound in bounds {
            let variant = Variant {
                subset: subset.clone(),
                bound,
            };
            compute(source, subsets.as_ref(), &variant, measurement, &mut landed).await?;
        }
    }
    landed.finish().await
}

async fn compute(
    source: &Source<'_>,
    subsets: Option<&Subsets>,
    variant: &Variant,
    measurement: &Measurement,
    landed: &mut Landed<'_>,
) -> Result<(), Error> {
    let sessions = source.open(measurement.memory).await?;
    let (gathering, measuring) = (&sessions.gathering, &sessions.measuring);
    landed.is_renumbered = sessions.is_renumbered;
    landed.shown.push(Shown::of(variant.clone()));
    if variant.is_whole() {
        landed.given = given_fields(gathering).await?;
    }
    if let (Source::Runs(_), true) = (source, measurement.zeros.any()) {
        let found = zeros::add(gathering, &measurement.zeros, measurement.rules).await?;
        measuring.deregister_table(ROLLOUTS)?;
        measuring.register_table(ROLLOUTS, gathering.table_provider(ROLLOUTS).await?)?;
        if variant.is_whole() {
            landed.notes.extend(found.notes);
        }
    }
    if let (Some(subsets), Some(value)) = (subsets, &variant.subset) {
        subsets.restrict(gathering, value).await?;
        subsets.restrict(measuring, value).await?;
    }
    measuring.register_batch(
        PRICES,
        price_rows(&measurement.prices).map_err(DataFusionError::from)?,
    )?;
    let mut parameters = measurement.parameters.clone();
    let missing = match (measurement.missing, variant.bound) {
        // The parameter `missing` decides, if it is given.
        (Missing::Drop, _) => None,
        (Missing::Zero, _) => Some("zero"),
        (Missing::Bounds, Some(OBSERVED) | None) => Some("drop"),
        (Missing::Bounds, bound) => bound,
    };
    if let Some(missing) = missing {
        parameters.insert("missing".into(), missing.into());
    }
    let has_json = measurement.json && variant.is_whole();
    if has_json {
        parameters.insert("reserved".into(), measurement.rules.reserved.into());
    }
    let out = landed.out.filter(|_| has_json);
    // Asked first, so that servers compute beside us.
    let asking = match &measurement.agent_servers {
        Some(servers) if out.is_some() => nemo_gym::ask(servers, gathering, measurement).await?,
        _ => Asking::new(),
    };
    let catalog = MetricCatalog::new(&sessions, parameters).await?;
    if has_json {
        // The queries of the JSON read the views.
        catalog.keep_views().await?;
    }
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for query in measurement.queries.iter() {
        let table = catalog.table(query).await?;
        let family = landed.begin(&table, variant)?;
        if has_json && OF_JSON.contains(&query.name.as_str()) {
            first.push((query, family, table));
        } else {
            others.push((family, table));
        }
    }
    // A family uses one core, since it reads rows in their order. As many as there are cores are computed at a time.
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let others = stream::iter(others)
        .map(|(family, table)| family.computed(table))
        .buffer_unordered(cores)
        .try_collect();
    let notes = &mut landed.notes;
    let with_json = async {
        let families = first.into_iter().map(async |(query, family, table)| {
            if !STATISTICS.contains(&family.name.as_str()) {
                return family.computed(table).await;
            }
            // The JSON is written from the kept rows, so its numbers can't differ from the table's.
            catalog.keep(query).await?;
            let kept = without_reserved(measuring.table(&query.name).await?)?;
            family.landed(kept.execute_stream().await?).await
        });
        let families: Vec<Family> = try_join_all(families).await?;
        let is_empty = families.iter().all(|family| family.shown.is_empty());
        let json = match out.filter(|_| !is_empty) {
            Some(out) => {
                let asked = asking.join_all().await.into_iter().collect();
                Some(aggregate_metrics(out, measuring, measurement, asked, notes).await?)
            }
            None => None,
        };
        Ok((families, json))
    };
    let ((families, json), others): (_, Vec<Family>) = try_join(with_json, others).await?;
    families
        .into_iter()
        .chain(others)
        .for_each(|family| landed.end(family));
    landed.json = landed.json.take().or(json);
    Ok(())
}

/// Writes the tables: each is a Parquet file with the rows of all variants.
struct Landed<'a> {
    out: Option<&'a RunStore>,
    by: Option<String>,
    has_bounds: bool,
    /// The files of the families, by name.
    files: BTreeMap<String, (SchemaRef, PartWriter)>,
    json: Option<Document>,
    /// What is shown of each variant so far.
    shown: Vec<Shown>,
    /// The names of the fields of the tasks.
    given: BTreeSet<String>,
    notes: Vec<String>,
    /// Whether the tasks of several runs were renumbered.
    is_renumbered: bool,
}

impl<'a> Landed<'a> {
    fn new(out: Option<&'a RunStore>, measurement: &Measurement) -> Self {
        Self {
            out,
            by: measurement.by.clone(),
            has_bounds: measurement.missing == Missing::Bounds,
            files: BTreeMap::new(),
            json: None,
            shown: Vec::new(),
            given: BTreeSet::new(),
            notes: Vec::new(),
            is_renumbered: false,
        }
    }

    /// Begins the rows of a family in a variant.
    fn begin(&mut self, table: &MetricTable, variant: &Variant) -> Result<Family, Error> {
        let name = table.name().to_owned();
        let mut file = self.files.remove(&name);
        if let (Some(out), None) = (self.out, &file) {
            let schema = self.schema(&table.schema());
            let part = part_name(METRICS, &name);
            let writer = PartWriter::new(out, METRICS, &part, Arc::clone(&schema))?;
            file = Some((schema, writer));
        }
        let subset = self.by.is_some().then(|| variant.subset.clone());
        let bound = self.has_bounds.then(|| variant.bound.map(str::to_owned));
        Ok(Family {
            name,
            file,
            constants: subset.into_iter().chain(bound).collect(),
            shown: Shown::of(variant.clone()),
        })
    }

    /// Ends what [`Landed::begin`] began.
    fn end(&mut self, family: Family) {
        if let Some(shown) = self.shown.last_mut() {
            shown.append(family.shown);
        }
        let file = family.file.map(|file| (family.name, file));
        self.files.extend(file);
    }

    fn schema(&self, schema: &SchemaRef) -> SchemaRef {
        let constant = |name| Arc::new(Field::new(name, DataType::Utf8View, true));
        let mut fields = Vec::new();
        if self.by.is_some() {
            fields.push(constant(SUBSET));
        }
        if self.has_bounds {
            fields.push(constant(BOUND));
        }
        fields.extend(schema.fields().iter().cloned());
        Arc::new(Schema::new(fields))
    }

    async fn finish(self) -> Result<MetricsReport, Error> {
        let mut report = report(self.shown, &self.given);
        report.by = self.by;
        report.notes = self.notes;
        if self.is_renumbered {
            report.notes.push(RENUMBERED.to_owned());
        }
        for (_, writer) in self.files.into_values() {
            report.written.push(writer.finish().await?.path);
        }
        // Written last: if this file exists, all tables do.
        if let Some(json) = self.json {
            report.written.push(json.finish().await?);
        }
        report.written.sort();
        Ok(report)
    }
}

/// A family whose rows are landing.
struct Family {
    name: String,
    /// The schema of its file, and the file; `None` if nothing is written.
    file: Option<(SchemaRef, PartWriter)>,
    /// What the first columns of all rows hold: the subset and the bound.
    constants: Vec<Option<String>>,
    shown: Shown,
}

impl Family {
    /// Computes the rows on a task of its own, and lands them.
    async fn computed(self, table: MetricTable) -> Result<Self, Error> {
        let rows = table.unreserved()?.stream().await?;
        self.landed(spawn_buffered(rows, AHEAD)).await
    }

    async fn landed(mut self, mut rows: SendableRecordBatchStream) -> Result<Self, Error> {
        while let Some(batch) = rows.try_next().await? {
            self.shown.look(&self.name, &batch)?;
            let Some((schema, writer)) = &mut self.file else {
                continue;
            };
            let constants = self.constants.iter().map(|value| -> ArrayRef {
                let values = std::iter::repeat_n(value.as_deref(), batch.num_rows());
                Arc::new(values.collect::<StringViewArray>())
            });
            let columns = constants.chain(batch.columns().iter().cloned()).collect();
            let batch = RecordBatch::try_new(Arc::clone(schema), columns);
            let batch = batch.map_err(DataFusionError::from)?;
            writer.write(&batch).await?;
        }
        Ok(self)
    }
}

/// Returns the earlier metrics if they still exist and nothing has landed since, so that they are current.
pub(crate) async fn earlier(run: &RunStore) -> Result<Option<MetricsReport>, Error> {
    let name = part_name(METRICS, AGENT_STATISTICS);
    // This file is written last, but more may have landed before measuring was cut off.
    let measured_at = run.written_at(AGGREGATE_METRICS).await?;
    let is_current = measured_at.is_some() && measured_at > run.landed_at().await?;
    if !is_current || !run.exists(&name).await? {
        return Ok(None);
    }
    let session = SessionContext::new_with_config(session::config());
    let mut shown = Shown::default();
    for family in Shown::FAMILIES {
        let name = part_name(METRICS, family);
        if run.exists(&name).await? {
            let table = session::any_part(&session, run, &name).await?;
            for batch in table.collect().await? {
                shown.look(family, &batch)?;
            }
        }
    }
    Source::Runs(std::slice::from_ref(run))
        .register(&session)
        .await?;
    let given = given_fields(&session).await?;
    Ok(Some(report(vec![shown], &given)))
}

/// Computes the metrics of the tables of a session, in which the metric families are tables too.
pub(crate) async fn metrics_of(session: &SessionContext) -> Result<MetricsReport, Error> {
    let mut shown = Shown::default();
    for family in Shown::FAMILIES {
        for batch in session.table(family).await?.collect().await? {
            shown.look(family, &batch)?;
        }
    }
    Ok(report(vec![shown], &given_fields(session).await?))
}
