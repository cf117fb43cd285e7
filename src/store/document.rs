use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::PathBuf;

use object_store::PutMode;

use super::local::Staged;
use super::place::relative_path;
use super::{RunStore, StoreError};

/// A file of a run, or beside one, of any size: it is there when it is whole, and not before.
pub struct Document {
    place: RunStore,
    name: String,
    file: BufWriter<Target>,
}

#[derive(Debug)]
enum Target {
    /// On the disk where it goes, so that nothing is copied.
    Staged(Staged),
    /// To be uploaded.
    Temporary(File),
}

impl Document {
    /// Begins the file `name`.
    ///
    /// # Errors
    /// There is no place to write it.
    pub fn create(place: &RunStore, name: &str) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Object {
            action: "write",
            object: place.display(name),
            source,
        };
        let target = match place.disk() {
            Some(disk) => Target::Staged(disk.stage().map_err(failed)?),
            None => Target::Temporary(tempfile::tempfile().map_err(|source| StoreError::File {
                action: "write into",
                path: std::env::temp_dir(),
                source,
            })?),
        };
        Ok(Self {
            place: place.clone(),
            name: name.to_owned(),
            file: BufWriter::with_capacity(1 << 18, target),
        })
    }

    /// Puts the file in its place; says how a person names it.
    ///
    /// # Errors
    /// The store failed; then nothing is visible.
    pub async fn finish(self) -> Result<String, StoreError> {
        let Self { place, name, file } = self;
        let shown = place.display(&name);
        let failed = |source| StoreError::File {
            action: "write",
            path: PathBuf::from(&shown),
            source,
        };
        let target = file.into_inner();
        match target.map_err(|error| failed(error.into_error()))? {
            Target::Staged(staged) => {
                let published = staged.publish(&relative_path(&name), &PutMode::Overwrite);
                published.map_err(|source| StoreError::Object {
                    action: "write",
                    object: shown.clone(),
                    source,
                })?;
            }
            Target::Temporary(mut file) => {
                file.seek(SeekFrom::Start(0)).map_err(failed)?;
                place.upload(&name, tokio::fs::File::from_std(file)).await?;
            }
        }
        Ok(shown)
    }
}

impl Write for Document {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Staged(staged) => staged.file().write(bytes),
            Self::Temporary(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
