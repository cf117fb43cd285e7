//! [`StoreError`]: what can go wrong between a run and the place where it is kept, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow::error::ArrowError;
use parquet::errors::ParquetError;

use super::{LockHolder, SegmentName};
use crate::error::{Error, FAILURE, Fatal, USAGE};

/// A failure of the place where a run is kept, of its journal or of its lock.
///
/// A function that returns it fails where the store, the disk or the system does; its own docs name only what else can go
/// wrong, or what is left then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The place is neither a path nor an address that is known.
    #[error(
        "'{place}' is not a path or an object-store address that can be used: {source}. Give a directory, or s3://, gs://, az:// or memory://"
    )]
    Address {
        /// As given, without secrets.
        place: String,
        /// Why it can't be used.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The place is an address, but the environment does not say how to reach its store.
    #[error("cannot use the store of '{place}' as it is set up: {source}. {advice}")]
    Setup {
        /// As given, without secrets.
        place: String,
        /// What is missing or wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Which environment variables there are.
        advice: &'static str,
    },
    /// The object store failed.
    #[error("cannot {action} {object}: {}", reason(source))]
    Object {
        /// What was tried.
        action: &'static str,
        /// Object or prefix, as an address.
        object: String,
        /// What the store said.
        #[source]
        source: object_store::Error,
    },
    /// The local file system failed.
    #[error("cannot {action} '{path}': {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The disk of the journal is nearly full.
    #[error(
        "the disk of the journal '{path}' has {free} left, and the answers in flight may need {needed}: nothing more \
         is sent. What was answered is safe; make space and go on with `rollstream resume`"
    )]
    DiskFull {
        /// The directory.
        path: PathBuf,
        /// What is free.
        free: bytesize::ByteSize,
        /// What may be needed.
        needed: bytesize::ByteSize,
    },
    /// Others could have put something into the directory that stands for this user's home.
    #[error(
        "there is no HOME, and '{path}' cannot stand for it: {reason}. Give a directory of your own with --state-dir, or set HOME"
    )]
    StateDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A part could not be encoded or published.
    #[error("cannot write {object}: {source}")]
    Parquet {
        /// The part, as an address.
        object: String,
        /// What failed.
        #[source]
        source: ParquetError,
    },
    /// A journal segment could not be encoded or decoded.
    #[error("journal '{path}': {source}")]
    Journal {
        /// The segment.
        path: PathBuf,
        /// What failed.
        #[source]
        source: ArrowError,
    },
    /// The rows of a segment are not outcomes.
    #[error("segment {segment}: {source}")]
    Rows {
        /// The segment.
        segment: SegmentName,
        /// What is wrong with them.
        #[source]
        source: ArrowError,
    },
    /// `run.json` is not what it should be.
    #[error(
        "{object} is not a rollstream run record: {source}. Use --resume with the same --input and options to write it \
         anew, or --overwrite to replace the run"
    )]
    Record {
        /// The record, as an address.
        object: String,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another version of rollstream made the run.
    #[error("{object} can't be used: {reason}")]
    Version {
        /// The record, as an address.
        object: String,
        /// Which version, and what to do.
        reason: String,
    },
    /// There is no run at the place.
    #[error(
        "there is no run at {place} (no run.json). Check the path; `rollstream collect --output` makes one"
    )]
    NoRun {
        /// Where was looked.
        place: String,
    },
    /// A run whose record has gone.
    #[error(
        "{place} has {remains}, but no run.json that can be read. Use --resume with the same --input and options to write \
         it anew, or --overwrite to replace the run"
    )]
    NoRecord {
        /// The run.
        place: String,
        /// What is there: a part, or a file of a journal.
        remains: String,
    },
    /// The table of tasks can't be read.
    #[error(
        "{part} is damaged and can't be read. `rollstream resume {place}` writes it anew from its input"
    )]
    DamagedTasks {
        /// The run.
        place: String,
        /// The part.
        part: String,
    },
    /// There is a run already.
    #[error(
        "there is a run at {place} already ({state}). Continue it with `rollstream resume {place}` (or --resume, to change settings), replace it with --overwrite, or choose another --output"
    )]
    Exists {
        /// Where it is.
        place: String,
        /// Its state.
        state: String,
    },
    /// The object store takes too long.
    #[error("cannot {action} {object}: the store did not answer within {}", humantime::format_duration(*.after))]
    NoAnswer {
        /// What was tried.
        action: &'static str,
        /// Object or prefix, as an address.
        object: String,
        /// How long was waited.
        after: Duration,
    },
    /// The journal is not on the object store as it should be.
    #[error(
        "the journal could not be copied to {place} for {}: {source}. The sweep goes on and tries again; what was answered meanwhile is on this machine only",
        humantime::format_duration(*.silent)
    )]
    NotCheckpointed {
        /// Where the run is.
        place: String,
        /// Since when nothing was copied, in whole seconds.
        silent: Duration,
        /// What went wrong the last time.
        #[source]
        source: Box<StoreError>,
    },
    /// Another process writes to the run.
    #[error(
        "{place} is locked by {holder}: it writes {}, and was last heard of {} ago. Wait until it has ended, or end it. If it is dead, its lock ends {} after it was last heard of, or at once with --break-lock",
        .holder.scope,
        humantime::format_duration(*.silent),
        humantime::format_duration(.holder.record.lease())
    )]
    Locked {
        /// Where the run is.
        place: String,
        /// Who writes to it.
        holder: Box<LockHolder>,
        /// Since when it was not heard of, in whole seconds.
        silent: Duration,
    },
    /// Another driver of a cluster works on the run.
    #[error(
        "{0} has a driver: another `collect --cluster` works on it. Wait until it has ended, or end it"
    )]
    Driven(String),
    /// The lock of the run is no longer ours.
    #[error(
        "the lock of {place} is lost: {why}. This process stopped, so that no two write; what has landed is kept. Continue with `rollstream resume {place}` when nobody else writes to it"
    )]
    LockLost {
        /// Where the run is.
        place: String,
        /// How it was lost.
        why: String,
    },
}

/// The address at which clouds tell their own machines who they are.
const METADATA_SERVER: &str = "169.254.169.254";

/// Tells what a store said, and what to do where it refused the credentials.
fn reason(error: &object_store::Error) -> String {
    use object_store::Error::{PermissionDenied, Unauthenticated};
    let (PermissionDenied { source, .. } | Unauthenticated { source, .. }) = error else {
        let said = with_cause(error);
        if said.contains(METADATA_SERVER) {
            return format!(
                "there are no credentials in the environment, and this machine has none of its cloud: {said}"
            );
        }
        return said;
    };
    let said = source.to_string();
    let said = match (element(&said, "Code"), element(&said, "Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => said,
    };
    let said = said.trim_end_matches('.');
    format!(
        "the store refuses the credentials: {said}. Renew or correct them in the environment, then try again; a sweep \
         goes on with `rollstream resume`, and nothing that was answered is lost"
    )
}

/// The text of an error and of its innermost cause, which the layers between do not pass on.
fn with_cause(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let cause = cause.to_string();
    if !text.contains(&cause) {
        text = format!("{}: {cause}", text.trim_end());
    }
    text
}

/// Finds the text of an XML element that holds no others.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text)
}

impl StoreError {
    /// Makes an error of what the system says about a local file or directory.
    pub(crate) fn file(
        action: &'static str,
        path: &(impl AsRef<Path> + ?Sized),
    ) -> impl Fn(io::Error) -> Self {
        move |source| Self::File {
            action,
            path: path.as_ref().to_owned(),
            source,
        }
    }

    /// Makes an error of what the store says about an object.
    pub(super) fn object(
        action: &'static str,
        object: String,
        source: object_store::Error,
    ) -> Self {
        Self::Object {
            action,
            object,
            source,
        }
    }

    /// Whether the same may succeed later: the store was not reached, or said that the failure is its own.
    #[cfg(feature = "cluster")]
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            Self::Object { source, .. } => super::patient::may_pass(source),
            _ => false,
        }
    }

    /// The error of a place that `--output` names, which the user can correct.
    pub(crate) fn of_output(self) -> Error {
        Error::usage("cannot use the output", self)
    }
}

/// `None` in place of the error that there is no such file.
pub(super) fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

impl Fatal for StoreError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::NoRun { .. }
            | Self::Exists { .. }
            | Self::Address { .. }
            | Self::Locked { .. }
            | Self::Driven(_)
            | Self::Setup { .. }
            | Self::StateDirectory { .. } => USAGE,
            _ => FAILURE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(said: &str) -> String {
        let source = object_store::Error::PermissionDenied {
            path: "x".into(),
            source: said.into(),
        };
        let error = StoreError::Object {
            action: "write",
            object: "s3://bucket/x".into(),
            source,
        };
        error.to_string()
    }

    #[test]
    fn a_refusal_says_what_the_store_said_and_what_to_do() {
        let xml = "Error performing PUT: 403: <Error><Code>ExpiredToken</Code><Message>It has expired.</Message></Error>";
        let text = refused(xml);
        let expected = "cannot write s3://bucket/x: the store refuses the credentials: ExpiredToken: It has expired. Renew";
        assert!(text.starts_with(expected), "{text}");
        assert!(refused("403: go away").contains("credentials: 403: go away. Renew"));
    }

    #[test]
    fn what_the_layers_between_do_not_pass_on_is_told() {
        #[derive(Debug, thiserror::Error)]
        #[error("HTTP error")]
        struct Layer(#[source] io::Error);
        let cause = io::Error::other("Connection refused");
        let error = object_store::Error::Generic {
            store: "S3",
            source: Box::new(Layer(cause)),
        };
        assert_eq!(
            reason(&error),
            "Generic S3 error: HTTP error: Connection refused"
        );
    }

    #[test]
    fn a_machine_that_is_nobody_s_is_told_to_lack_credentials() {
        let error = object_store::Error::Generic {
            store: "S3",
            source: "PUT http://169.254.169.254/latest/api/token: timed out".into(),
        };
        assert!(reason(&error).starts_with("there are no credentials in the environment"));
    }
}
