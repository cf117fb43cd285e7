//! Landing: batches of outcomes through `LandExec` into a local directory (journal, then Parquet), beside what no
//! such thing can do without: a plain file with the bytes of the answers, synced, and the same batches encoded as
//! Parquet in memory.

mod common;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use arrow::array::{AsArray, RecordBatch};
use clap::Parser;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use rollstream::land::{LandContext, LandExec, LandStep};
use rollstream::outcome::rollouts_of;
use rollstream::progress::Progress;
use rollstream::schema;
use rollstream::session;
use rollstream::store::{RunStore, Writer};
use tempfile::TempDir;

use common::{Answers, Options, Report, millions, thousands};

const PART_BYTES: u64 = 128 << 20;

const PART_INTERVAL: Duration = Duration::from_secs(300);

/// Rollouts and bytes per second of landing, beside a plain file and plain Parquet.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Answers land until they are this many bytes [default: 200000000; 40000000 with --quick]
    #[arg(long, value_name = "BYTES")]
    bytes: Option<usize>,
    /// Bytes of an answer
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values_t = [1_000, 20_000])]
    body_sizes: Vec<usize>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let bytes = cli.bytes.unwrap_or(if cli.options.quick {
        40_000_000
    } else {
        200_000_000
    });
    let mut report = Report::new("land");
    for &body_size in &cli.body_sizes {
        let answers = Answers::new((bytes / body_size / 16) as i64, 16, body_size);
        let batches = answers.batches().collect::<anyhow::Result<Vec<_>>>()?;
        let num_bytes = answers_of(&batches)?.map(str::len).sum::<usize>() as f64;
        let num_rollouts = answers.num_rollouts() as f64;
        let mut seconds: [Vec<f64>; 3] = Default::default();
        for _ in 0..cli.options.repeats() {
            let directory = TempDir::with_prefix("rollstream-bench-")?;
            let took = [
                land(directory.path(), &batches).await?,
                plain_file(&directory.path().join("plain"), &batches)?,
                plain_parquet(&batches)?,
            ];
            seconds
                .iter_mut()
                .zip(took)
                .for_each(|(all, took)| all.push(took));
        }
        let case = format!("{} answers of {body_size} bytes", answers.num_rollouts());
        let [landed, file, encoded] = &seconds;
        let rates = |seconds: &[f64], of: f64| {
            seconds
                .iter()
                .map(|seconds| of / seconds)
                .collect::<Vec<_>>()
        };
        for (baseline, of_baseline) in [("file, fsync", file), ("Parquet in memory", encoded)] {
            let figures = [
                ("rollouts", "k/s", thousands(num_rollouts)),
                ("answers", "MB/s", millions(num_bytes)),
            ];
            for (figure, unit, of) in figures {
                report.compare(
                    &case,
                    figure,
                    unit,
                    &rates(landed, of),
                    (baseline, &rates(of_baseline, of)),
                );
            }
        }
    }
    report.finish(&cli.options)
}

/// Seconds from the first batch until all of it is in parts.
async fn land(directory: &Path, batches: &[RecordBatch]) -> anyhow::Result<f64> {
    let run = RunStore::open(
        directory
            .join("run")
            .to_str()
            .context("the temporary directory's name")?,
        None,
    )?;
    let writer = Arc::new(Writer::unlocked(1));
    let context = LandContext::new(
        run.clone(),
        writer,
        PART_INTERVAL,
        Arc::new(Progress::default()),
    );
    let session =
        SessionContext::new_with_config(session::config().with_extension(Arc::new(context)));
    let input = MemorySourceConfig::try_new_exec(&[batches.to_vec()], schema::outcomes(), None)?;
    let plan: Arc<dyn ExecutionPlan> = Arc::new(LandExec::new(
        LandStep {
            output: run.display(""),
            part_size: PART_BYTES,
        },
        input,
    ));
    let began = Instant::now();
    let landed: Vec<RecordBatch> = execute_stream(plan, session.task_ctx())?
        .try_collect()
        .await?;
    let took = began.elapsed();
    ensure!(
        landed.iter().any(|parts| parts.num_rows() >= 2),
        "nothing landed"
    );
    Ok(took.as_secs_f64())
}

fn plain_file(path: &Path, batches: &[RecordBatch]) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut file = File::create(path)?;
    for batch in batches {
        let mut text = Vec::new();
        answers_of(std::slice::from_ref(batch))?
            .for_each(|answer| text.extend_from_slice(answer.as_bytes()));
        file.write_all(&text)?;
    }
    file.sync_all()?;
    Ok(began.elapsed().as_secs_f64())
}

fn plain_parquet(batches: &[RecordBatch]) -> anyhow::Result<f64> {
    let began = Instant::now();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_column_dictionary_enabled(schema::RESULT.into(), false)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema::rollouts(), Some(properties))?;
    for batch in batches {
        writer.write(&rollouts_of(batch)?)?;
    }
    ensure!(!writer.into_inner()?.is_empty(), "nothing was encoded");
    Ok(began.elapsed().as_secs_f64())
}

fn answers_of(batches: &[RecordBatch]) -> anyhow::Result<impl Iterator<Item = &str>> {
    let columns = batches.iter().map(|batch| {
        batch
            .column_by_name(schema::RESULT)
            .context("no column of answers")
    });
    let columns = columns.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(columns
        .into_iter()
        .flat_map(|column| column.as_string_view().iter().flatten()))
}
