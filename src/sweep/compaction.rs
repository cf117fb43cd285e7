//! Merges small parts when a sweep ends. `--part-interval` cut them so that they could be read while it ran.

use std::collections::{BTreeMap, HashSet};

use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use super::Sweep;
use crate::error::Error;
use crate::schema;
use crate::session;
use crate::store::segment::TABLES;
use crate::store::{
    PartExchange, PartWriter, RunLock, RunStore, SegmentName, StoreError, part_name,
};

/// The most small segments that are left as they are: so few hurt no reader.
const FEW: usize = 32;

/// Segments whose parts are merged into one.
type Group = Vec<SegmentName>;

impl Sweep {
    /// Merges small parts, and updates `written` to the parts that remain. Small parts that stay cost readers
    /// nothing but time. Readers who listed the old parts can still read them until the returned value is dropped.
    pub(super) async fn compact(
        &self,
        lock: &RunLock,
        written: &mut Vec<String>,
    ) -> Option<PartExchange> {
        let compacted = tokio::select! {
            compacted = self.replace_small(lock, written) => compacted,
            () = self.shutdown.aborting() => return None,
        };
        compacted.unwrap_or_else(|error| {
            let text = format!("small parts stay as they are: {error}");
            self.progress.notice(text);
            None
        })
    }

    async fn replace_small(
        &self,
        lock: &RunLock,
        written: &mut Vec<String>,
    ) -> Result<Option<PartExchange>, Error> {
        let Some(compacted) = PartExchange::begin(&self.run)? else {
            return Ok(None);
        };
        let part_size = self.settings.part_size.get();
        let groups = grouped(small(&self.run, part_size).await?, part_size);
        if groups.is_empty() {
            return Ok(None);
        }
        // A writer of its own: the name of what it writes comes after all that it replaces.
        let writer = lock.writer().await?;
        let segments: Vec<SegmentName> = groups.iter().map(|_| writer.segment(0)).collect();
        let mut tables = Vec::new();
        for table in TABLES {
            let mut merged = Vec::new();
            for (group, segment) in groups.iter().zip(&segments) {
                let name = compacted.name(table, *segment);
                if merge(&self.run, table, group, &name).await? {
                    merged.push(*segment);
                }
            }
            if !merged.is_empty() {
                tables.push((table, merged));
            }
        }
        let all = groups.concat();
        for (table, merged) in tables {
            if !compacted.publish(table, &all, &writer).await? {
                break;
            }
            let display = |segment: &SegmentName| self.run.display(&part_name(table, segment));
            let replaced: HashSet<String> = all.iter().map(display).collect();
            written.retain(|part| !replaced.contains(part));
            written.extend(merged.iter().map(display));
        }
        Ok(Some(compacted))
    }
}

/// Returns the segments of less than half a part, and their sizes in bytes, the oldest first.
async fn small(run: &RunStore, part_size: u64) -> Result<Vec<(SegmentName, u64)>, Error> {
    let mut sizes: BTreeMap<SegmentName, u64> = BTreeMap::new();
    for table in TABLES {
        for part in run.list(table).await? {
            if let Some(segment) = SegmentName::of_part(part.location.as_ref()) {
                *sizes.entry(segment).or_default() += part.size;
            }
        }
    }
    let small = sizes.into_iter().filter(|(_, size)| *size < part_size / 2);
    Ok(small.collect())
}

/// Groups neighbouring segments so that no group exceeds a part.
fn grouped(small: Vec<(SegmentName, u64)>, part_size: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    if small.len() <= FEW {
        return groups;
    }
    let mut filled = part_size;
    for (segment, size) in small {
        filled += size;
        match groups.last_mut() {
            Some(group) if filled <= part_size => group.push(segment),
            _ => {
                groups.push(vec![segment]);
                filled = size;
            }
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Writes the rows of some segments into one part; returns whether there are any.
async fn merge(
    run: &RunStore,
    table: &'static str,
    group: &[SegmentName],
    name: &str,
) -> Result<bool, Error> {
    let schema = match table {
        schema::ROLLOUTS => schema::rollouts(),
        schema::CALLS => schema::calls(),
        _ => schema::attempts(),
    };
    let session = SessionContext::new_with_config(session::config().with_target_partitions(1));
    let mut writer: Option<PartWriter> = None;
    for segment in group {
        let part = part_name(table, segment);
        if !run.exists(&part).await? {
            continue;
        }
        let writer = match &mut writer {
            Some(begun) => begun,
            none => none.insert(PartWriter::new(run, table, name, schema.clone())?),
        };
        let rows = session::part(&session, run, &part, &schema)?;
        let mut rows = rows.execute_stream().await?;
        while let Some(batch) = rows.try_next().await? {
            writer.write(&batch).await?;
        }
    }
    match writer {
        Some(writer) => {
            let finished = writer.finish().await.map_err(StoreError::of_output);
            finished.map(|_| true)
        }
        None => Ok(false),
    }
}
