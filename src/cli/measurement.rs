use std::collections::{BTreeMap, HashMap};

use super::measure_args::{FamilyArgs, MetricArgs, MissingArg};
use crate::error::Error;
use crate::measure::{MetricQueries, ParameterValue};
use crate::pipeline::{Measurement, MetricTables, Missing, Price};

/// Bytes for what can go to temporary files, where nobody says.
pub(super) const DEFAULT_MEMORY: usize = 256_000_000;

type Families = (MetricQueries, HashMap<String, ParameterValue>);

fn families(args: &FamilyArgs) -> Result<Families, Error> {
    let queries = MetricQueries::load(args.queries.as_deref())?;
    let parameters = queries.parameters(&args.parameters)?;
    Ok((queries, parameters))
}

/// The metric families as tables of a session.
pub(super) fn metric_tables(args: &FamilyArgs, memory: usize) -> Result<MetricTables, Error> {
    let (queries, parameters) = families(args)?;
    MetricTables::new(queries, parameters, memory)
}

/// What the options say is measured.
pub(super) fn measurement(args: &MetricArgs) -> Result<Measurement, Error> {
    let (queries, mut parameters) = families(&args.families)?;
    if let Some(path) = &args.answer_key {
        crate::json::Path::parse(path).map_err(|error| Error::usage("--answer-key", error))?;
        parameters.insert("answer_key".into(), path.as_str().into());
    }
    Ok(Measurement {
        parameters,
        missing: match args.missing {
            MissingArg::Drop => Missing::Drop,
            MissingArg::Zero => Missing::Zero,
            MissingArg::Bounds => Missing::Bounds,
        },
        by: args.by.clone(),
        prices: prices(&args.prices)?,
        ..Measurement::new(queries, args.memory.as_usize())
    })
}

fn prices(prices: &[String]) -> Result<BTreeMap<String, Price>, Error> {
    let price = |text: &String| {
        let (agent, prices) = text.rsplit_once('=')?;
        let (input, output) = prices.split_once(',')?;
        let amount = |text: &str| text.trim().parse().ok().filter(|price| *price >= 0.0);
        let price = Price {
            input: amount(input)?,
            output: amount(output)?,
        };
        Some((agent.to_owned(), price))
    };
    let priced = prices.iter().map(|text| {
        price(text).ok_or_else(|| {
            Error::Usage(format!(
                "--price {text}: write AGENT=INPUT,OUTPUT, the prices of a million tokens, as alpha=3,15"
            ))
        })
    });
    priced.collect()
}
