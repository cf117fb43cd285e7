//! Writes the rows of many files into one, in the order of their keys: [`merge`].

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use super::error::ImportError;

/// Writes every imported rollout's line as it stands in its file, by task and rollout, those of one
/// key in the order of the files. `files` are those that were imported. Only keys are sorted: the
/// lines are read again one by one.
///
/// # Errors
/// A file has changed or gone, or the output cannot be written.
pub async fn merge<P: AsRef<Path>>(
    ctx: &SessionContext,
    files: &[(P, String)],
    out: &mut impl Write,
) -> Result<(), ImportError> {
    let mut sources = Vec::new();
    for (path, shown) in files {
        let file = File::open(path).map_err(|source| ImportError::Read {
            path: shown.clone(),
            source,
        })?;
        sources.push((file, shown.as_str()));
    }
    let sql = include_str!("../../queries/import/merge.sql");
    let mut rows = ctx.sql(sql).await?.execute_stream().await?;
    let mut line = Vec::new();
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        let columns = [0, 1, 2].map(|column| integers(&batch, column));
        let [numbers, offsets, lengths] = columns;
        for ((number, offset), length) in numbers.zip(offsets).zip(lengths) {
            if let Some((file, shown)) = sources.get_mut(number as usize) {
                let failed = |source| ImportError::Read {
                    path: (*shown).to_owned(),
                    source,
                };
                line.resize(length as usize, 0);
                file.seek(SeekFrom::Start(offset)).map_err(failed)?;
                file.read_exact(&mut line).map_err(failed)?;
                line.push(b'\n');
                out.write_all(&line).map_err(ImportError::Write)?;
            }
        }
    }
    Ok(())
}

fn integers(batch: &RecordBatch, column: usize) -> impl Iterator<Item = u64> {
    let values = batch.column(column).as_primitive::<Int64Type>();
    values.values().iter().map(|value| value.unsigned_abs())
}
