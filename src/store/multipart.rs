use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, MultipartId, MultipartUpload, ObjectStoreExt, PutPayload, Result};

use super::connect::NamedUploads;
use super::{RunStore, StoreError};

/// Number of a piece and the store's receipt for it, where it gives one.
pub(super) type Piece = (usize, Option<PartId>);

/// An object that goes to its store in pieces.
pub(super) enum Multipart {
    /// The store has told its name, which is noted on the local disk while the upload is open.
    Named(Named),
    /// One that leaves nothing to be paid for: on a disk, in memory, on Azure.
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
    /// Begins the upload of the object `name` of the run. One that an earlier process began, and
    /// could not end, is aborted.
    pub(super) async fn begin(run: &RunStore, name: &str) -> Result<Self> {
        let path = run.path(name);
        let Some(store) = run.named_uploads() else {
            let upload = run.object_store().put_multipart(&path).await?;
            return Ok(Self::Unnamed(upload));
        };
        let note = Note::of(run, &path);
        note.abort_noted(store.as_ref()).await?;
        let id = store.create_multipart(&path).await?;
        if let Err(error) = note.write(&path, &id) {
            let _ = store.abort_multipart(&path, &id).await;
            return Err(error);
        }
        Ok(Self::Named(Named {
            store: Arc::clone(store),
            path,
            id,
            receipts: Vec::new(),
            note,
        }))
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
    /// visible, and the note stays for whoever writes the object next.
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

/// Aborts the uploads to a run that earlier processes on this machine could not end.
pub(super) async fn abort_left(run: &RunStore) -> Result<(), StoreError> {
    let (Some(store), Ok(notes)) = (run.named_uploads(), fs::read_dir(run.uploads_dir())) else {
        return Ok(());
    };
    for note in notes.flatten() {
        let aborted = Note(note.path()).abort_noted(store.as_ref()).await;
        aborted.map_err(|source| StoreError::Object {
            action: "abort an unfinished upload to",
            object: run.display(""),
            source,
        })?;
    }
    Ok(())
}

/// A local file with the name of the upload of one object, as long as it is open. A process that is
/// killed leaves it behind.
struct Note(PathBuf);

impl Note {
    fn of(run: &RunStore, path: &Path) -> Self {
        let name = blake3::hash(path.as_ref().as_bytes()).to_hex();
        Self(run.uploads_dir().join(name.as_str()))
    }

    async fn abort_noted(&self, store: &dyn NamedUploads) -> Result<()> {
        let noted = match fs::read_to_string(&self.0) {
            Ok(noted) => noted,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.failed(error)),
        };
        // A note that is torn was written by a process that sent no piece.
        let noted = noted
            .strip_suffix('\n')
            .and_then(|noted| noted.split_once('\n'));
        if let Some((path, id)) = noted {
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

    fn write(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let made = self.0.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&self.0, format!("{path}\n{id}\n")))
            .map_err(|error| self.failed(error))
    }

    fn remove(&self) {
        // One that stays names an upload that is not open any more, which does no harm.
        let _ = fs::remove_file(&self.0);
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let path = self.0.display();
        Error::Generic {
            store: "uploads under way",
            source: format!("cannot note one in '{path}': {error}").into(),
        }
    }
}
