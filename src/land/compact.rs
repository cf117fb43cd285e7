use crate::outcome::{attempts_of, rollouts_of, turns_of};
use crate::schema;
use crate::store::{JournalSegment, Part, PartWriter, RunStore, StoreError, part_name};

/// Turns those segments that an earlier process left in its journal into parts that `is_wanted`
/// says of by name.
///
/// # Errors
/// The store failed; the journal is then as it was.
pub async fn recover(
    run: &RunStore,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Part>, StoreError> {
    let mut parts = Vec::new();
    for segment in JournalSegment::list(run.journal_dir())? {
        if is_wanted(segment.name()) {
            parts.extend(compact(run, &segment).await?);
        }
    }
    Ok(parts)
}

/// Turns a segment into a part of `rollouts`, of `turns` and of `attempts`, and removes it. Parts bear the
/// segment's name, so that doing it twice does it once. That of `attempts` comes last: with it the
/// segment is finished, and is only removed.
pub(super) async fn compact(
    run: &RunStore,
    segment: &JournalSegment,
) -> Result<Vec<Part>, StoreError> {
    // Another machine may have landed an earlier copy of it, and asked the rest again.
    if run
        .exists(&part_name(schema::ATTEMPTS, segment.name()))
        .await?
    {
        segment.remove()?;
        return Ok(Vec::new());
    }
    let mut writers = [None, None, None];
    if let Err(error) = copy(run, segment, &mut writers).await {
        for writer in writers.into_iter().flatten() {
            writer.abandon().await;
        }
        return Err(error);
    }
    let mut parts = Vec::new();
    let mut writers = writers.into_iter().flatten();
    while let Some(writer) = writers.next() {
        match writer.finish().await {
            Ok(part) => parts.push(part),
            Err(error) => {
                for writer in writers {
                    writer.abandon().await;
                }
                return Err(error);
            }
        }
    }
    segment.remove()?;
    Ok(parts)
}

async fn copy(
    run: &RunStore,
    segment: &JournalSegment,
    writers: &mut [Option<PartWriter>; 3],
) -> Result<(), StoreError> {
    let malformed = |source| StoreError::Journal {
        path: run.journal_dir().join(segment.name()),
        source,
    };
    for outcomes in segment.open()?.read() {
        let outcomes = outcomes.map_err(malformed)?;
        let rows = [
            (schema::ROLLOUTS, rollouts_of(&outcomes)),
            (schema::TURNS, turns_of(&outcomes)),
            (schema::ATTEMPTS, attempts_of(&outcomes)),
        ];
        for ((table, rows), writer) in rows.into_iter().zip(writers.iter_mut()) {
            let rows = rows.map_err(malformed)?;
            if rows.num_rows() == 0 {
                continue;
            }
            let writer = match writer {
                Some(writer) => writer,
                None => {
                    let name = part_name(table, segment.name());
                    writer.insert(PartWriter::new(run, table, &name, rows.schema())?)
                }
            };
            writer.write(&rows).await?;
        }
    }
    Ok(())
}
