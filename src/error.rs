//! [`Error`]: what ends a command, with its exit code and its cause.
//!
//! It imports nothing of ours: a module whose error can end a command implements [`Fatal`] beside the type, and `?` does
//! the rest. Whoever wants to know what happened asks for it by type, with [`Error::cause`].

use std::error::Error as StdError;
use std::fmt;

/// Exit code for what the user can correct on the command line.
pub(crate) const USAGE: u8 = 2;

/// Exit code for all other errors.
pub(crate) const FAILURE: u8 = 1;

/// An error of a module that can end a command.
pub trait Fatal: StdError + Send + Sync + 'static {
    /// What was being done, where the error does not say so itself.
    const CONTEXT: &'static str = "";

    /// 2 for what the user can correct on the command line, 1 for the rest.
    fn exit_code(&self) -> u8;
}

/// What ends a sweep, or keeps it from beginning.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The command line asks for something that does not exist or makes no sense.
    Usage(String),
    /// Something failed.
    Failed {
        /// 2 for what the user can correct on the command line, 1 for the rest.
        exit_code: u8,
        /// What was being done; empty where the cause says so itself.
        context: String,
        /// What happened.
        cause: Box<dyn StdError + Send + Sync>,
    },
}

impl Error {
    /// An error with exit code 1.
    pub(crate) fn failed(
        context: impl Into<String>,
        cause: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::Failed {
            exit_code: FAILURE,
            context: context.into(),
            cause: cause.into(),
        }
    }

    /// An error that the user can correct: exit code 2.
    pub(crate) fn usage(
        context: impl Into<String>,
        cause: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::failed(context, cause).with_exit_code(USAGE)
    }

    /// An error that only a defect of the program can cause.
    pub(crate) fn defect(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::failed("a defect of rollstream", cause)
    }

    /// The same error with another exit code. [`Self::Usage`] keeps its own.
    pub(crate) fn with_exit_code(mut self, code: u8) -> Self {
        if let Self::Failed { exit_code, .. } = &mut self {
            *exit_code = code;
        }
        self
    }

    /// The exit code of the process: 2 for what the user can correct on the command line, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Failed { exit_code, .. } => *exit_code,
        }
    }

    /// What happened, if it is of this type.
    pub fn cause<E: StdError + 'static>(&self) -> Option<&E> {
        self.source()?.downcast_ref()
    }

    /// The message, and below it every cause that says what no line above says: many errors have their cause's text in
    /// their own, at times without what stands before its first colon.
    pub fn report(&self) -> String {
        let mut report = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let text = error.to_string();
            let text = text.trim();
            let news = text.split_once(": ").map_or(text, |(_, news)| news);
            if !report.contains(news) {
                report.push_str("\n  caused by: ");
                report.push_str(text);
            }
            cause = error.source();
        }
        report
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Usage(text) => formatter.write_str(text),
            Self::Failed { context, cause, .. } if context.is_empty() => cause.fmt(formatter),
            Self::Failed { context, cause, .. } => write!(formatter, "{context}: {cause}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Usage(_) => None,
            Self::Failed { cause, .. } => Some(cause.as_ref()),
        }
    }
}

impl<E: Fatal> From<E> for Error {
    fn from(cause: E) -> Self {
        Self::Failed {
            exit_code: cause.exit_code(),
            context: E::CONTEXT.to_owned(),
            cause: Box::new(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read 'x': {source}")]
    struct Layer {
        source: Inner,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the disk is gone")]
    struct Inner(#[source] std::io::Error);

    impl Fatal for Layer {
        fn exit_code(&self) -> u8 {
            USAGE
        }
    }

    #[test]
    fn a_report_names_each_cause_once() {
        let root = std::io::Error::other("unplugged");
        let error = Error::from(Layer {
            source: Inner(root),
        });
        assert_eq!(error.to_string(), "cannot read 'x': the disk is gone");
        let expected = "cannot read 'x': the disk is gone\n  caused by: unplugged";
        assert_eq!(error.report(), expected);
        assert_eq!(error.exit_code(), 2);
        assert!(error.cause::<Layer>().is_some());
        assert_eq!(Error::usage("--x", "no").report(), "--x: no");
    }
}
