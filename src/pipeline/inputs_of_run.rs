use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::exec_datafusion_err;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::identity;
use super::inputs::{Inputs, prompt_text};
use super::spool::Spool;
use crate::config::Settings;
use crate::error::Error;
use crate::gym::GymRules;
use crate::read::{AgentRows, ReadSummary};
use crate::schema::TASKS;
use crate::session::{self, RunTables};
use crate::store::{RunRecord, RunStore};

const SUMMARY: &str = include_str!("../../queries/expand/summary.sql");

impl Inputs {
    /// The tasks that a run has already. No input is read: what decides the requests is as `run.json` says, and
    /// `settings` become so where they matter later.
    ///
    /// # Errors
    /// A setting was given that says otherwise, or the run can't be read.
    pub(super) async fn of_run(
        settings: &mut Settings,
        rules: &GymRules,
        run: &RunStore,
        record: &RunRecord,
    ) -> Result<Self, Error> {
        if run.parts(TASKS).await?.is_empty() {
            // Ended before it had any.
            settings.required_input()?;
        }
        let prompt = settings.prompt_config.as_deref().map(prompt_text);
        let mut given = identity::given(settings, rules, prompt.transpose()?.as_deref());
        // The tasks of an import name their agents: what is for those that name none is for no task.
        if let (Value::Object(given), None) = (&mut given, record.identity.get("agent")) {
            given.remove("agent");
        }
        identity::check(record, &given, &run.display(""))?;
        settings.num_repeats_add_seed = recorded(record, "num_repeats_add_seed")?;
        settings.seed_field = recorded(record, "seed_field")?;
        settings.interleave_repeats = recorded(record, "interleave_repeats")?;
        settings.environment_routing_mode = recorded(record, "environment_routing_mode")?;
        settings.environment_server_name = recorded(record, "environment_server_name")?;

        let session = SessionContext::new_with_config(session::config().with_target_partitions(1));
        let tasks = RunTables::look(run).await?;
        let tasks = tasks.table(&session, TASKS).await?;
        session.register_table(TASKS, tasks.into_view())?;
        let (summary, num_bytes) = summary(&session).await?;
        Ok(Self {
            spool: Spool::of_run(run, summary.rows, num_bytes),
            records: record.inputs.clone(),
            summary,
            prompt: None,
            identity: Some(record.identity.clone()),
        })
    }
}

/// A setting as the identity of a run has it; its default where the run is an import, whose tasks are complete.
fn recorded<T: DeserializeOwned + Default>(record: &RunRecord, key: &str) -> Result<T, Error> {
    match record.identity.get(key) {
        None => Ok(T::default()),
        Some(value) => serde_json::from_value(value.clone())
            .map_err(|error| Error::usage(format!("run.json, identity.{key}"), error)),
    }
}

async fn summary(session: &SessionContext) -> Result<(ReadSummary, u64), Error> {
    let mut agents = BTreeMap::new();
    let (mut rows, mut bytes) = (0, 0);
    for batch in session.sql(SUMMARY).await?.collect().await? {
        let column = |name: &str, to: &DataType| {
            let column = batch.column_by_name(name);
            let column = column
                .ok_or_else(|| exec_datafusion_err!("summary.sql gives no column '{name}'"))?;
            arrow::compute::cast(column, to)
                .map_err(|error| Error::from(DataFusionError::from(error)))
        };
        let integers = |name: &str| -> Result<Vec<u64>, Error> {
            let column = column(name, &DataType::Int64)?;
            let values = column.as_primitive::<Int64Type>().values();
            Ok(values.iter().map(|value| value.unsigned_abs()).collect())
        };
        let names = column("agent_name", &DataType::Utf8)?;
        let names = names.as_string::<i32>().iter().flatten();
        let counts = integers("num_rows")?.into_iter();
        let counts = counts.zip(integers("num_rollouts")?);
        for (name, ((num_rows, rollouts), num_bytes)) in
            names.zip(counts.zip(integers("num_bytes")?))
        {
            rows += num_rows;
            bytes += num_bytes;
            let of_agent = AgentRows {
                rows: num_rows,
                rollouts,
            };
            agents.insert(Arc::from(name), of_agent);
        }
    }
    let summary = ReadSummary {
        rows,
        agents,
        ..ReadSummary::default()
    };
    Ok((summary, bytes))
}
