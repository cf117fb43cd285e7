//! The chunks that are the copies of journal files: listing, writing, deleting them, and bringing files back.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::schema::ATTEMPTS;
use crate::store::dispatch_record::DISPATCHES;
use crate::store::journal::in_directory;
use crate::store::objects::if_there;
use crate::store::place::JOURNAL;
use crate::store::segment::SEGMENT;
use crate::store::{RunStore, SegmentName, StoreError, part_name};

/// How long the store may take for one request.
const DEADLINE: Duration = Duration::from_secs(60);

/// Chunks that are read at once; each is held in memory.
const MAX_READS: usize = 8;

/// How often a copy is looked at that changes while it is read.
const MAX_ATTEMPTS: u32 = 3;

/// A file of a journal, as far as it is on the object store.
#[derive(Debug, Clone)]
pub struct CheckpointedFile {
    /// Its name in the journal's directory.
    pub file: String,
    /// Who wrote it.
    pub name: SegmentName,
    /// What can be read: without a gap from the beginning.
    chunks: Vec<Chunk>,
}

impl CheckpointedFile {
    /// Bytes from its beginning on.
    pub fn num_bytes(&self) -> u64 {
        let end = |chunk: &Chunk| chunk.offset.saturating_add(chunk.len);
        self.chunks.last().map(end).unwrap_or_default()
    }
}

/// Lists the copies of a run's journal files, in the order of their names; none of a local run.
pub async fn list(run: &RunStore) -> Result<Vec<CheckpointedFile>, StoreError> {
    list_below(run, &run.journal_copies()).await
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
        match run.within(DEADLINE, "delete", directory, next).await? {
            None => return Ok(()),
            Some(deleted) => if_there(deleted).map_err(run.failed("delete", directory))?,
        };
    }
}

/// A piece of a journal file.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    offset: u64,
    len: u64,
}

async fn list_below(run: &RunStore, directory: &str) -> Result<Vec<CheckpointedFile>, StoreError> {
    if run.local_path().is_some() {
        return Ok(Vec::new());
    }
    let mut listed = ask(run, "list", directory, || run.list(directory)).await?;
    // By file and offset.
    listed.sort_by(|a, b| a.location.cmp(&b.location));
    let root = run.path(&run.journal_copies());
    let mut files: Vec<CheckpointedFile> = Vec::new();
    for (name, file, chunk) in listed.iter().filter_map(|meta| chunk(&root, meta)) {
        if files.last().is_none_or(|last| last.file != file) {
            let chunks = Vec::new();
            files.push(CheckpointedFile { file, name, chunks });
        }
        // A gap that was filled leaves chunks that begin within another.
        if let Some(last) = files.last_mut()
            && last.num_bytes() == chunk.offset
        {
            last.chunks.push(chunk);
        }
    }
    Ok(files)
}

/// Reads an object's name as a chunk, and its file. What does not look like one is passed over.
fn chunk(root: &Path, meta: &ObjectMeta) -> Option<(SegmentName, String, Chunk)> {
    let mut parts = meta.location.prefix_match(root)?;
    let (file, offset) = (parts.next()?, parts.next()?);
    let (file, offset) = (file.as_ref(), offset.as_ref());
    let is_chunk = offset.len() == 20 && parts.next().is_none();
    let chunk = Chunk {
        offset: offset.parse().ok()?,
        len: meta.size,
    };
    is_chunk.then_some((name(file)?, file.to_owned(), chunk))
}

fn object(run: &RunStore, file: &str, offset: u64) -> String {
    format!("{}/{file}/{offset:020}", run.journal_copies())
}

/// Puts what follows at `offset`, and says how many bytes from there on are now on the store. They are fewer where an
/// earlier try succeeded after all, though it seemed to have failed.
pub(super) async fn put(
    run: &RunStore,
    file: &str,
    offset: u64,
    content: Vec<u8>,
) -> Result<u64, StoreError> {
    let object = object(run, file, offset);
    let content = Bytes::from(content);
    let len = content.len() as u64;
    // Such a try may also succeed later: with a plain write, it would cut off a longer one.
    let create = || run.create(&object, content.clone());
    if ask(run, "write", &object, create).await? {
        return Ok(len);
    }
    let path = run.path(&object);
    let failed = run.failed("write", &object);
    let head = || async { run.object_store().head(&path).await.map_err(&failed) };
    match ask(run, "read", &object, head).await?.size {
        0 => Err(failed(object_store::Error::AlreadyExists {
            path: path.to_string(),
            source: "it is empty; delete it".into(),
        })),
        size => Ok(size),
    }
}

/// Reads a chunk, if it is still there and as it was.
async fn get(run: &RunStore, file: &str, chunk: Chunk) -> Result<Option<Bytes>, StoreError> {
    let object = object(run, file, chunk.offset);
    let found = ask(run, "read", &object, || run.get(&object)).await?;
    Ok(found.filter(|bytes| bytes.len() as u64 == chunk.len))
}

/// Reads the name of a file of a journal, if it is one.
pub(super) fn name(file: &str) -> Option<SegmentName> {
    let (name, extension) = file.split_once('.')?;
    let is_known = extension == SEGMENT || extension == DISPATCHES;
    name.parse().ok().filter(|_| is_known)
}

/// Reads the name of a segment, if the file is one.
pub(super) fn segment(file: &str) -> Option<SegmentName> {
    name(file).filter(|_| file.ends_with(SEGMENT))
}

/// Whether the segment has become parts: that of `attempts` is published last.
pub(super) async fn is_landed(run: &RunStore, segment: SegmentName) -> Result<bool, StoreError> {
    let part = part_name(ATTEMPTS, segment);
    ask(run, "look for", &part, || run.exists(&part)).await
}

/// Asks the store, within the deadline.
async fn ask<T, W>(
    run: &RunStore,
    action: &'static str,
    object: &str,
    request: impl Fn() -> W,
) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    twice(|| run.within(DEADLINE, action, object, request())).await
}

/// Does `work` a second time if the store failed. Some of what is done here takes several requests: where every second one
/// fails it would never come to an end.
async fn twice<T, W>(work: impl Fn() -> W) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    match work().await {
        Err(StoreError::Object { .. }) => work().await,
        done => done,
    }
}

/// Brings the copies of journal files whose name `wants` accepts into the directory `into`, which is made if need be, and
/// returns their paths. Left out are files that are there already and at least as long, and segments that have become
/// parts. A file appears whole.
///
/// # Errors
/// The store or the disk failed; files that were brought before stay.
pub async fn fetch(
    run: &RunStore,
    into: &FilePath,
    wants: impl Fn(SegmentName) -> bool,
) -> Result<Vec<PathBuf>, StoreError> {
    let mut fetched = Vec::new();
    for copy in list(run).await? {
        if wants(copy.name) {
            fetched.extend(fetch_file(run, copy, into).await?);
        }
    }
    Ok(fetched)
}

async fn fetch_file(
    run: &RunStore,
    mut copy: CheckpointedFile,
    into: &FilePath,
) -> Result<Option<PathBuf>, StoreError> {
    let path = into.join(&copy.file);
    let object = format!("{}/{}", run.journal_copies(), copy.file);
    for _ in 0..MAX_ATTEMPTS {
        // After the copy was listed: it is deleted only when the segment has landed.
        if let Some(segment) = segment(&copy.file)
            && is_landed(run, segment).await?
        {
            return Ok(None);
        }
        let present = tokio::fs::metadata(&path).await.map(|found| found.len());
        if copy.num_bytes() <= present.unwrap_or_default() {
            return Ok(None);
        }
        if download(run, &copy, &path).await? {
            return Ok(Some(path));
        }
        match list_below(run, &object).await?.pop() {
            Some(found) => copy = found,
            None => return Ok(None),
        }
    }
    Err(run.failed("read", &object)(object_store::Error::NotFound {
        path: copy.file,
        source: "its chunks disappear while they are read".into(),
    }))
}

/// Writes a file from its chunks; says whether all of them were still there.
async fn download(
    run: &RunStore,
    copy: &CheckpointedFile,
    path: &FilePath,
) -> Result<bool, StoreError> {
    let failed = StoreError::file("write", path);
    let directory = path.parent().unwrap_or(FilePath::new("."));
    let partial = in_directory(directory, || {
        tempfile::Builder::new()
            .prefix(".")
            .suffix(".partial")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
    });
    let partial = partial.map_err(&failed)?;
    let mut file = File::from_std(partial.reopen().map_err(&failed)?);
    let reads = copy.chunks.iter().map(|&chunk| get(run, &copy.file, chunk));
    let reads: Vec<_> = reads.collect();
    let mut contents = stream::iter(reads).buffered(MAX_READS);
    while let Some(content) = contents.try_next().await? {
        let Some(content) = content else {
            return Ok(false);
        };
        file.write_all(&content).await.map_err(&failed)?;
    }
    file.flush().await.map_err(&failed)?;
    // A file that has its length and not its content would never be fetched again.
    file.sync_all().await.map_err(&failed)?;
    partial.persist(path).map_err(|error| failed(error.error))?;
    Ok(true)
}
