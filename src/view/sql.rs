//! The page of a query, with its answer as a table, as a chart, and as a file.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::runtime::SpawnedTask;
use futures::TryStreamExt;
use maud::{Markup, PreEscaped, html};
use tokio::sync::mpsc;

use super::chart::{Bar, Chart, short};
use super::html::{Links, error, pages, query as address, text};
use super::look::Look;
use super::rollout::beginning;
use super::server::{Answer, Out};
use super::site::Asked;
use crate::error::Error;
use crate::query::all_tables;
use crate::show::{Format, RowLimit, open_sink};

/// Rows of a page.
const PAGE: usize = 100;

/// Bytes of a value in a table.
const VALUE: usize = 500;

/// Bars of a chart.
const MAX_BARS: usize = 60;

const EXAMPLE: &str = "SELECT agent_name, task_index, avg(reward) AS reward, count(*) AS rollouts
FROM rollouts GROUP BY 1, 2 ORDER BY reward";

/// The page of a query.
pub(super) async fn query(
    look: &Look,
    links: &Links,
    asked: &Asked,
    out: &Out,
) -> Result<(), Error> {
    let (given, page) = (asked.get("q"), asked.page());
    let file = |format: &str| {
        links.of_run(
            look.number,
            &format!("sql{}", address(&[("q", given), ("format", format)])),
        )
    };
    let form = html! {
        h1 { "SQL" }
        form class="filter" {
            textarea name="q" rows="6" cols="90" spellcheck="false" aria-label="SQL" { (if given.is_empty() { EXAMPLE } else { given }) }
            p {
                button { "Run" }
                @if !given.is_empty() { " " a href=[file("csv")] { "CSV" } " " a href=[file("parquet")] { "Parquet" } }
            }
        }
    };
    out.put(form.into_string()).await;
    if !given.is_empty() {
        let answer = answer(look, links, given, page).await;
        out.put(answer.unwrap_or_else(|failed| error(&failed)).into_string())
            .await;
    }
    let tables = all_tables(look.session.context()).await;
    let tables = tables.iter().filter(|table| table.is_of_runs());
    let tables = html! {
        h2 { "Tables" }
        @for table in tables {
            details {
                summary { code { (table.full_name()) } }
                p { (table.columns.as_ref().map_or_else(String::new, |columns| columns.join(", "))) }
            }
        }
    };
    out.put(tables.into_string()).await;
    Ok(())
}

async fn answer(look: &Look, links: &Links, given: &str, page: usize) -> Result<Markup, Error> {
    let rows = look.session.plan(given).await?;
    let rows = rows.limit((page - 1) * PAGE, Some(PAGE + 1))?;
    let schema = Arc::clone(rows.schema().inner());
    let rows =
        arrow::compute::concat_batches(&schema, &rows.collect().await?).map_err(Error::defect)?;
    let shown = rows.slice(0, rows.num_rows().min(PAGE));
    let link = |page: usize| {
        let page = page.to_string();
        links.of_run(
            look.number,
            &format!("sql{}", address(&[("q", given), ("page", &page)])),
        )
    };
    Ok(html! {
        (chart(&shown))
        (table(&shown)?)
        (pages(page, rows.num_rows() > PAGE, link))
    })
}

/// Rows as a table. What is long is cut.
pub(super) fn table(rows: &RecordBatch) -> Result<Markup, Error> {
    let format = FormatOptions::new().with_null("–").with_display_error(true);
    let values = rows
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &format));
    let values: Vec<ArrayFormatter> = values.collect::<Result<_, _>>().map_err(Error::defect)?;
    let mut lines = String::new();
    for row in 0..rows.num_rows() {
        let line = html! {
            tr { @for (value, column) in values.iter().zip(rows.columns()) {
                @let shown = value.value(row).to_string();
                @if column.data_type().is_numeric() {
                    td class="n" { (shown) }
                } @else {
                    td class="long" { (text(beginning(&shown, VALUE))) @if shown.len() > VALUE { " …" } }
                }
            } }
        };
        lines.push_str(&line.into_string());
    }
    Ok(html! {
        div class="scroll" { table {
            thead { tr { @for field in rows.schema().fields() { th { (text(field.name())) } } } }
            tbody { (PreEscaped(lines)) }
        } }
        p class="note" { (rows.num_rows()) " rows" }
    })
}

/// Bars of the last numeric column.
fn chart(rows: &RecordBatch) -> Markup {
    let schema = rows.schema();
    let numeric = schema
        .fields()
        .iter()
        .enumerate()
        .rfind(|(_, field)| field.data_type().is_numeric());
    let Some((column, field)) = numeric.filter(|_| rows.num_rows() > 1) else {
        return html! {};
    };
    let Ok(values) = cast(rows.column(column), &DataType::Float64) else {
        return html! {};
    };
    let values = values.as_primitive::<Float64Type>().iter().take(MAX_BARS);
    let bars = values.enumerate().map(|(row, value)| Bar {
        from: row as f64,
        to: (row + 1) as f64,
        counts: vec![
            value
                .filter(|value| value.is_finite())
                .unwrap_or_default()
                .max(0.0),
        ],
    });
    let chart = Chart {
        title: field.name().clone(),
        x_title: "row",
        x_label: short,
        y_label: short,
    };
    chart.bars(&bars.collect::<Vec<_>>(), &[])
}

/// The whole answer to a query as a file.
pub(super) async fn download(look: Arc<Look>, asked: &Asked) -> Answer {
    let (format, media, file) = match asked.get("format") {
        "csv" => (Format::Csv, "text/csv; charset=utf-8", "answer.csv"),
        _ => (
            Format::Parquet,
            "application/vnd.apache.parquet",
            "answer.parquet",
        ),
    };
    let given = asked.get("q").to_owned();
    Answer {
        file: Some(file),
        ..Answer::made_by(media, |out| async move {
            if let Err(failed) = write(&look, &given, format, out.clone()).await {
                // The status is sent already: a file that says why is better than one that is cut off.
                out.put(failed.report()).await;
            }
        })
    }
}

async fn write(look: &Look, given: &str, format: Format, out: Out) -> Result<(), Error> {
    let rows = look.session.plan(given).await?;
    let schema = Arc::clone(rows.schema().inner());
    let mut rows = rows.execute_stream().await?;
    let (send, mut batches) = mpsc::channel::<RecordBatch>(2);
    let writer = SpawnedTask::spawn_blocking(move || {
        let mut sink = open_sink(format, &schema, Box::new(Pieces(out)), RowLimit::default())?;
        while let Some(batch) = batches.blocking_recv() {
            sink.write(&batch)?;
        }
        sink.finish()
    });
    while let Some(batch) = rows.try_next().await? {
        // A writer that has ended says why below.
        if send.send(batch).await.is_err() {
            break;
        }
    }
    drop(send);
    Ok(writer.join().await.map_err(Error::defect)??)
}

/// Writes pieces of an answer.
struct Pieces(Out);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.0.put_blocking(bytes.to_vec()) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
