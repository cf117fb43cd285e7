//! What a person writes for a place: [`Address`] is a path of this machine, or an object or prefix of a store, and
//! [`connect`] sets the store up from the environment. Keys are taken as they are written: a `#` that was cut off would
//! name another run.

use std::error::Error;
use std::fmt::Debug;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, ObjectStore};

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
        let refuse = |source: Box<dyn Error + Send + Sync>| StoreError::Address {
            place: without_secrets(place),
            source,
        };
        let local = |path: &str| {
            let path = std::path::absolute(path).map_err(|error| refuse(error.into()))?;
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
            let reason = format!("it begins like an address; write {scheme}:// or ./{place}");
            return Err(refuse(reason.into()));
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
            scheme => return Err(refuse(format!("'{scheme}://' is not known").into())),
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains(['@', ':']) {
            return Err(refuse(
                "it holds a secret; put keys into environment variables".into(),
            ));
        }
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !bucket.chars().all(is_of_name) {
            return Err(refuse(
                format!("'{bucket}' is not the name of a bucket").into(),
            ));
        }
        if bucket.is_empty() != (cloud == Cloud::Memory) {
            return Err(refuse(match cloud {
                Cloud::Memory => "there are no buckets in memory; write memory:///".into(),
                _ => "it names no bucket".into(),
            }));
        }
        let key = Path::parse(key).map_err(|error| refuse(error.into()))?;
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

/// A store that tells the names of its uploads in pieces, so that another process can abort them.
pub(super) trait NamedUploads: MultipartStore + Debug {}

impl<T: MultipartStore + Debug> NamedUploads for T {}

/// What an address leads to.
pub(super) struct Connected {
    /// What lies below the address: its own path is the empty one.
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same store, if what it has of an unfinished upload stays until it is aborted.
    pub(super) uploads: Option<Arc<dyn NamedUploads>>,
}

const AMAZON: &str = "Its variables are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, AWS_SESSION_TOKEN \
    where there is one, and for a store that is not Amazon's AWS_ENDPOINT, with AWS_ALLOW_HTTP=true if that is http://";
const GOOGLE: &str =
    "Its variable is GOOGLE_SERVICE_ACCOUNT, the path of a service account's key file";
const AZURE: &str = "Its variables are AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY";

impl Remote {
    /// Returns the store below the address, to read from. Nothing is asked yet.
    ///
    /// # Errors
    /// As for [`connect`].
    pub(crate) fn store(&self) -> Result<Arc<dyn ObjectStore>, StoreError> {
        connect(self).map(|connected| connected.store)
    }
}

/// Sets up the store below an address from the environment. Nothing is asked yet.
///
/// # Errors
/// Variables are missing.
pub(super) fn connect(address: &Remote) -> Result<Connected, StoreError> {
    let setup = |advice| {
        move |source: Box<dyn Error + Send + Sync>| StoreError::Setup {
            place: address.shown.clone(),
            source,
            advice,
        }
    };
    // The names are set after the environment, which may have others.
    let name = &address.bucket;
    match address.cloud {
        Cloud::Amazon => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(name);
            let set = |key| builder.get_config_value(&key);
            let endpoint = set(AmazonS3ConfigKey::S3Endpoint).or(set(AmazonS3ConfigKey::Endpoint));
            let allowed = set(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
            if endpoint.is_some_and(|url| url.starts_with("http://"))
                && !allowed.is_some_and(|allowed| is_yes(&allowed))
            {
                let source = "its endpoint is http://, which must be allowed";
                return Err(setup(AMAZON)(source.into()));
            }
            let store = builder.build().map_err(Into::into);
            Ok(below(store.map_err(setup(AMAZON))?, address))
        }
        Cloud::Google => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(name);
            let store = builder.build().map_err(Into::into);
            Ok(below(store.map_err(setup(GOOGLE))?, address))
        }
        Cloud::Azure => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(name);
            let store = builder.build().map_err(Into::into);
            Ok(below(store.map_err(setup(AZURE))?, address))
        }
        Cloud::Memory => Ok(Connected {
            store: Arc::new(PrefixStore::new(InMemory::new(), address.key.clone())),
            uploads: None,
        }),
    }
}

fn below<T: ObjectStore + MultipartStore>(store: T, address: &Remote) -> Connected {
    let store = Arc::new(PrefixStore::new(store, address.key.clone()));
    Connected {
        store: Arc::clone(&store) as _,
        uploads: Some(store),
    }
}

/// As `object_store` reads it.
fn is_yes(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    ["1", "true", "on", "yes", "y"].contains(&value.as_str())
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
