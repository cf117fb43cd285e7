//! [`LocalStore`]: a directory as an object store. Reading is `object_store`'s; writing is our own, since its store
//! never syncs and leaves unfinished files where readers look for parts.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, iter};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, future, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};

use super::StoreError;
use super::private::{HeldFile, again};

/// Directory of the files that are being written, within the root.
const STAGING: &str = ".rollstream-staging";

/// Directory of parts that take the place of others, and then of those that they took it from.
pub(super) const COMPACTED: &str = ".rollstream-staging/compacted";

/// Characters of the names in the staging directory.
const NAME_LENGTH: usize = 16;

/// Directory whose files need not survive a power cut once they are there: the process that renews a lock would not
/// survive it either.
const LOCK: &str = "lock";

/// Files that are deleted at once.
const MAX_DELETES: usize = 10;

/// A directory that may not exist yet, as an object store. When the store says that a write is done, the content is on the
/// disk, and so is its name; before, it cannot be seen.
#[derive(Debug, Clone)]
pub(super) struct LocalStore {
    disk: Arc<Disk>,
    reader: OnceLock<LocalFileSystem>,
}

#[derive(Debug)]
struct Disk {
    root: PathBuf,
    /// What dead processes left was removed.
    is_tidy: AtomicBool,
}

fn failed(action: &'static str, path: &FilePath) -> impl Fn(io::Error) -> Error {
    move |source| {
        let shown = path.display().to_string();
        match source.kind() {
            ErrorKind::NotFound => Error::NotFound {
                path: shown,
                source: source.into(),
            },
            ErrorKind::AlreadyExists => Error::AlreadyExists {
                path: shown,
                source: source.into(),
            },
            _ => Error::Generic {
                store: "disk",
                source: Box::new(StoreError::file(action, path)(source)),
            },
        }
    }
}

impl LocalStore {
    /// Makes a store of the directory `root`. Nothing is created or read yet.
    pub(super) fn new(root: PathBuf) -> Self {
        let is_tidy = AtomicBool::new(false);
        Self {
            disk: Arc::new(Disk { root, is_tidy }),
            reader: OnceLock::new(),
        }
    }

    /// The directory.
    pub(super) fn root(&self) -> &FilePath {
        &self.disk.root
    }

    /// Begins a file that nobody sees until it is published.
    pub(super) fn stage(&self) -> Result<Staged> {
        self.disk.stage()
    }

    /// Opens the directory for reading; `None` while it does not exist.
    fn reader(&self) -> Result<Option<&LocalFileSystem>> {
        if self.reader.get().is_none() && self.disk.root.exists() {
            let reader = LocalFileSystem::new_with_prefix(&self.disk.root)?;
            let _ = self.reader.set(reader);
        }
        Ok(self.reader.get())
    }

    /// Reads what is at `location`, or the part that was replaced there after it was listed.
    async fn read<'a, T>(
        &self,
        location: &Path,
        read: impl Fn(&LocalFileSystem, Path) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let Some(reader) = self.reader()? else {
            return Err(self.nothing_at(location));
        };
        match read(reader, location.clone()).await {
            Err(error @ Error::NotFound { .. }) if location.extension() == Some("parquet") => {
                let replaced = Path::parse(format!("{COMPACTED}/{location}"))?;
                read(reader, replaced).await.or(Err(error))
            }
            read => read,
        }
    }

    fn nothing_at(&self, location: &Path) -> Error {
        failed("read", &self.disk.root.join(location.as_ref()))(ErrorKind::NotFound.into())
    }
}

impl Disk {
    /// Begins a file that nobody sees. The next writer after a process that died removes what it left.
    fn stage(self: &Arc<Self>) -> Result<Staged> {
        let directory = self.root.join(STAGING);
        if !self.is_tidy.swap(true, Ordering::Relaxed) {
            let left = fs::read_dir(&directory).into_iter().flatten().flatten();
            // Whatever else may be there is not ours.
            let left = left.filter(|entry| entry.file_name().len() == NAME_LENGTH);
            for left in left.filter_map(|entry| HeldFile::of_the_dead(&entry.path())) {
                let _ = fs::remove_file(left.path());
            }
        }
        let create = || {
            create_directory(&directory)?;
            let name = format!("{:0NAME_LENGTH$x}", fastrand::u64(..));
            HeldFile::create(directory.join(name))
        };
        Ok(Staged {
            disk: Arc::clone(self),
            file: again(create).map_err(failed("write into", &directory))?,
        })
    }

    fn delete(&self, location: &Path) -> Result<()> {
        let path = self.root.join(location.as_ref());
        fs::remove_file(&path).map_err(failed("delete", &path))?;
        match path.parent().filter(|_| !is_of_lock(location)) {
            // Else a part of a run that was replaced could come back beside those of the next.
            Some(parent) => sync_directory(parent).map_err(failed("sync", parent)),
            None => Ok(()),
        }
    }
}

/// A file that is being written, removed when dropped unless it was published.
#[derive(Debug)]
pub(super) struct Staged {
    disk: Arc<Disk>,
    file: HeldFile,
}

impl Staged {
    pub(super) fn file(&self) -> &File {
        self.file.file()
    }

    /// Gives the file its name. Synced in the order in which a power cut could hurt: what is in the file, its name,
    /// and the directories on the way to it.
    pub(super) fn publish(&self, location: &Path, mode: &PutMode) -> Result<()> {
        let path = self.disk.root.join(location.as_ref());
        let parent = path.parent().unwrap_or(&self.disk.root);
        let is_synced = *mode == PutMode::Create || !is_of_lock(location);
        if is_synced {
            let synced = self.file().sync_all();
            synced.map_err(failed("sync", &path))?;
        }
        let publish = || {
            create_directory(parent)?;
            match mode {
                PutMode::Create => fs::hard_link(self.file.path(), &path),
                _ => fs::rename(self.file.path(), &path),
            }
        };
        again(publish).map_err(failed("write", &path))?;
        if is_synced {
            sync_directory(parent).map_err(failed("sync", parent))?;
        }
        Ok(())
    }

    /// Removes what was not published.
    fn discard(&self) {
        let _ = fs::remove_file(self.file.path());
        if let Some(directory) = self.file.path().parent() {
            // One that is not empty stays.
            let _ = fs::remove_dir(directory);
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.discard();
    }
}

fn is_of_lock(location: &Path) -> bool {
    let first = location.parts().next();
    first.is_some_and(|part| part.as_ref() == LOCK)
}

/// Makes a directory, and those on the way to it, so that they survive a power cut.
pub(super) fn create_directory(directory: &FilePath) -> io::Result<()> {
    // The parent of a relative path of one name is empty.
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().ok_or(ErrorKind::NotFound)?;
    create_directory(parent)?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // Another was quicker, or it is a file.
            if !fs::metadata(directory)?.is_dir() {
                return Err(ErrorKind::NotADirectory.into());
            }
        }
        made => made?,
    }
    if directory.ends_with(STAGING) {
        return Ok(());
    }
    sync_directory(parent)
}

pub(super) fn sync_directory(directory: &FilePath) -> io::Result<()> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.or_else(|error| match error.kind() {
        // Some file systems of networks know no such thing.
        ErrorKind::InvalidInput | ErrorKind::Unsupported => Ok(()),
        // Somebody removed it, empty again.
        ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

fn done() -> PutResult {
    PutResult {
        e_tag: None,
        version: None,
    }
}

impl fmt::Display for LocalStore {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "LocalStore({})", self.disk.root.display())
    }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if matches!(options.mode, PutMode::Update(_)) {
            return Err(Error::NotImplemented {
                operation: "a put that updates".to_owned(),
                implementer: "LocalStore".to_owned(),
            });
        }
        let (disk, location) = (Arc::clone(&self.disk), location.clone());
        blocking(move || {
            let staged = disk.stage()?;
            let mut file = staged.file();
            let written = payload.iter().try_for_each(|bytes| file.write_all(bytes));
            written.map_err(failed("write", &disk.root.join(location.as_ref())))?;
            staged.publish(&location, &options.mode)?;
            Ok(done())
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let disk = Arc::clone(&self.disk);
        let staged = blocking(move || disk.stage()).await?;
        Ok(Box::new(LocalUpload {
            staged: Some(Arc::new(staged)),
            location: location.clone(),
            offset: 0,
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let read = |reader: &LocalFileSystem, at: Path| {
            let (reader, options) = (reader.clone(), options.clone());
            async move { reader.get_opts(&at, options).await }.boxed()
        };
        self.read(location, read).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let read = |reader: &LocalFileSystem, at: Path| {
            let reader = reader.clone();
            async move { reader.get_ranges(&at, ranges).await }.boxed()
        };
        self.read(location, read).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let disk = Arc::clone(&self.disk);
        let delete = move |location: Result<Path>| {
            let disk = Arc::clone(&disk);
            blocking(move || {
                let location = location?;
                disk.delete(&location).map(|()| location)
            })
        };
        locations.map(delete).buffered(MAX_DELETES).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let staging = Path::from(STAGING);
        match self.reader() {
            Ok(Some(reader)) => reader
                .list(prefix)
                .try_filter(move |object| future::ready(!object.location.prefix_matches(&staging)))
                .boxed(),
            Ok(None) => stream::empty().boxed(),
            Err(error) => stream::iter(iter::once(Err(error))).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        match self.reader()? {
            Some(reader) => reader.list_with_delimiter(prefix).await,
            None => Ok(ListResult {
                common_prefixes: Vec::new(),
                objects: Vec::new(),
            }),
        }
    }

    /// What is published never changes: a copy is another name of it.
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let root = &self.disk.root;
        let [from, to] = [from, to].map(|path| root.join(path.as_ref()));
        blocking(move || {
            let parent = to.parent().unwrap_or(&to);
            let link = || {
                create_directory(parent)?;
                match fs::hard_link(&from, &to) {
                    Err(error)
                        if error.kind() == ErrorKind::AlreadyExists
                            && options.mode == CopyMode::Overwrite =>
                    {
                        fs::remove_file(&to)?;
                        fs::hard_link(&from, &to)
                    }
                    linked => linked,
                }
            };
            again(link).map_err(failed("copy", &from))?;
            sync_directory(parent).map_err(failed("sync", parent))
        })
        .await
    }
}

/// A file that is written in pieces.
#[derive(Debug)]
struct LocalUpload {
    /// None when it has ended.
    staged: Option<Arc<Staged>>,
    location: Path,
    offset: u64,
}

impl LocalUpload {
    fn ended(&self) -> Error {
        let path = FilePath::new(self.location.as_ref());
        failed("write", path)(io::Error::other("the upload has ended"))
    }
}

#[async_trait]
impl MultipartUpload for LocalUpload {
    fn put_part(&mut self, piece: PutPayload) -> UploadPart {
        let Some(staged) = self.staged.clone() else {
            return future::ready(Err(self.ended())).boxed();
        };
        let mut offset = self.offset;
        self.offset += piece.content_length() as u64;
        blocking(move || {
            let write = |bytes: &Bytes| {
                let at = offset;
                offset += bytes.len() as u64;
                staged.file().write_all_at(bytes, at)
            };
            let written = piece.iter().try_for_each(write);
            written.map_err(failed("write", staged.file.path()))
        })
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take().ok_or_else(|| self.ended())?;
        let location = self.location.clone();
        blocking(move || staged.publish(&location, &PutMode::Overwrite)).await?;
        Ok(done())
    }

    async fn abort(&mut self) -> Result<()> {
        // A piece that is being written still has it.
        if let Some(staged) = self.staged.take() {
            staged.discard();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;

    use super::*;

    fn names(directory: &FilePath) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_directory_that_is_not_there_is_empty_until_something_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("odd #1?%41\\ö/run");
        let store = LocalStore::new(root.clone());
        let x = Path::from("a/x");
        assert!(matches!(store.get(&x).await, Err(Error::NotFound { .. })));
        assert_eq!(store.list(None).count().await, 0);
        assert!(!root.exists());
        store.put(&x, "1".into()).await.unwrap();
        let found: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(found[0].location, x);
        assert_eq!(store.get(&x).await.unwrap().bytes().await.unwrap(), "1");
        assert_eq!(names(&root), ["a"], "nothing else is left");
    }

    #[tokio::test]
    async fn of_many_that_create_an_object_one_wins() {
        let directory = tempfile::tempdir().unwrap();
        let store = LocalStore::new(directory.path().to_owned());
        let x = Path::from("lock/x");
        let create = |text: usize| {
            let (store, x) = (store.clone(), x.clone());
            async move {
                let put = store.put_opts(&x, text.to_string().into(), PutMode::Create.into());
                match put.await {
                    Ok(_) => true,
                    Err(Error::AlreadyExists { .. }) => false,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let created = future::join_all((0..32).map(create)).await;
        let winners: Vec<usize> = (0..32).filter(|index| created[*index]).collect();
        let kept = store.get(&x).await.unwrap().bytes().await.unwrap();
        assert_eq!(winners.len(), 1);
        assert_eq!(kept, winners[0].to_string());
    }

    #[tokio::test]
    async fn a_writer_removes_what_the_dead_left_and_nothing_that_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let staging = directory.path().join(STAGING);
        fs::create_dir(&staging).unwrap();
        fs::write(staging.join("0123456789abcdef"), "left").unwrap();
        let other = LocalStore::new(directory.path().to_owned());
        other.disk.is_tidy.store(true, Ordering::Relaxed);
        let mut upload = other.put_multipart(&Path::from("a/x")).await.unwrap();
        upload.put_part("12".into()).await.unwrap();

        let store = LocalStore::new(directory.path().to_owned());
        store.put(&Path::from("y"), "1".into()).await.unwrap();
        assert_eq!(names(&staging).len(), 1, "{:?}", names(&staging));
        let found: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(found.len(), 1);
        upload.put_part("345".into()).await.unwrap();
        upload.complete().await.unwrap();
        assert_eq!(fs::read(directory.path().join("a/x")).unwrap(), b"12345");
        drop(upload);
        assert_eq!(names(directory.path()), ["a", "y"]);
    }
}
