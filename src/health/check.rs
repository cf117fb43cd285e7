//! [`HealthCheck`]: the evidence of rollouts in tables, and what the rules find in them.

use std::io::Write;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as QueryResult;
use datafusion::prelude::{SessionContext, col};

use super::error::HealthError;
use super::evidence::{Evidence, Place};
use super::report::{HealthReport, write_summary};
use super::rules::{BROKEN_CHECK, Rules, Scope, to_json};
use super::tables::{Calls, Gaps, Records, Turns, Unbound, VerdictRow, Verdicts};
use crate::json::{quote, unquote};
use crate::session::{self, Rows, Spool, SpoolFile, row};

const CHAINS: &str = include_str!("../../queries/health/views/chains.sql");
const REPEATS: &str = include_str!("../../queries/health/views/repeats.sql");

const RECORDS: &str = "SELECT record, task, rollout, stage, rollout_id, scope_complete AND turns_bound AS calls_known, \
                       successful_turn_calls FROM records ORDER BY record";
const FLAG_COUNTS: &str = "SELECT rule, count(detail) AS found, count(*) - count(detail) AS unobserved FROM flags \
                           GROUP BY rule";

/// The number of rows kept in memory before they go to temporary files.
const HELD: usize = 4096;

/// Options of a check.
#[derive(Debug, Clone)]
pub struct HealthOptions {
    /// Names of checks to leave out; an entry may hold several, with commas between.
    pub ignored: Vec<String>,
    /// Memory in bytes for what can spill to temporary files.
    pub memory: usize,
}

impl HealthOptions {
    /// Checks the names of the checks that are left out.
    ///
    /// # Errors
    /// No check has one of these names.
    pub fn check(&self) -> Result<(), HealthError> {
        Rules::new(&self.ignored).map(drop)
    }
}

/// A health check in progress. The evidence of its rollouts waits in temporary files.
pub(super) struct HealthCheck {
    rules: Rules,
    session: SessionContext,
    spool: Spool,
    evidence: Evidence,
    files: Vec<(SpoolFile, Take)>,
}

type Take = fn(&mut Evidence) -> QueryResult<RecordBatch>;

row! {
    /// A record that gets a verdict.
    struct Judged {
        record: Vec<u8>,
        task: String,
        rollout: String,
        stage: Option<String>,
        rollout_id: String,
        calls_known: bool,
        successful_turn_calls: i64,
    }
}

row! {
    /// A row that a rule returned.
    struct Found {
        record: Vec<u8>,
        rule: u32,
        locator: Option<String>,
        detail: Option<String>,
        error: Option<String>,
    }
}

row! {
    /// What a rule of tasks found.
    struct FlagCount {
        rule: u32,
        found: u64,
        unobserved: u64,
    }
}

impl HealthCheck {
    pub(super) fn new(options: &HealthOptions) -> Result<Self, HealthError> {
        let rules = Rules::new(&options.ignored)?;
        let session = session::measuring(options.memory)?;
        session.register_udf(to_json());
        let spool = Spool::new()?;
        let tables: [(&str, SchemaRef, Take); 5] = [
            ("records", Records::schema(), |rows| rows.records.take()),
            ("turns", Turns::schema(), |rows| rows.turns.take()),
            ("calls", Calls::schema(), |rows| rows.calls.take()),
            ("unbound", Unbound::schema(), |rows| rows.unbound.take()),
            ("gaps", Gaps::schema(), |rows| rows.gaps.take()),
        ];
        let files = tables
            .into_iter()
            .map(|(name, schema, take)| Ok((spool.begin(name, schema)?, take)));
        Ok(Self {
            rules,
            session,
            files: files.collect::<Result<_, HealthError>>()?,
            spool,
            evidence: Evidence::default(),
        })
    }

    pub(super) fn add(&mut self, row: &[u8], place: Place<'_>) -> Result<(), HealthError> {
        self.evidence.add(row, place)?;
        if self.evidence.rows >= HELD {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), HealthError> {
        for (file, take) in &mut self.files {
            file.write(&take(&mut self.evidence)?)?;
        }
        self.evidence.rows = 0;
        Ok(())
    }

    /// Runs all rules, and writes the verdict of each record and the summary.
    pub(super) async fn finish(
        mut self,
        verdicts: &mut (dyn Write + Send),
        summary: &mut (dyn Write + Send),
    ) -> Result<HealthReport, HealthError> {
        self.flush()?;
        for (file, _) in std::mem::take(&mut self.files) {
            file.register(&self.session)?;
        }
        self.view("chains", CHAINS).await?;
        let mut report = HealthReport::new(&self.rules, self.evidence.num_records);
        self.judge(&mut report, verdicts).await?;
        self.view("repeats", REPEATS).await?;
        self.judge_tasks(&mut report).await?;
        write_summary(&mut report, &self.session, summary).await?;
        Ok(report)
    }

    async fn view(&self, name: &str, sql: &str) -> Result<(), HealthError> {
        let view = self.session.sql(sql).await?.into_view();
        self.session.register_table(name, view)?;
        Ok(())
    }

    /// Writes a verdict for each record, in the order of their keys, and keeps them for the rules of tasks.
    async fn judge(
        &self,
        report: &mut HealthReport,
        out: &mut (dyn Write + Send),
    ) -> Result<(), HealthError> {
        let session = &self.session;
        let mut records = Rows::of(session, RECORDS, Judged::rows).await?;
        let is_asked = |scope| scope != Scope::Tasks;
        let found = self.rules.findings(session, "records", "record", is_asked);
        let order = ["record", "scope", "rule", "position"];
        let found = found
            .await?
            .sort(order.map(|name| col(name).sort(true, true)).to_vec())?;
        let mut found = Rows::start(found, Found::rows).await?;
        let broken = self.rules.position(BROKEN_CHECK);
        let mut kept = self.spool.begin("verdicts", Verdicts::schema())?;
        let (mut held, mut num_held) = (Verdicts::default(), 0);
        while let Some(record) = records.next().await? {
            let mut findings: Vec<String> = Vec::new();
            let mut unobserved: Vec<usize> = Vec::new();
            while let Some(row) = found.next_if(|row| row.record == record.record).await? {
                let own = row.rule as usize;
                let (rule, locator, detail) = match row.detail {
                    Some(detail) => (own, row.locator, detail),
                    None if unobserved.contains(&own) => continue,
                    None => {
                        unobserved.push(own);
                        let (Some(error), Some(broken)) = (row.error, broken) else {
                            continue;
                        };
                        (broken, None, broken_down(report.id(own), &error))
                    }
                };
                let locator = locator.map(|text| format!(r#","locator":{text}"#));
                findings.push(format!(
                    r#"{{"check":{}{},"detail":{detail}}}"#,
                    quote(report.id(rule)),
                    locator.unwrap_or_default()
                ));
                report.count(rule, 1, 0);
            }
            // Rules over all records run last, but are listed in their order.
            unobserved.sort_unstable();
            let verdict = report.judged(!findings.is_empty(), &unobserved);
            let names = unobserved.iter().map(|rule| quote(report.id(*rule)));
            let stage = record.stage.as_ref();
            let stage = stage.map(|stage| format!(r#","stage_index":{stage}"#));
            writeln!(
                out,
                r#"{{"_ng_task_index":{},"_ng_rollout_index":{},"rollout_id":{},"verdict":"{verdict}","findings":[{}],"unobserved":[{}]{}}}"#,
                record.task,
                record.rollout,
                quote(&record.rollout_id),
                findings.join(","),
                names.collect::<Vec<_>>().join(","),
                stage.unwrap_or_default(),
            )?;
            held.add(VerdictRow {
                task: Some(&record.task),
                task_name: Some(&unquote(&record.task).unwrap_or((&*record.task).into())),
                rollout: Some(&record.rollout),
                verdict: Some(verdict),
                calls_known: Some(record.calls_known),
                successful_calls: Some(record.successful_turn_calls),
            });
            num_held += 1;
            if num_held >= HELD {
                kept.write(&held.take()?)?;
                num_held = 0;
            }
        }
        kept.write(&held.take()?)?;
        Ok(kept.register(&self.session)?)
    }

    /// Runs the rules of tasks, and keeps their findings as the table `flags`.
    async fn judge_tasks(&self, report: &mut HealthReport) -> Result<(), HealthError> {
        let session = &self.session;
        let tasks = session.sql("SELECT DISTINCT task FROM repeats").await?;
        report.num_tasks = tasks.count().await? as u64;
        let is_asked = |scope| scope == Scope::Tasks;
        let flags = self.rules.findings(session, "repeats", "task", is_asked);
        let flags = flags.await?;
        self.spool.keep(session, "flags", flags).await?;
        let mut counts = Rows::of(session, FLAG_COUNTS, FlagCount::rows).await?;
        while let Some(count) = counts.next().await? {
            report.count(count.rule as usize, count.found, count.unobserved);
        }
        Ok(())
    }
}

/// Returns the finding about a rule that failed.
fn broken_down(rule: &str, error: &str) -> String {
    format!(
        r#"{{"reason":"check raised an unexpected exception","failed_check":{},"error":{}}}"#,
        quote(rule),
        quote(error)
    )
}
