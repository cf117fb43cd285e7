//! Options of commands that compute metrics, and the [`Measurement`] that they ask for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use crate::config::Bytes;
use crate::error::Error;
use crate::json;
use crate::measure::MetricQueries;
use crate::measure::{Measurement, MetricTables, Missing, Price};

/// Where metric families come from, and their parameters.
#[derive(Debug, Default, Args)]
pub struct FamilyArgs {
    /// A directory whose `.sql` files add to the built-in metric families or replace them
    #[arg(long, value_name = "DIR")]
    pub queries: Option<PathBuf>,
    /// A parameter of the metric families (`rollstream metrics` lists them); may be given several times
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,
}

/// Which metrics are computed, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics")]
pub struct MetricArgs {
    /// Where metric families come from, and their parameters.
    #[command(flatten)]
    pub families: FamilyArgs,
    /// Path of the final answer in what the agent returned, for majority@k: such as extracted_answer or `a.b[0]`
    #[arg(long, value_name = "PATH")]
    pub answer_key: Option<String>,
    /// How missing rollouts count
    #[arg(long, value_enum, default_value_t = Missing::Drop)]
    pub missing: Missing,
    /// Also measure the rollouts by the values of this: a column, or a path into the request or the answer
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Price of a million input tokens and of a million output tokens of an agent
    #[arg(long = "price", value_name = "AGENT=INPUT,OUTPUT")]
    pub prices: Vec<String>,
    /// The memory that queries may use.
    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// How much memory a query may use before it writes to temporary files.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Memory of queries before they write to temporary files
    #[arg(long, value_name = "SIZE", default_value = "128MB")]
    pub memory: Bytes,
}

impl MemoryArgs {
    /// Returns the memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.memory.as_usize()
    }
}

/// The memory, in bytes, of commands that have no option for it.
pub(super) const DEFAULT_MEMORY: usize = 128_000_000;

/// Creates the metric families as tables of a session.
pub(super) fn metric_tables(args: &FamilyArgs, memory: usize) -> Result<MetricTables, Error> {
    let queries = MetricQueries::load(args.queries.as_deref())?;
    let parameters = queries.parameters(&args.parameters)?;
    MetricTables::new(queries, parameters, memory)
}

/// Creates the measurement that the options ask for.
pub(super) fn measurement(args: &MetricArgs) -> Result<Measurement, Error> {
    let queries = MetricQueries::load(args.families.queries.as_deref())?;
    let mut parameters = queries.parameters(&args.families.parameters)?;
    if let Some(path) = &args.answer_key {
        json::Path::parse(path).map_err(|error| Error::usage("--answer-key", error))?;
        parameters.insert("answer_key".into(), path.as_str().into());
    }
    Ok(Measurement {
        parameters,
        missing: args.missing,
        by: args.by.clone(),
        prices: prices(&args.prices)?,
        ..Measurement::new(queries, args.memory.bytes())
    })
}

fn prices(prices: &[String]) -> Result<BTreeMap<String, Price>, Error> {
    let price = |text: &str| {
        let (agent, prices) = text.rsplit_once('=')?;
        let (input, output) = prices.split_once(',')?;
        let amount = |text: &str| text.trim().parse().ok().filter(|price| *price >= 0.0);
        let (input, output) = (amount(input)?, amount(output)?);
        Some((agent.to_owned(), Price { input, output }))
    };
    let usage = |text| {
        let remedy =
            "write AGENT=INPUT,OUTPUT with the prices per million tokens, such as alpha=3,15";
        Error::Usage(format!("--price {text}: {remedy}"))
    };
    let prices = prices.iter();
    prices
        .map(|text| price(text).ok_or_else(|| usage(text)))
        .collect()
}
