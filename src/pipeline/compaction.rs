//! Small parts become fewer when a sweep ends: `--part-interval` cut them so that they could be read meanwhile.

use std::collections::{BTreeMap, HashSet};

use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use crate::error::Error;
use crate::schema;
use crate::session;
use crate::store::{Compacted, PartWriter, RunStore, SegmentName, Writer, part_name};

/// So few small segments hurt no reader.
const FEW: usize = 8;

/// Tables that a segment has parts of. That of `attempts` is the last to be published here too.
const TABLES: [&str; 3] = [schema::ROLLOUTS, schema::TURNS, schema::ATTEMPTS];

/// Segments that become one.
pub(super) type Group = Vec<SegmentName>;

/// What became of small segments.
#[derive(Debug)]
pub(super) struct Compaction {
    /// Parts that are no longer there, as a person names them.
    pub(super) replaced: HashSet<String>,
    /// Parts that took their place.
    pub(super) published: Vec<String>,
    /// Those who listed the parts that were replaced can read them while this is there.
    _compacted: Compacted,
}

/// Segments whose parts take less than half of `part_size`, in groups that become one segment each. None on an object
/// store, where nothing can take the place of something else in one step.
///
/// # Errors
/// The parts can't be listed.
pub(super) async fn groups(run: &RunStore, part_size: u64) -> Result<Vec<Group>, Error> {
    match run.local_path() {
        Some(_) => Ok(grouped(small(run, part_size).await?, part_size)),
        None => Ok(Vec::new()),
    }
}

/// Makes one segment of each of the groups. The segments of `writer` come after all others, and nobody else writes to
/// the run. `None` where the file system can't do it.
///
/// # Errors
/// A part can't be read, or the disk failed. All rows are where they were before.
pub(super) async fn compact(
    run: &RunStore,
    writer: &Writer,
    groups: Vec<Group>,
) -> Result<Option<Compaction>, Error> {
    let Some(compacted) = Compacted::begin(run)? else {
        return Ok(None);
    };
    let mut compaction = Compaction {
        replaced: HashSet::new(),
        published: Vec::new(),
        _compacted: compacted,
    };
    let compacted = &compaction._compacted;
    let segments: Vec<SegmentName> = groups.iter().map(|_| writer.segment(0)).collect();
    let mut names = BTreeMap::new();
    for table in TABLES {
        for (group, segment) in groups.iter().zip(&segments) {
            let name = compacted.name(table, *segment);
            if merge(run, table, group, &name).await? {
                names.entry(table).or_insert_with(Vec::new).push(*segment);
            }
        }
    }
    let all: Vec<SegmentName> = groups.into_iter().flatten().collect();
    for (table, segments) in TABLES.iter().filter_map(|table| names.get_key_value(table)) {
        if !compacted.publish(table, &all, writer).await? {
            break;
        }
        let display = |segment: &SegmentName| compacted.display(table, *segment);
        compaction.replaced.extend(all.iter().map(display));
        compaction.published.extend(segments.iter().map(display));
    }
    Ok(Some(compaction))
}

/// Small segments and their sizes in bytes, the oldest first.
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

/// No more segments in a group than fill a part.
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

/// Writes the rows of some segments into one part; says whether there are any.
async fn merge(
    run: &RunStore,
    table: &'static str,
    group: &[SegmentName],
    name: &str,
) -> Result<bool, Error> {
    let schema = match table {
        schema::ROLLOUTS => schema::rollouts(),
        schema::TURNS => schema::turns(),
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
        Some(writer) => writer.finish().await.map(|_| true).map_err(Error::Output),
        None => Ok(false),
    }
}
