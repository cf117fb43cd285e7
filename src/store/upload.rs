//! [`Upload`]: one object on its way to a store, in pieces where it is large.
//!
//! `object_store` has `BufWriter` and `WriteMultipart` for this. Neither aborts an upload of which a piece failed, and
//! neither tells the upload's name, by which another process aborts it after this one was killed.

use std::fs;
use std::io::{self, Read, Write};
use std::mem;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{
    Error, MultipartId, MultipartUpload, ObjectStoreExt, PutPayload, PutPayloadMut, PutResult,
    Result, UploadPart,
};
use parquet::arrow::async_writer::AsyncFileWriter;
use parquet::errors::ParquetError;
use tokio::task::JoinSet;

use super::address::NamedUploads;
use super::patient::{Patience, patiently};
use super::place::relative_path;
use super::private::{HeldFile, again, create_private};
use super::{RunStore, StoreError};

/// Bytes that are gathered before they are sent to an object store: the least that S3 takes as a piece of an upload. A
/// smaller object is one put.
const PIECE_BYTES: usize = 5 * 1024 * 1024;

/// The same for a local disk, which has no such wish.
const LOCAL_BYTES: usize = 512 * 1024;

/// Pieces of an upload that are under way at a time.
const PIECES: usize = 2;

/// Writes one object, which is visible when it is finished and not before. Where writing fails, what the store has of it
/// is removed: pieces of an upload that nobody ends are paid for every month.
pub(super) struct Upload {
    run: RunStore,
    name: String,
    piece_bytes: usize,
    buffer: PutPayloadMut,
    multipart: Option<Box<dyn MultipartUpload>>,
    pieces: JoinSet<Result<()>>,
    bytes: u64,
}

impl Upload {
    /// Begins the object `name`, relative to the run. Nothing is sent yet.
    pub(super) fn new(run: &RunStore, name: &str) -> Self {
        let local = run.local_path().is_some();
        Self {
            run: run.clone(),
            name: name.to_owned(),
            piece_bytes: if local { LOCAL_BYTES } else { PIECE_BYTES },
            buffer: PutPayloadMut::new(),
            multipart: None,
            pieces: JoinSet::new(),
            bytes: 0,
        }
    }

    /// Adds bytes, and sends what makes whole pieces.
    ///
    /// # Errors
    /// The store failed; then it holds nothing of the object, if it could still be asked.
    pub(super) async fn push(&mut self, mut bytes: Bytes) -> Result<()> {
        self.bytes += bytes.len() as u64;
        while self.buffer.content_length() + bytes.len() >= self.piece_bytes {
            let rest = bytes.split_off(self.piece_bytes - self.buffer.content_length());
            self.buffer.push(mem::replace(&mut bytes, rest));
            let piece = mem::take(&mut self.buffer).freeze();
            let sent = self.send(piece).await;
            self.or_abort(sent).await?;
        }
        self.buffer.push(bytes);
        Ok(())
    }

    /// Sends the rest and publishes the object.
    ///
    /// # Errors
    /// As for [`Self::push`].
    pub(super) async fn finish(&mut self) -> Result<()> {
        let rest = mem::take(&mut self.buffer).freeze();
        if self.multipart.is_none() {
            let (store, path) = (self.run.object_store(), self.run.path(&self.name));
            return store.put(&path, rest).await.map(drop);
        }
        let completed = self.complete(rest).await;
        self.or_abort(completed).await
    }

    /// Abandons the object.
    pub(super) async fn abort(&mut self) {
        self.pieces.shutdown().await;
        if let Some(mut multipart) = self.multipart.take() {
            // What is not completed is never visible.
            let _ = multipart.abort().await;
        }
    }

    async fn or_abort(&mut self, done: Result<()>) -> Result<()> {
        if done.is_err() {
            self.abort().await;
        }
        done
    }

    async fn send(&mut self, piece: PutPayload) -> Result<()> {
        self.wait_for_all_but(PIECES - 1).await?;
        let multipart = match &mut self.multipart {
            Some(multipart) => multipart,
            None => self.multipart.insert(begin(&self.run, &self.name).await?),
        };
        self.pieces.spawn(multipart.put_part(piece));
        Ok(())
    }

    async fn wait_for_all_but(&mut self, left: usize) -> Result<()> {
        while self.pieces.len() > left
            && let Some(sent) = self.pieces.join_next().await
        {
            sent??;
        }
        Ok(())
    }

    async fn complete(&mut self, rest: PutPayload) -> Result<()> {
        if rest.content_length() > 0 {
            self.send(rest).await?;
        }
        self.wait_for_all_but(0).await?;
        let Some(mut multipart) = self.multipart.take() else {
            return Ok(());
        };
        match multipart.complete().await {
            Ok(_) => Ok(()),
            // The store was asked again since its first answer was lost, and knows the upload no more because it has
            // become the object.
            Err(Error::NotFound { .. }) if self.is_published().await => {
                let _ = multipart.abort().await;
                Ok(())
            }
            Err(error) => {
                self.multipart = Some(multipart);
                Err(error)
            }
        }
    }

    // Not `&self`: an upload is not `Sync`.
    async fn is_published(&mut self) -> bool {
        let (store, path) = (self.run.object_store(), self.run.path(&self.name));
        let found = store.head(&path).await;
        found.is_ok_and(|object| object.size == self.bytes)
    }
}

impl AsyncFileWriter for Upload {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, parquet::errors::Result<()>> {
        self.push(bytes).map(|done| done.map_err(external)).boxed()
    }

    fn complete(&mut self) -> BoxFuture<'_, parquet::errors::Result<()>> {
        self.finish().map(|done| done.map_err(external)).boxed()
    }
}

fn external(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// Begins the upload of the object `name` of a run. A disk and the memory need no names: what they have of an unfinished
/// upload goes with the process.
async fn begin(run: &RunStore, name: &str) -> Result<Box<dyn MultipartUpload>> {
    let Some(store) = run.named_uploads() else {
        return run.object_store().put_multipart(&run.path(name)).await;
    };
    let (path, directory) = (relative_path(name), run.uploads_dir());
    let id = patiently(run.patience(), || store.create_multipart(&path)).await?;
    match Note::write(&directory, &path, &id) {
        Ok(note) => Ok(Box::new(NamedUpload {
            store: Arc::clone(store),
            patience: run.patience().cloned(),
            path,
            id,
            receipts: Arc::default(),
            pieces: 0,
            note: Some(note),
        })),
        Err(error) => {
            let _ = store.abort_multipart(&path, &id).await;
            Err(Error::Generic {
                store: "uploads under way",
                source: Box::new(StoreError::file("note one in", &directory)(error)),
            })
        }
    }
}

/// An upload whose name stands on the local disk while it is open.
#[derive(Debug)]
struct NamedUpload {
    store: Arc<dyn NamedUploads>,
    patience: Option<Patience>,
    path: Path,
    id: MultipartId,
    /// The number of each piece that arrived, and the store's receipt for it.
    receipts: Arc<Mutex<Vec<(usize, PartId)>>>,
    /// Pieces that were sent.
    pieces: usize,
    note: Option<Note>,
}

#[async_trait]
impl MultipartUpload for NamedUpload {
    fn put_part(&mut self, piece: PutPayload) -> UploadPart {
        let index = self.pieces;
        self.pieces += 1;
        let (store, receipts) = (Arc::clone(&self.store), Arc::clone(&self.receipts));
        let (path, id, patience) = (self.path.clone(), self.id.clone(), self.patience.clone());
        let put = async move {
            let put = || store.put_part(&path, &id, index, piece.clone());
            let receipt = patiently(patience.as_ref(), put).await?;
            let mut receipts = receipts.lock().unwrap_or_else(PoisonError::into_inner);
            receipts.push((index, receipt));
            Ok(())
        };
        put.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let mut receipts =
            mem::take(&mut *self.receipts.lock().unwrap_or_else(PoisonError::into_inner));
        if receipts.len() < self.pieces {
            return Err(Error::Generic {
                store: "upload",
                source: "a piece has not arrived".into(),
            });
        }
        receipts.sort_by_key(|(index, _)| *index);
        let receipts: Vec<_> = receipts.into_iter().map(|(_, receipt)| receipt).collect();
        let (store, path, id) = (&self.store, &self.path, &self.id);
        let complete = || store.complete_multipart(path, id, receipts.clone());
        let done = patiently(self.patience.as_ref(), complete).await?;
        if let Some(note) = self.note.take() {
            note.remove();
        }
        Ok(done)
    }

    /// Removes what the store has, without patience. If this fails, the note stays for the next writer of the run.
    async fn abort(&mut self) -> Result<()> {
        let aborted = self.store.abort_multipart(&self.path, &self.id).await;
        if matches!(aborted, Ok(()) | Err(Error::NotFound { .. }))
            && let Some(note) = self.note.take()
        {
            note.remove();
        }
        aborted
    }
}

/// Aborts the uploads to a run that processes on this machine began who died before they could end them.
pub(super) async fn abort_left(run: &RunStore) -> Result<(), StoreError> {
    let Some(store) = run.named_uploads() else {
        return Ok(());
    };
    for note in Note::left_in(&run.uploads_dir()) {
        let aborted = note.abort_noted(store.as_ref()).await;
        aborted.map_err(run.failed("abort an unfinished upload to", ""))?;
    }
    Ok(())
}

/// A local file with the name of the upload of one object, held as long as the upload is open: that of a process that
/// works on another share of the run must not be aborted. A process that is killed leaves it behind.
#[derive(Debug)]
struct Note(HeldFile);

impl Note {
    /// Takes over the notes that the dead left.
    fn left_in(directory: &FilePath) -> Vec<Self> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let left = entries.filter_map(|entry| HeldFile::of_the_dead(&entry.path()));
        left.map(Self).collect()
    }

    fn write(directory: &FilePath, path: &Path, id: &MultipartId) -> io::Result<Self> {
        create_private(directory)?;
        let note = again(|| {
            let name = format!("{:016x}", fastrand::u64(..));
            HeldFile::create(directory.join(name))
        })?;
        let mut file = note.file();
        file.write_all(format!("{path}\n{id}\n").as_bytes())?;
        file.sync_all()?;
        Ok(Self(note))
    }

    async fn abort_noted(self, store: &dyn NamedUploads) -> Result<()> {
        let mut noted = String::new();
        // One that can't be read, or is torn, is of a process that sent no piece.
        let _ = self.0.file().read_to_string(&mut noted);
        let noted = noted.strip_suffix('\n');
        if let Some((path, id)) = noted.and_then(|noted| noted.split_once('\n')) {
            match store
                .abort_multipart(&Path::parse(path)?, &id.to_owned())
                .await
            {
                // It was completed, or aborted, and only the note stayed.
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.remove();
        Ok(())
    }

    fn remove(self) {
        // One that stays names an upload that is not open any more, which does no harm.
        let _ = fs::remove_file(self.0.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(run: &RunStore, pieces: &[usize]) -> Vec<u8> {
        let mut upload = Upload::new(run, "x");
        for (index, length) in pieces.iter().enumerate() {
            let bytes = vec![u8::try_from(index).unwrap(); *length];
            upload.push(bytes.into()).await.unwrap();
        }
        upload.finish().await.unwrap();
        run.get("x").await.unwrap().unwrap().to_vec()
    }

    #[tokio::test]
    async fn an_object_is_what_was_pushed_however_it_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
        let memory = RunStore::open("memory:///a", Some(directory.path())).unwrap();
        for (run, piece) in [(disk, LOCAL_BYTES), (memory, PIECE_BYTES)] {
            for pieces in [
                vec![],
                vec![piece - 1],
                vec![piece],
                vec![piece - 1, 2, piece],
                vec![3 * piece + 7, 0, 5],
            ] {
                let expected: Vec<u8> = pieces
                    .iter()
                    .enumerate()
                    .flat_map(|(index, length)| vec![u8::try_from(index).unwrap(); *length])
                    .collect();
                assert!(written(&run, &pieces).await == expected, "{pieces:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_given_up_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
        let mut upload = Upload::new(&run, "x");
        upload.push(vec![1; 2 * LOCAL_BYTES].into()).await.unwrap();
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
        assert!(run.object_store().head(&run.path("x")).await.is_err());
        upload.abort().await;
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }
}
