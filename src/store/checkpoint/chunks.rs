use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use crate::schema::ATTEMPTS;
use crate::store::{RunStore, SegmentName, StoreError, deadline, part_name};

/// Directory of the copies of all runs that are or were at the place.
const JOURNAL: &str = "journal";

/// Extension of a segment of outcomes, which becomes parts.
const SEGMENT: &str = "rows";

/// Extension of a log of dispatches.
const DISPATCHES: &str = "dispatches";

/// How long the store may take for one request.
const DEADLINE: Duration = Duration::from_secs(60);

/// A file of a journal, as far as it is on the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointedFile {
    /// Its name in the journal's directory.
    pub file: String,
    /// Who wrote it.
    pub name: SegmentName,
    /// Bytes from its beginning on.
    pub num_bytes: u64,
    /// When something was last added, by the store's clock.
    pub last_modified: DateTime<Utc>,
}

/// The copies of a run's journal files, in the order of their names; none of a local run.
///
/// # Errors
/// The store failed.
pub async fn list(run: &RunStore) -> Result<Vec<CheckpointedFile>, StoreError> {
    let copies = copies(run, None).await?;
    let file = |(file, copy): (String, FileCopy)| {
        Some(CheckpointedFile {
            name: name(&file)?,
            file,
            num_bytes: copy.num_bytes(),
            last_modified: copy.last_modified,
        })
    };
    Ok(copies.into_iter().filter_map(file).collect())
}

/// Deletes the copy of a journal file, if there is one. The file itself stays.
///
/// # Errors
/// The store failed; what is then left of the copy is its beginning.
pub async fn forget(run: &RunStore, file: &str) -> Result<(), StoreError> {
    if name(file).is_none() {
        return Ok(());
    }
    forget_below(run, &format!("{}/{file}", run.journal_copies())).await
}

/// Deletes the copies of all journal files.
pub(in crate::store) async fn forget_all(run: &RunStore) -> Result<(), StoreError> {
    forget_below(run, JOURNAL).await
}

async fn forget_below(run: &RunStore, directory: &str) -> Result<(), StoreError> {
    if run.local_path().is_some() {
        return Ok(());
    }
    let listed = ask(run, "list", directory, || run.list(directory)).await?;
    let mut paths: Vec<Path> = listed.into_iter().map(|meta| meta.location).collect();
    // From the end, so that at any moment what is there can be read.
    paths.sort_by(|a, b| b.cmp(a));
    twice(|| delete(run, directory, paths.clone())).await
}

async fn delete(run: &RunStore, directory: &str, paths: Vec<Path>) -> Result<(), StoreError> {
    let paths = stream::iter(paths.into_iter().map(Ok)).boxed();
    let mut deleted = run.object_store().delete_stream(paths);
    loop {
        let next = async { Ok(deleted.next().await) };
        let limit = run.deadline(DEADLINE);
        let done = deadline::within(limit, "delete", || run.display(directory), next).await?;
        match done {
            None => return Ok(()),
            Some(Ok(_) | Err(object_store::Error::NotFound { .. })) => {}
            Some(Err(source)) => {
                return Err(StoreError::Object {
                    action: "delete",
                    object: run.display(directory),
                    source,
                });
            }
        }
    }
}

/// A piece of a journal file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub offset: u64,
    pub len: u64,
}

/// What can be read of a journal file: its chunks without a gap from the beginning.
#[derive(Debug, Clone)]
pub(super) struct FileCopy {
    pub chunks: Vec<Chunk>,
    pub last_modified: DateTime<Utc>,
}

impl FileCopy {
    fn new(mut listed: Vec<(Chunk, DateTime<Utc>)>) -> Self {
        listed.sort_by_key(|(chunk, _)| chunk.offset);
        let mut copy = Self {
            chunks: Vec::new(),
            last_modified: DateTime::default(),
        };
        for (chunk, modified) in listed {
            copy.last_modified = copy.last_modified.max(modified);
            // A gap that was filled leaves chunks that begin within another.
            if chunk.offset == copy.num_bytes() {
                copy.chunks.push(chunk);
            }
        }
        copy
    }

    pub(super) fn num_bytes(&self) -> u64 {
        let end = |chunk: &Chunk| chunk.offset.saturating_add(chunk.len);
        self.chunks.last().map(end).unwrap_or_default()
    }
}

/// The copies of all journal files, or of one.
pub(super) async fn copies(
    run: &RunStore,
    file: Option<&str>,
) -> Result<BTreeMap<String, FileCopy>, StoreError> {
    if run.local_path().is_some() {
        return Ok(BTreeMap::new());
    }
    let root = run.journal_copies();
    let directory = file.map_or(root.clone(), |file| format!("{root}/{file}"));
    let listed = ask(run, "list", &directory, || run.list(&directory)).await?;
    let root = run.path(&root);
    let mut files: BTreeMap<String, Vec<(Chunk, DateTime<Utc>)>> = BTreeMap::new();
    for meta in listed {
        if let Some((name, chunk)) = chunk(&root, &meta) {
            let chunks = files.entry(name).or_default();
            chunks.push((chunk, meta.last_modified));
        }
    }
    let copy = |(name, listed)| (name, FileCopy::new(listed));
    Ok(files.into_iter().map(copy).collect())
}

/// The chunk that an object is, and its file. What does not look like one is passed over.
fn chunk(root: &Path, meta: &ObjectMeta) -> Option<(String, Chunk)> {
    let mut parts = meta.location.prefix_match(root)?;
    let (file, offset) = (parts.next()?, parts.next()?);
    let (file, offset) = (file.as_ref(), offset.as_ref());
    let is_chunk = name(file).is_some() && offset.len() == 20 && parts.next().is_none();
    let chunk = Chunk {
        offset: offset.parse().ok()?,
        len: meta.size,
    };
    is_chunk.then(|| (file.to_owned(), chunk))
}

fn object(run: &RunStore, file: &str, offset: u64) -> String {
    format!("{}/{file}/{offset:020}", run.journal_copies())
}

/// Puts what follows at `offset`, and says how many bytes from there on are now on the store. They
/// are fewer where an earlier try was done after all, though it seemed to have failed.
pub(super) async fn put(
    run: &RunStore,
    file: &str,
    offset: u64,
    content: Vec<u8>,
) -> Result<u64, StoreError> {
    let object = object(run, file, offset);
    let content = Bytes::from(content);
    let len = content.len() as u64;
    // Such a try may also be done from now on: with a plain write, it would cut off a later one.
    let create = || run.create(&object, content.clone());
    if ask(run, "write", &object, create).await? {
        return Ok(len);
    }
    let path = run.path(&object);
    let failed = |source| StoreError::Object {
        action: "write",
        object: run.display(&object),
        source,
    };
    let head = || async { run.object_store().head(&path).await.map_err(failed) };
    match ask(run, "read", &object, head).await?.size {
        0 => Err(failed(object_store::Error::AlreadyExists {
            path: path.to_string(),
            source: "it is empty; delete it".into(),
        })),
        size => Ok(size),
    }
}

/// Content of a chunk, if it is still there and as it was.
pub(super) async fn get(
    run: &RunStore,
    file: &str,
    chunk: Chunk,
) -> Result<Option<Bytes>, StoreError> {
    let object = object(run, file, chunk.offset);
    let found = ask(run, "read", &object, || run.get(&object)).await?;
    Ok(found.filter(|bytes| bytes.len() as u64 == chunk.len))
}

/// Whose file of a journal this is, if it is one.
pub(super) fn name(file: &str) -> Option<SegmentName> {
    let (name, extension) = file.split_once('.')?;
    let is_known = extension == SEGMENT || extension == DISPATCHES;
    name.parse().ok().filter(|_| is_known)
}

/// Name of the segment that a journal file is, if it is one.
pub(super) fn segment(file: &str) -> Option<SegmentName> {
    name(file).filter(|_| file.ends_with(SEGMENT))
}

/// Whether the segment has become parts: that of `attempts` is published last.
pub(super) async fn is_landed(run: &RunStore, segment: SegmentName) -> Result<bool, StoreError> {
    let part = part_name(ATTEMPTS, segment);
    ask(run, "look for", &part, || run.exists(&part)).await
}

/// What the store answers, within the deadline.
async fn ask<T, W>(
    run: &RunStore,
    action: &'static str,
    object: &str,
    request: impl Fn() -> W,
) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    let (shown, limit) = (|| run.display(object), run.deadline(DEADLINE));
    twice(|| deadline::within(limit, action, shown, request())).await
}

/// Does `work` again if the store failed. Some of what is done here takes several requests: where
/// every second one fails it would never come to an end.
async fn twice<T, W>(work: impl Fn() -> W) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    match work().await {
        Err(StoreError::Object { .. }) => work().await,
        done => done,
    }
}
