use std::mem;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::{Error, ObjectStoreExt, PutPayload, PutPayloadMut, Result};
use parquet::arrow::async_writer::AsyncFileWriter;
use parquet::errors::ParquetError;
use tokio::task::JoinSet;

use super::RunStore;
use super::multipart::{Multipart, Piece};

/// Bytes that are gathered before they are sent to an object store: the least that S3 takes as a
/// piece of an upload. A smaller object is one put.
const PIECE_BYTES: usize = 5 * 1024 * 1024;

/// The same for a local disk, which has no such wish.
const LOCAL_BYTES: usize = 512 * 1024;

/// Pieces of an upload that are under way at a time.
const PIECES: usize = 2;

/// Writes one object, which is visible when it is finished and not before. Where writing fails, what
/// the store has of it is removed: pieces of an upload that nobody ends are paid for every month.
pub(super) struct Upload {
    run: RunStore,
    name: String,
    piece_bytes: usize,
    buffer: PutPayloadMut,
    multipart: Option<Multipart>,
    pieces: JoinSet<Result<Piece>>,
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
            return store.put(&path, rest).await.map(|_| ());
        }
        let completed = self.complete(rest).await;
        self.or_abort(completed).await
    }

    /// Gives the object up.
    pub(super) async fn abort(&mut self) {
        self.pieces.shutdown().await;
        if let Some(multipart) = self.multipart.take() {
            multipart.abort().await;
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
            None => {
                let begun = Multipart::begin(&self.run, &self.name).await?;
                self.multipart.insert(begun)
            }
        };
        self.pieces.spawn(multipart.put(piece));
        Ok(())
    }

    async fn wait_for_all_but(&mut self, left: usize) -> Result<()> {
        while self.pieces.len() > left {
            match self.pieces.join_next().await {
                Some(Ok(piece)) => {
                    let piece = piece?;
                    if let Some(multipart) = &mut self.multipart {
                        multipart.arrived(piece);
                    }
                }
                Some(Err(source)) => return Err(Error::JoinError { source }),
                None => break,
            }
        }
        Ok(())
    }

    async fn complete(&mut self, rest: PutPayload) -> Result<()> {
        if rest.content_length() > 0 {
            self.send(rest).await?;
        }
        self.wait_for_all_but(0).await?;
        let Some(multipart) = &mut self.multipart else {
            return Ok(());
        };
        match multipart.complete().await {
            Ok(()) => {}
            // The store was asked again since its first answer was lost, and knows the upload no
            // more because it has become the object.
            Err(Error::NotFound { .. }) if self.is_published().await => {}
            Err(error) => return Err(error),
        }
        if let Some(multipart) = self.multipart.take() {
            multipart.ended();
        }
        Ok(())
    }

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
