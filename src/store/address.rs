//! What a person writes for a place: [`Address`] is a path of this machine, or an object or prefix of a store. Keys are
//! taken as they are written: a `#` that were cut off would name another run.

use std::path::{Path as FilePath, PathBuf};

use object_store::path::Path;

use super::StoreError;

/// Where something is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// On a disk of this machine. The path is absolute, and nothing need be there.
    Local(PathBuf),
    /// In an object store.
    Remote(Remote),
}

/// A key of an object store, or what keys begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(super) cloud: Cloud,
    pub(super) bucket: String,
    pub(super) key: Path,
    /// As it was written, without a slash at the end.
    pub(super) shown: String,
}

/// A kind of object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cloud {
    Amazon,
    Google,
    Azure,
    /// The memory of this process.
    Memory,
}

impl Address {
    /// Reads a path, `file://`, `s3://`, `gs://`, `az://` or `memory://`.
    ///
    /// # Errors
    /// It looks like an address and is none, or one that could be taken in two ways.
    pub(crate) fn parse(place: &str) -> Result<Self, StoreError> {
        let refuse = |reason: String| StoreError::Address {
            place: without_secrets(place),
            reason,
        };
        let local = |path: &str| {
            let path = std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
            Ok(Self::Local(path))
        };
        let Some((scheme, rest)) = place
            .split_once(":/")
            .filter(|(scheme, _)| is_scheme(scheme))
        else {
            return local(place);
        };
        let Some(rest) = rest.strip_prefix('/') else {
            if FilePath::new(place).exists() {
                return local(place);
            }
            return Err(refuse(format!(
                "it begins like an address; write {scheme}:// or ./{place}"
            )));
        };
        let cloud = match scheme.to_ascii_lowercase().as_str() {
            "file" if !rest.starts_with('/') => {
                return Err(refuse(
                    "a file:// address needs a path from the root".into(),
                ));
            }
            "file" if rest.contains(['%', '#', '?']) => {
                return Err(refuse(
                    "'%', '#' and '?' have a meaning of their own in a file:// address; write the path alone".into(),
                ));
            }
            "file" => return local(rest),
            "s3" | "s3a" => Cloud::Amazon,
            "gs" => Cloud::Google,
            "az" | "adl" | "azure" | "abfs" | "abfss" => Cloud::Azure,
            "memory" => Cloud::Memory,
            scheme => return Err(refuse(format!("'{scheme}://' is not known"))),
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains(['@', ':']) {
            return Err(refuse(
                "it holds a secret; put keys into environment variables".into(),
            ));
        }
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !bucket.chars().all(is_of_name) {
            return Err(refuse(format!("'{bucket}' is not the name of a bucket")));
        }
        if bucket.is_empty() != (cloud == Cloud::Memory) {
            return Err(refuse(match cloud {
                Cloud::Memory => "there are no buckets in memory; write memory:///".into(),
                _ => "it names no bucket".into(),
            }));
        }
        let key = Path::parse(key).map_err(|error| refuse(error.to_string()))?;
        Ok(Self::Remote(Remote {
            cloud,
            bucket: bucket.to_owned(),
            key,
            shown: place.trim_end_matches('/').to_owned(),
        }))
    }
}

fn is_scheme(text: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_of_name)
}

fn without_secrets(place: &str) -> String {
    match (place.find("://"), place.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!(
                "{}://{}",
                place.get(..scheme).unwrap_or_default(),
                place.get(at + 1..).unwrap_or_default()
            )
        }
        _ => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(place: &str) -> String {
        match Address::parse(place).unwrap() {
            Address::Remote(remote) => format!("{}|{}", remote.bucket, remote.key),
            Address::Local(path) => panic!("{path:?}"),
        }
    }

    #[test]
    fn a_key_is_what_was_written() {
        assert_eq!(key("s3://bkt/sw/x#2"), "bkt|sw/x#2");
        assert_eq!(key("gs://bkt/what?/a%41b c/ö\\/"), "bkt|what?/a%41b c/ö\\");
        assert_eq!(key("S3://bkt/a@b"), "bkt|a@b");
        assert_eq!(key("memory:///sweeps/a"), "|sweeps/a");
        assert_eq!(key("s3://bkt"), "bkt|");
    }

    #[test]
    fn a_path_is_what_was_written() {
        let here = std::env::current_dir().unwrap();
        for name in ["x#2", "what?", "a%41b", "a\\b", "a:b", "ö ü", "../x"] {
            let expected = Address::Local(here.join(name));
            assert_eq!(Address::parse(name).unwrap(), expected);
        }
        let root = Address::Local("/a/b c".into());
        assert_eq!(Address::parse("file:///a/b c").unwrap(), root);
    }

    #[test]
    fn what_could_be_taken_in_two_ways_is_refused() {
        for place in [
            "s3://bkt#x/y",
            "s3://bkt/a//b",
            "s3://bkt/a/../b",
            "s3:///a",
            "s3:/bkt/a",
            "file:///a%41",
            "file:///a#2",
            "file://host/a",
            "memory://a/b",
            "ftp://host/x",
            "https://host/x",
            "",
        ] {
            assert!(Address::parse(place).is_err(), "{place}");
        }
    }

    #[test]
    fn a_secret_is_not_repeated() {
        for place in ["ftp://user:hunter2@host/x", "s3://user:hunter2@host/x"] {
            let error = Address::parse(place).unwrap_err().to_string();
            assert!(error.contains("://host/x"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
