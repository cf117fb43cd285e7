use std::io::Write;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use datafusion::prelude::{SessionContext, col};
use include_dir::{Dir, include_dir};

use super::error::HealthError;
use super::evidence::{Evidence, Place};
use super::report::{HealthReport, Statistics, write_summary};
use super::rules::{BROKEN_CHECK, Rules, Scope};
use super::tables::{Calls, Gaps, Records, Turns, Unbound, VerdictRow, Verdicts};
use super::to_json::to_json;
use crate::json::{quote, unquote};
use crate::measure::{Column, Rows, Spool, SpoolFile};
use crate::session;

static VIEWS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/health/views");

/// Rows that are held before they go to temporary files.
const HELD: usize = 4096;

/// How rollouts are checked.
#[derive(Debug, Clone)]
pub struct HealthOptions {
    /// Names of checks that are left out, each or several with commas between.
    pub ignored: Vec<String>,
    /// Bytes for what can go to temporary files.
    pub memory: usize,
}

impl HealthOptions {
    /// Whether all checks that are left out exist.
    ///
    /// # Errors
    /// One does not.
    pub fn check(&self) -> Result<(), HealthError> {
        Rules::new(&self.ignored).map(drop)
    }
}

/// A check of rollouts under way. Their evidence waits in temporary files.
pub struct HealthCheck {
    rules: Rules,
    session: SessionContext,
    spool: Spool,
    evidence: Evidence,
    files: Vec<(SpoolFile, Take)>,
    num_records: u64,
}

type Take = fn(&mut Evidence) -> Result<RecordBatch, ArrowError>;

/// A record that a verdict is about.
struct Record {
    key: Vec<u8>,
    task: String,
    rollout: String,
    stage: Option<String>,
    rollout_id: String,
    calls_known: bool,
    successful_calls: i64,
}

/// A row of a rule.
struct Found {
    key: Vec<u8>,
    rule: usize,
    locator: Option<String>,
    detail: Option<String>,
    error: Option<String>,
}

impl HealthCheck {
    /// Nothing was looked at yet.
    ///
    /// # Errors
    /// A check that is to be left out does not exist, or there is no place for temporary files.
    pub fn new(options: &HealthOptions) -> Result<Self, HealthError> {
        let rules = Rules::new(&options.ignored)?;
        let session = session::measuring(options.memory).map_err(HealthError::tables)?;
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
            num_records: 0,
        })
    }

    /// Adds a row: line `line` of the file of this number, which people know as `shown`.
    ///
    /// # Errors
    /// The row does not say which rollout it is, or temporary files cannot be written.
    pub fn add(
        &mut self,
        row: &[u8],
        file: usize,
        shown: &str,
        line: u64,
    ) -> Result<(), HealthError> {
        let place = Place {
            file,
            shown,
            line,
            ordinal: self.num_records,
        };
        self.evidence
            .add(row, place)
            .map_err(|field| HealthError::Index {
                place: shown.to_owned(),
                line,
                field,
            })?;
        self.num_records += 1;
        if self.evidence.rows >= HELD {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), HealthError> {
        for (file, take) in &mut self.files {
            file.write(&take(&mut self.evidence).map_err(HealthError::tables)?)?;
        }
        self.evidence.rows = 0;
        Ok(())
    }

    /// Asks all rules, and writes the verdict of each record and the summary.
    ///
    /// # Errors
    /// A rule fails, or the output cannot be written.
    pub async fn finish(
        mut self,
        verdicts: &mut (dyn Write + Send),
        summary: &mut (dyn Write + Send),
    ) -> Result<HealthReport, HealthError> {
        self.flush()?;
        for (file, _) in std::mem::take(&mut self.files) {
            file.register(&self.session, &[])?;
        }
        self.view("chains").await?;
        let mut report = HealthReport::new(&self.rules, self.num_records);
        self.judge(&mut report, verdicts).await?;
        self.view("repeats").await?;
        self.judge_tasks(&mut report).await?;
        let statistics = Statistics::of(&self.session).await?;
        write_summary(&mut report, &statistics, &self.session, summary).await?;
        Ok(report)
    }

    async fn view(&self, name: &str) -> Result<(), HealthError> {
        let file = VIEWS.get_file(format!("{name}.sql"));
        let sql = file
            .and_then(|file| file.contents_utf8())
            .unwrap_or_default();
        let view = self.session.sql(sql).await.map_err(HealthError::tables)?;
        let view = self.session.register_table(name, view.into_view());
        view.map(drop).map_err(HealthError::tables)
    }

    /// Writes a verdict for each record, in the order of their keys, and keeps them for the rules of tasks.
    async fn judge(
        &self,
        report: &mut HealthReport,
        out: &mut (dyn Write + Send),
    ) -> Result<(), HealthError> {
        let sorted = |columns: &[&str]| {
            columns
                .iter()
                .map(|name| col(*name).sort(true, true))
                .collect()
        };
        let columns = [
            "record",
            "task",
            "rollout",
            "stage",
            "rollout_id",
            "scope_complete",
            "turns_bound",
            "successful_turn_calls",
        ];
        let records = self.session.table("records").await;
        let records = records.and_then(|records| records.select_columns(&columns));
        let records = records.and_then(|records| records.sort(sorted(&["record"])));
        let mut records =
            Rows::start(records.map_err(HealthError::tables)?, decode_records).await?;
        let is_asked = |scope| scope != Scope::Tasks;
        let found = self
            .rules
            .findings(&self.session, "record", is_asked)
            .await?;
        let mut found = match found {
            Some(found) => {
                let found = found.sort(sorted(&["record", "scope", "rule", "position"]));
                Some(Rows::start(found.map_err(HealthError::tables)?, decode_found).await?)
            }
            None => None,
        };
        let broken = self.rules.position(BROKEN_CHECK);
        let mut kept = self.spool.begin("verdicts", Verdicts::schema())?;
        let (mut held, mut num_held) = (Verdicts::default(), 0);
        while let Some(record) = records.next_if(|_| true).await? {
            let mut findings: Vec<String> = Vec::new();
            let mut unobserved: Vec<usize> = Vec::new();
            while let Some(rows) = &mut found
                && let Some(row) = rows.next_if(|row| row.key == record.key).await?
            {
                let (rule, locator, detail) = match row.detail {
                    Some(detail) => (Some(row.rule), row.locator, detail),
                    None if unobserved.contains(&row.rule) => continue,
                    None => {
                        unobserved.push(row.rule);
                        let Some(error) = row.error else { continue };
                        (broken, None, broken_down(report.id(row.rule), &error))
                    }
                };
                let Some(rule) = rule.filter(|rule| !report.is_ignored(*rule)) else {
                    continue;
                };
                let locator = locator.map(|text| format!(r#","locator":{text}"#));
                findings.push(format!(
                    r#"{{"check":{}{},"detail":{detail}}}"#,
                    quote(report.id(rule)),
                    locator.unwrap_or_default()
                ));
                report.found(rule);
            }
            // Rules of all records are asked last, and listed where they stand.
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
                successful_calls: Some(record.successful_calls),
            });
            num_held += 1;
            if num_held >= HELD {
                kept.write(&held.take().map_err(HealthError::tables)?)?;
                num_held = 0;
            }
        }
        kept.write(&held.take().map_err(HealthError::tables)?)?;
        Ok(kept.register(&self.session, &[])?)
    }

    /// Asks the rules of tasks, and keeps what they find as the table `flags`.
    async fn judge_tasks(&self, report: &mut HealthReport) -> Result<(), HealthError> {
        let tasks = "SELECT DISTINCT task FROM repeats";
        let tasks = self.session.sql(tasks).await.map_err(HealthError::tables)?;
        report.num_tasks = tasks.count().await.map_err(HealthError::tables)? as u64;
        let flags = self
            .rules
            .findings(&self.session, "task", |scope| scope == Scope::Tasks);
        let flags = match flags.await? {
            Some(flags) => flags,
            // All of them are left out.
            None => {
                let none = "SELECT task, 0 AS rule, '' AS detail FROM repeats WHERE false";
                self.session.sql(none).await.map_err(HealthError::tables)?
            }
        };
        self.spool.keep_frame(&self.session, "flags", flags).await?;
        let counts_of = "SELECT rule, count(detail) AS found, count(*) - count(detail) AS unobserved FROM flags GROUP BY rule";
        let rows = self
            .session
            .sql(counts_of)
            .await
            .map_err(HealthError::tables)?;
        for batch in rows.collect().await.map_err(HealthError::tables)? {
            let (rules, found) = (i64::read(&batch, "rule")?, i64::read(&batch, "found")?);
            let unobserved = i64::read(&batch, "unobserved")?;
            for ((rule, found), unobserved) in rules.into_iter().zip(found).zip(unobserved) {
                report.found_of_tasks(rule, found, unobserved);
            }
        }
        Ok(())
    }
}

/// What is found where a rule broke down.
fn broken_down(rule: &str, error: &str) -> String {
    format!(
        r#"{{"reason":"check raised an unexpected exception","failed_check":{},"error":{}}}"#,
        quote(rule),
        quote(error)
    )
}

fn decode_records(batch: &RecordBatch) -> Result<Vec<Record>, crate::measure::MeasureError> {
    let keys = Vec::<u8>::read(batch, "record")?;
    let (tasks, rollouts) = (
        String::read(batch, "task")?,
        String::read(batch, "rollout")?,
    );
    let (stages, ids) = (
        Option::<String>::read(batch, "stage")?,
        String::read(batch, "rollout_id")?,
    );
    let (scopes, bound) = (
        bool::read(batch, "scope_complete")?,
        bool::read(batch, "turns_bound")?,
    );
    let successful = i64::read(batch, "successful_turn_calls")?;
    let rows = keys.into_iter().enumerate().map(|(row, key)| Record {
        key,
        task: tasks[row].clone(),
        rollout: rollouts[row].clone(),
        stage: stages[row].clone(),
        rollout_id: ids[row].clone(),
        calls_known: scopes[row] && bound[row],
        successful_calls: successful[row],
    });
    Ok(rows.collect())
}

fn decode_found(batch: &RecordBatch) -> Result<Vec<Found>, crate::measure::MeasureError> {
    let (keys, rules) = (Vec::<u8>::read(batch, "record")?, i64::read(batch, "rule")?);
    let text = |name| Option::<String>::read(batch, name);
    let said = text("locator")?
        .into_iter()
        .zip(text("detail")?)
        .zip(text("error")?);
    let rows = keys.into_iter().zip(rules).zip(said);
    let found = |((key, rule), ((locator, detail), error))| Found {
        key,
        rule: usize::try_from(rule).unwrap_or_default(),
        locator,
        detail,
        error,
    };
    Ok(rows.map(found).collect())
}
