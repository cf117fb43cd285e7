use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, MultipartId, MultipartUpload, ObjectStoreExt, PutPayload, Result};

use super::connect::NamedUploads;
use super::held_file::{HeldFile, again};
use super::place::relative_path;
use super::private::create_private;
use super::{RunStore, StoreError};

/// Number of a piece and the store's receipt for it, where it gives one.
pub(super) type Piece = (usize, Option<PartId>);

/// An object that goes to its store in pieces.
pub(super) enum Multipart {
    /// The store has told its name, which is noted on the local disk while the upload is open.
    Named(Named),
    /// One that leaves nothing to be paid for: on a disk, in memory.
    Unnamed(Box<dyn MultipartUpload>),
}

pub(super) struct Named {
    store: Arc<dyn NamedUploads>,
    path: Path,
    id: MultipartId,
    receipts: Vec<Option<PartId>>,
    note: Note,
}

impl Multipart {
    /// Begins the upload of the object `name` of the run.
    pub(super) async fn begin(run: &RunStore, name: &str) -> Result<Self> {
        let Some(store) = run.named_uploads() else {
            let upload = run.object_store().put_multipart(&run.path(name)).await?;
            return Ok(Self::Unnamed(upload));
        };
        let path = relative_path(name);
        let directory = run.uploads_dir();
        let id = store.create_multipart(&path).await?;
        match Note::write(directory, &path, &id) {
            Ok(note) => Ok(Self::Named(Named {
                store: Arc::clone(store),
                path,
                id,
                receipts: Vec::new(),
                note,
            })),
            Err(error) => {
                let _ = store.abort_multipart(&path, &id).await;
                let source = Box::new(NoteError {
                    directory: directory.to_owned(),
                    error,
                });
                Err(Error::Generic {
                    store: "uploads under way",
                    source,
                })
            }
        }
    }

    /// Sends the next piece.
    pub(super) fn put(&mut self, piece: PutPayload) -> BoxFuture<'static, Result<Piece>> {
        match self {
            Self::Unnamed(upload) => upload.put_part(piece).map_ok(|()| (0, None)).boxed(),
            Self::Named(upload) => {
                let index = upload.receipts.len();
                upload.receipts.push(None);
                let (store, path, id) = (
                    Arc::clone(&upload.store),
                    upload.path.clone(),
                    upload.id.clone(),
                );
                async move {
                    let receipt = store.put_part(&path, &id, index, piece).await?;
                    Ok((index, Some(receipt)))
                }
                .boxed()
            }
        }
    }

    /// A piece is with the store.
    pub(super) fn arrived(&mut self, (index, receipt): Piece) {
        if let Self::Named(upload) = self
            && let Some(place) = upload.receipts.get_mut(index)
        {
            *place = receipt;
        }
    }

    /// Makes the pieces an object.
    pub(super) async fn complete(&mut self) -> Result<()> {
        match self {
            Self::Unnamed(upload) => upload.complete().await.map(|_| ()),
            Self::Named(upload) => {
                let receipts: Option<Vec<PartId>> = upload.receipts.iter().cloned().collect();
                let receipts = receipts.ok_or_else(|| Error::Generic {
                    store: "upload",
                    source: "a piece has not arrived".into(),
                })?;
                let (path, id) = (&upload.path, &upload.id);
                let done = upload.store.complete_multipart(path, id, receipts).await;
                done.map(|_| ())
            }
        }
    }

    /// The upload is the object now.
    pub(super) fn ended(self) {
        if let Self::Named(upload) = self {
            upload.note.remove();
        }
    }

    /// Removes what the store has. Nothing is lost if even this fails: what is not completed is never
    /// visible, and the note stays for the next writer of the run.
    pub(super) async fn abort(self) {
        match self {
            Self::Unnamed(mut upload) => {
                let _ = upload.abort().await;
            }
            Self::Named(upload) => {
                let aborted = upload.store.abort_multipart(&upload.path, &upload.id).await;
                if matches!(aborted, Ok(()) | Err(Error::NotFound { .. })) {
                    upload.note.remove();
                }
            }
        }
    }
}

/// Aborts the uploads to a run that processes on this machine began who died before they could end them.
pub(super) async fn abort_left(run: &RunStore) -> Result<(), StoreError> {
    let Some(store) = run.named_uploads() else {
        return Ok(());
    };
    for note in Note::left_in(run.uploads_dir()) {
        let aborted = note.abort_noted(store.as_ref()).await;
        aborted.map_err(|source| StoreError::Object {
            action: "abort an unfinished upload to",
            object: run.display(""),
            source,
        })?;
    }
    Ok(())
}

/// A local file with the name of the upload of one object, held as long as the upload is open: that of a process that
/// works on another share of the run must not be aborted. A process that is killed leaves it behind.
struct Note(HeldFile);

#[derive(Debug, thiserror::Error)]
#[error("cannot note one in '{directory}': {error}")]
struct NoteError {
    directory: PathBuf,
    #[source]
    error: io::Error,
}

impl Note {
    /// The notes that the dead left.
    fn left_in(directory: &FilePath) -> Vec<Self> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| HeldFile::of_the_dead(&entry.path()).map(Self))
            .collect()
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
        let noted = noted
            .strip_suffix('\n')
            .and_then(|noted| noted.split_once('\n'));
        if let Some((path, id)) = noted {
            let path = Path::parse(path)?;
            match store.abort_multipart(&path, &id.to_owned()).await {
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
