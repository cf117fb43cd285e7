use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use super::artifacts::{METRICS, aggregate_metrics};
use super::report::Measured;
use super::subsets::Subsets;
use super::zeros;
use crate::agent::MetricServers;
use crate::config::Settings;
use crate::error::Error;
use crate::export::EnvironmentServers;
use crate::gym::{GYM_07, GymChoice, GymRules};
use crate::import::Zeros;
use crate::measure::{
    AGENT_STATISTICS, KeyMetrics, MetricQueries, PRICES, ParameterValue, PassMajorityOptions,
    Spool, TASK_STATISTICS, TaskLabels, prices, run_families, spool_views, without_reserved,
};
use crate::schema::{ATTEMPTS, ROLLOUTS, TASKS};
use crate::session::{self, register_store, register_union};
use crate::store::{Document, EnvironmentServer, PartWriter, RunRecord, RunStore, part_name};

/// How rollouts count that were asked for and are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// Not at all.
    #[default]
    Drop,
    /// As zero, in every metric.
    Zero,
    /// Not at all; beside each number stand the lowest and the highest that it can become.
    Bounds,
}

/// What tokens cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// Of a million tokens of input.
    pub input: f64,
    /// Of a million tokens of output.
    pub output: f64,
}

impl Price {
    /// Of the agents whose settings give a price; one that is not given is zero.
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

/// What is measured, and how.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The metric families.
    pub queries: MetricQueries,
    /// What they are told, by parameter; others have their defaults.
    pub parameters: HashMap<String, ParameterValue>,
    /// How missing rollouts count; [`Missing::Drop`] leaves the parameter `missing` its say.
    pub missing: Missing,
    /// A column, or a path into the requests or answers, by whose values all is measured a second time.
    pub by: Option<String>,
    /// What tokens cost, by agent.
    pub prices: BTreeMap<String, Price>,
    /// Bytes of memory for what can go to temporary files.
    pub memory: usize,
    /// Whether `aggregate_metrics.json` is written, with every rollout in it.
    pub json: bool,
    /// What a benchmark of NeMo Gym would report beside the statistics, in `aggregate_metrics.json`.
    pub benchmark: Option<PassMajorityOptions>,
    /// Which metrics stand for an agent at a glance there; none: the means.
    pub key_metrics: Vec<KeyMetrics>,
    /// The servers of agents that have metrics of their own for it; none: they are not asked.
    pub agent_servers: Option<Arc<MetricServers>>,
    /// What tasks are called there.
    pub labels: TaskLabels,
    /// Environment servers there, by what their rollouts are called.
    pub servers: BTreeMap<String, EnvironmentServer>,
    /// Whether the answers bear NeMo Gym's stamps already, as those of its files do.
    pub is_stamped: bool,
    /// The rules of NeMo Gym by which it is written.
    pub rules: &'static GymRules,
    /// Which rollouts of runs count as zero that are not there.
    pub zeros: Zeros,
}

impl Measurement {
    /// Of families with their defaults.
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

    /// The environment servers, where the rules know such.
    pub(super) fn environment_servers(&self) -> EnvironmentServers {
        self.rules.servers.then(|| self.servers.clone())
    }
}

/// Where the tables come from.
pub(crate) enum Source<'a> {
    /// Runs, as one.
    Runs(&'a [RunStore]),
    /// The tables of a session.
    Tables(&'a SessionContext),
}

/// Runs as they are read by the rules that are chosen, or by their own; and those by which what is measured of them is
/// written: the newest.
pub(super) async fn by_rules(
    runs: &[RunStore],
    gym: GymChoice,
) -> Result<(Vec<RunStore>, &'static GymRules), Error> {
    let mut is_new = false;
    for run in runs {
        let run = RunRecord::identify(run).await?;
        is_new |= run.rules() == Some(&GYM_07);
    }
    let rules = gym.rules(|| is_new);
    let runs = match gym {
        GymChoice::Auto => runs.to_vec(),
        GymChoice::Of(rules) => runs.iter().map(|run| run.following(rules)).collect(),
    };
    Ok((runs, rules))
}

impl Source<'_> {
    /// Makes the tables known to two sessions, which see a run that is being collected at one and the
    /// same moment; says whether tasks had to be numbered anew.
    pub(super) async fn register_both(
        &self,
        first: &SessionContext,
        second: &SessionContext,
    ) -> Result<bool, Error> {
        let is_renumbered = self.register(first).await?;
        if let Self::Runs(runs) = self {
            runs.iter().for_each(|run| register_store(second, run));
        }
        Source::Tables(first).register(second).await?;
        Ok(is_renumbered)
    }

    /// Makes the tables known to a session; says whether tasks had to be numbered anew.
    pub(super) async fn register(&self, session: &SessionContext) -> Result<bool, Error> {
        match self {
            Self::Runs(runs) => Ok(register_union(session, runs).await?),
            Self::Tables(source) => {
                for table in [TASKS, ROLLOUTS, ATTEMPTS] {
                    if source.table_exist(table)? {
                        let provider = source.table_provider(table).await?;
                        session.register_table(table, provider)?;
                    }
                }
                Ok(false)
            }
        }
    }
}

/// What `aggregate_metrics.json` is made of.
const STATISTICS: [&str; 2] = [AGENT_STATISTICS, TASK_STATISTICS];

/// All is measured once for each of these.
#[derive(Debug, Clone, Default)]
struct Variant {
    subset: Option<String>,
    bound: Option<&'static str>,
}

impl Variant {
    fn is_whole(&self) -> bool {
        self.subset.is_none() && self.bound.is_none_or(|bound| bound == OBSERVED)
    }
}

/// Column that tells the bounds of a number from what was observed.
const BOUND: &str = "bound";
const OBSERVED: &str = "observed";
/// Column that holds the value that a subset stands for.
const SUBSET: &str = "subset";

/// Computes every metric family, and writes the tables and the JSON into `out`.
pub(crate) async fn measure(
    source: &Source<'_>,
    out: &RunStore,
    measurement: &Measurement,
) -> Result<Measured, Error> {
    measure_into(source, Some(out), measurement).await
}

/// Computes every metric family, and writes nothing.
pub(super) async fn look(
    source: &Source<'_>,
    measurement: &Measurement,
) -> Result<Measured, Error> {
    measure_into(source, None, measurement).await
}

async fn measure_into(
    source: &Source<'_>,
    out: Option<&RunStore>,
    measurement: &Measurement,
) -> Result<Measured, Error> {
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
    let gathering = session::gathering(measurement.memory)?;
    let measuring = session::measuring(measurement.memory)?;
    landed.measured.is_renumbered = source.register_both(&gathering, &measuring).await?;
    if let (Source::Runs(_), true) = (source, measurement.zeros.any()) {
        let found = zeros::add(&gathering, &measurement.zeros, measurement.rules).await?;
        measuring.deregister_table(ROLLOUTS)?;
        measuring.register_table(ROLLOUTS, gathering.table_provider(ROLLOUTS).await?)?;
        if variant.is_whole() {
            landed.measured.notes.extend(found.notes);
        }
    }
    for session in [&gathering, &measuring] {
        if let (Some(subsets), Some(value)) = (subsets, &variant.subset) {
            subsets.restrict(session, value).await?;
        }
    }
    register_prices(&measuring, &measurement.prices)?;
    let mut parameters = measurement.parameters.clone();
    let missing = match (measurement.missing, variant.bound) {
        // As the parameter says, if somebody has given it.
        (Missing::Drop, _) => None,
        (Missing::Zero, _) => Some("zero"),
        (Missing::Bounds, bound) => {
            Some(bound.filter(|bound| *bound != OBSERVED).unwrap_or("drop"))
        }
    };
    if let Some(missing) = missing {
        parameters.insert("missing".into(), missing.into());
    }
    let has_json = measurement.json && variant.is_whole();
    if has_json {
        parameters.insert("reserved".into(), measurement.rules.reserved.into());
    }
    let spool = Spool::new()?;
    spool_views(&spool, &gathering, &measuring, &parameters).await?;
    for table in run_families(&measuring, &measurement.queries, &parameters).await? {
        let (name, schema) = (table.name().to_owned(), table.schema());
        let rows = match has_json && STATISTICS.contains(&&*name) {
            // The JSON reads them again: so its numbers can't differ from the table's.
            true => {
                spool.keep(&measuring, table, &[]).await?;
                let kept = without_reserved(measuring.table(&*name).await?)?;
                kept.execute_stream().await?
            }
            false => table.unreserved()?.stream().await?,
        };
        landed.add(&name, &schema, rows, variant).await?;
    }
    let is_empty = landed.measured.metrics.is_empty() && landed.measured.coverage.is_empty();
    if let Some(out) = landed.out.filter(|_| has_json && !is_empty) {
        let notes = &mut landed.measured.notes;
        landed.json = Some(aggregate_metrics(out, &measuring, measurement, notes).await?);
    }
    Ok(())
}

fn register_prices(
    session: &SessionContext,
    by_agent: &BTreeMap<String, Price>,
) -> Result<(), Error> {
    let names: StringViewArray = by_agent.keys().map(Some).collect();
    let float = |price: fn(&Price) -> f64| -> ArrayRef {
        let values = by_agent.values().map(price);
        Arc::new(arrow::array::Float64Array::from_iter_values(values))
    };
    let columns = vec![
        Arc::new(names) as ArrayRef,
        float(|price| price.input),
        float(|price| price.output),
    ];
    let batch = RecordBatch::try_new(prices(), columns).map_err(DataFusionError::from)?;
    session.deregister_table(PRICES)?;
    session.register_batch(PRICES, batch)?;
    Ok(())
}

/// The tables as they are written, each a Parquet file of all variants.
struct Landed<'a> {
    out: Option<&'a RunStore>,
    has_subsets: bool,
    has_bounds: bool,
    writers: BTreeMap<String, (SchemaRef, PartWriter)>,
    json: Option<Document>,
    measured: Measured,
}

impl<'a> Landed<'a> {
    fn new(out: Option<&'a RunStore>, measurement: &Measurement) -> Self {
        Self {
            out,
            has_subsets: measurement.by.is_some(),
            has_bounds: measurement.missing == Missing::Bounds,
            writers: BTreeMap::new(),
            json: None,
            measured: Measured::default(),
        }
    }

    async fn add(
        &mut self,
        name: &str,
        schema: &SchemaRef,
        mut rows: datafusion::execution::SendableRecordBatchStream,
        variant: &Variant,
    ) -> Result<(), Error> {
        if let (Some(out), false) = (self.out, self.writers.contains_key(name)) {
            let schema = self.schema(schema);
            let part = part_name(METRICS, name);
            let writer = PartWriter::new(out, METRICS, &part, Arc::clone(&schema))?;
            self.writers.insert(name.to_owned(), (schema, writer));
        }
        let (subsets, bounds) = (self.has_subsets, self.has_bounds);
        while let Some(batch) = rows.try_next().await? {
            if variant.is_whole() {
                self.measured.look(name, &batch)?;
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
        if self.has_subsets {
            fields.push(constant(SUBSET));
        }
        if self.has_bounds {
            fields.push(constant(BOUND));
        }
        fields.extend(schema.fields().iter().cloned());
        Arc::new(Schema::new(fields))
    }

    async fn finish(self) -> Result<Measured, Error> {
        let mut measured = self.measured;
        measured.join();
        for (_, writer) in self.writers.into_values() {
            measured.written.push(writer.finish().await?.path);
        }
        // Last: where it is, all of it is there.
        if let Some(json) = self.json {
            measured.written.push(json.finish().await?);
        }
        measured.written.sort();
        Ok(measured)
    }
}
