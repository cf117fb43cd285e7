//! What is measured, and how: a [`Measurement`] of a [`Source`] becomes Parquet tables and `aggregate_metrics.json`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use super::catalog::MetricCatalog;
use super::families::{AGENT_STATISTICS, PRICES, TASK_STATISTICS, price_rows, without_reserved};
use super::nemo_gym::{KeyMetrics, PassMajorityOptions, aggregate_metrics};
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
use crate::session::{self, Spool};
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
    let catalog = MetricCatalog::new(&sessions, parameters).await?;
    if has_json {
        // The queries of the JSON read the views.
        catalog.keep_views().await?;
    }
    let mut tables = Vec::new();
    for query in measurement.queries.iter() {
        tables.push((query, catalog.table(query).await?));
    }
    for (query, table) in tables {
        let schema = table.schema();
        let rows = if has_json && STATISTICS.contains(&query.name.as_str()) {
            // The JSON is written from the kept rows, so its numbers can't differ from the table's.
            catalog.keep(query, &[]).await?;
            let kept = without_reserved(measuring.table(&query.name).await?)?;
            kept.execute_stream().await?
        } else {
            table.unreserved()?.stream().await?
        };
        landed.add(&query.name, &schema, rows, variant).await?;
    }
    let is_empty = landed.shown.iter().all(Shown::is_empty);
    if let Some(out) = landed.out.filter(|_| has_json && !is_empty) {
        let notes = &mut landed.notes;
        landed.json = Some(aggregate_metrics(out, measuring, measurement, notes).await?);
    }
    Ok(())
}

/// Writes the tables: each is a Parquet file with the rows of all variants.
struct Landed<'a> {
    out: Option<&'a RunStore>,
    by: Option<String>,
    has_bounds: bool,
    writers: BTreeMap<String, (SchemaRef, PartWriter)>,
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
            writers: BTreeMap::new(),
            json: None,
            shown: Vec::new(),
            given: BTreeSet::new(),
            notes: Vec::new(),
            is_renumbered: false,
        }
    }

    async fn add(
        &mut self,
        name: &str,
        schema: &SchemaRef,
        mut rows: SendableRecordBatchStream,
        variant: &Variant,
    ) -> Result<(), Error> {
        if let (Some(out), false) = (self.out, self.writers.contains_key(name)) {
            let schema = self.schema(schema);
            let part = part_name(METRICS, name);
            let writer = PartWriter::new(out, METRICS, &part, Arc::clone(&schema))?;
            self.writers.insert(name.to_owned(), (schema, writer));
        }
        let (subsets, bounds) = (self.by.is_some(), self.has_bounds);
        while let Some(batch) = rows.try_next().await? {
            if let Some(shown) = self.shown.last_mut() {
                shown.look(name, &batch)?;
            }
            let Some((schema, writer)) = self.writers.get_mut(name) else {
                continue;
            };
            let constant = |value: Option<&str>| -> ArrayRef {
                let values = std::iter::repeat_n(value, batch.num_rows());
                Arc::new(values.collect::<StringViewArray>())
            };
            let mut columns = Vec::new();
            if subsets {
                columns.push(constant(variant.subset.as_deref()));
            }
            if bounds {
                columns.push(constant(variant.bound));
            }
            columns.extend(batch.columns().iter().cloned());
            let batch = RecordBatch::try_new(Arc::clone(schema), columns);
            let batch = batch.map_err(DataFusionError::from)?;
            writer.write(&batch).await?;
        }
        Ok(())
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
        for (_, writer) in self.writers.into_values() {
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
