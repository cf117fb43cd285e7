use std::fs::Permissions;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::Error;
use crate::store::{RunStore, StoreError};

/// A file of a run, or beside one, of any size: it is there when it is whole, and not before.
pub(super) struct Document {
    place: RunStore,
    name: String,
    file: BufWriter<NamedTempFile>,
}

impl Document {
    /// Begins the file `name`. On a local disk it waits where it goes, so that nothing is copied.
    pub(super) fn create(place: &RunStore, name: &str) -> Result<Self, Error> {
        let directory = place
            .local_path()
            .map_or_else(std::env::temp_dir, PathBuf::from);
        let create = || {
            std::fs::create_dir_all(&directory)?;
            hidden_file(&directory)
        };
        let file = create().map_err(|source| StoreError::File {
            action: "write into",
            path: directory.clone(),
            source,
        })?;
        Ok(Self {
            place: place.clone(),
            name: name.to_owned(),
            file: BufWriter::with_capacity(1 << 18, file),
        })
    }

    /// Puts the file in its place; says how a person names it.
    pub(super) async fn finish(self) -> Result<String, Error> {
        let Self { place, name, file } = self;
        let failed = |source| StoreError::File {
            action: "write",
            path: place.display(&name).into(),
            source,
        };
        let mut file = file
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        match place.local_path() {
            Some(directory) => {
                file.as_file().sync_all().map_err(failed)?;
                let kept = file.persist(directory.join(&name));
                kept.map_err(|error| failed(error.error))?;
                let shown = place.display("");
                Ok(PathBuf::from(shown).join(&name).display().to_string())
            }
            None => {
                file.seek(SeekFrom::Start(0)).map_err(failed)?;
                let file = tokio::fs::File::from_std(file.into_file());
                place.upload(&name, file).await?;
                Ok(place.display(&name))
            }
        }
    }
}

/// A file that is to be put in its place when it is whole.
pub(super) fn hidden_file(directory: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".rollstream-")
        // Less what the process's umask takes away, as with any file.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
}

impl Write for Document {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
