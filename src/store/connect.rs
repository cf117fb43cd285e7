use std::env;
use std::fmt::Debug;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, ObjectStore};

use super::StoreError;
use super::address::{Cloud, Remote};

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
    /// The store below the address, to read from. Nothing is asked yet.
    ///
    /// # Errors
    /// As for [`connect`].
    pub(crate) fn store(&self) -> Result<Arc<dyn ObjectStore>, StoreError> {
        connect(self).map(|connected| connected.store)
    }
}

/// The store below an address, set up from the environment. Nothing is asked yet.
///
/// # Errors
/// Variables are missing.
pub(super) fn connect(address: &Remote) -> Result<Connected, StoreError> {
    let setup = |advice| {
        move |source: object_store::Error| StoreError::Setup {
            place: address.shown.clone(),
            reason: source.to_string(),
            advice,
        }
    };
    // The names are set after the environment, which may have others.
    let name = &address.bucket;
    match address.cloud {
        Cloud::Amazon => {
            let builder = options().fold(AmazonS3Builder::new(), |builder, (key, value)| match key
                .parse()
            {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            });
            let set = |key| builder.get_config_value(&key);
            let endpoint = set(AmazonS3ConfigKey::S3Endpoint).or(set(AmazonS3ConfigKey::Endpoint));
            let allowed = set(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
            if endpoint.is_some_and(|url| url.starts_with("http://"))
                && !allowed.is_some_and(|allowed| is_yes(&allowed))
            {
                return Err(StoreError::Setup {
                    place: address.shown.clone(),
                    reason: "its endpoint is http://, which must be allowed".to_owned(),
                    advice: AMAZON,
                });
            }
            let store = builder.with_bucket_name(name).build();
            Ok(below(store.map_err(setup(AMAZON))?, address))
        }
        Cloud::Google => {
            let builder = options().fold(
                GoogleCloudStorageBuilder::new(),
                |builder, (key, value)| match key.parse() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_) => builder,
                },
            );
            let store = builder.with_bucket_name(name).build();
            Ok(below(store.map_err(setup(GOOGLE))?, address))
        }
        Cloud::Azure => {
            let builder =
                options().fold(
                    MicrosoftAzureBuilder::new(),
                    |builder, (key, value)| match key.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    },
                );
            let store = builder.with_container_name(name).build();
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

/// Options of the clouds' stores, from the variables that their own tools read.
fn options() -> impl Iterator<Item = (String, String)> {
    const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
    env::vars_os().filter_map(|(key, value)| {
        let key = key.into_string().ok()?;
        let known = PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        known.then_some((key.to_ascii_lowercase(), value.into_string().ok()?))
    })
}
