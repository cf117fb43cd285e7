use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::chunks::{self, FileCopy};
use crate::store::{RunStore, SegmentName, StoreError};

/// Chunks that are read at once; each is held in memory.
const MAX_READS: usize = 8;

/// How often a copy is looked at that changes while it is read.
const MAX_ATTEMPTS: u32 = 3;

/// Brings the copies of journal files whose name `wants` accepts into the directory `into`, which
/// is made if need be. Left out are files that are there already and at least as long, and segments
/// that have become parts. A file appears whole. Gives the paths of what was brought.
///
/// # Errors
/// The store or the disk failed; files that were brought before stay.
pub async fn fetch(
    run: &RunStore,
    into: &Path,
    wants: impl Fn(SegmentName) -> bool,
) -> Result<Vec<PathBuf>, StoreError> {
    let mut fetched = Vec::new();
    for (name, copy) in chunks::copies(run, None).await? {
        if chunks::name(&name).is_some_and(&wants) {
            fetched.extend(fetch_file(run, &name, copy, into).await?);
        }
    }
    Ok(fetched)
}

async fn fetch_file(
    run: &RunStore,
    name: &str,
    mut copy: FileCopy,
    into: &Path,
) -> Result<Option<PathBuf>, StoreError> {
    let path = into.join(name);
    let mut attempts = 1;
    loop {
        // After the copy was listed: it is deleted only when the segment has landed.
        if let Some(segment) = chunks::segment(name)
            && chunks::is_landed(run, segment).await?
        {
            return Ok(None);
        }
        let present = tokio::fs::metadata(&path).await.map(|found| found.len());
        if copy.num_bytes() <= present.unwrap_or_default() {
            return Ok(None);
        }
        if download(run, name, &copy, &path).await? {
            return Ok(Some(path));
        }
        if attempts == MAX_ATTEMPTS {
            return Err(StoreError::Object {
                action: "read",
                object: run.display(&format!("journal/{name}")),
                source: object_store::Error::NotFound {
                    path: name.to_owned(),
                    source: "its chunks disappear while they are read".into(),
                },
            });
        }
        attempts += 1;
        match chunks::copies(run, Some(name)).await?.remove(name) {
            Some(found) => copy = found,
            None => return Ok(None),
        }
    }
}

/// Says whether all chunks were still there.
async fn download(
    run: &RunStore,
    name: &str,
    copy: &FileCopy,
    path: &Path,
) -> Result<bool, StoreError> {
    let failed = |source: io::Error| StoreError::File {
        action: "write",
        path: path.to_owned(),
        source,
    };
    let directory = path.parent().unwrap_or(Path::new("."));
    tokio::fs::create_dir_all(directory).await.map_err(failed)?;
    let partial = tempfile::Builder::new()
        .prefix(".")
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .map_err(failed)?;
    let mut file = File::from_std(partial.reopen().map_err(failed)?);
    let reads: Vec<_> = copy
        .chunks
        .iter()
        .map(|&chunk| chunks::get(run, name, chunk))
        .collect();
    let mut contents = stream::iter(reads).buffered(MAX_READS);
    while let Some(content) = contents.try_next().await? {
        let Some(content) = content else {
            return Ok(false);
        };
        file.write_all(&content).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    // A file that has its length and not its content would never be fetched again.
    file.sync_all().await.map_err(failed)?;
    partial.persist(path).map_err(|error| failed(error.error))?;
    Ok(true)
}
