use std::env;
use std::fmt::Debug;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreScheme, parse_url_opts};
use url::Url;

use super::StoreError;

/// A store that tells the names of its uploads in pieces, so that another process can abort them.
pub(super) trait NamedUploads: MultipartStore + Debug {}

impl<T: MultipartStore + Debug> NamedUploads for T {}

/// What an address leads to.
pub(super) struct Connected {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same store, if what it has of an unfinished upload stays until it is aborted.
    pub(super) uploads: Option<Arc<dyn NamedUploads>>,
    pub(super) path: Path,
}

const AMAZON: &str = "Its variables are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, AWS_SESSION_TOKEN \
    where there is one, and for a store that is not Amazon's AWS_ENDPOINT, with AWS_ALLOW_HTTP=true if that is http://";
const GOOGLE: &str =
    "Its variable is GOOGLE_SERVICE_ACCOUNT, the path of a service account's key file";
const AZURE: &str = "Its variables are AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY";

/// The store at an address, set up from the environment. Nothing is asked yet. `place` is the address
/// without secrets.
///
/// # Errors
/// The address is none that is known, or variables are missing.
pub(super) fn connect(url: &Url, place: &str) -> Result<Connected, StoreError> {
    let refuse = |source: object_store::Error| StoreError::Address {
        place: place.to_owned(),
        reason: source.to_string(),
    };
    let setup = |advice| {
        move |source: object_store::Error| StoreError::Setup {
            place: place.to_owned(),
            reason: source.to_string(),
            advice,
        }
    };
    let (scheme, path) = ObjectStoreScheme::parse(url).map_err(|error| refuse(error.into()))?;
    let path = Path::parse(path).map_err(|error| refuse(error.into()))?;
    match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::new().with_url(url.as_str());
            let builder = options().fold(builder, |builder, (key, value)| match key.parse() {
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
                    place: place.to_owned(),
                    reason: "its endpoint is http://, which must be allowed".to_owned(),
                    advice: AMAZON,
                });
            }
            Ok(named(builder.build().map_err(setup(AMAZON))?, path))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::new().with_url(url.as_str());
            let builder = options().fold(builder, |builder, (key, value)| match key.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            });
            Ok(named(builder.build().map_err(setup(GOOGLE))?, path))
        }
        // Azure forgets pieces that nothing was made of by itself.
        other => {
            let opened = parse_url_opts(url, options());
            let (store, path) = match other {
                ObjectStoreScheme::MicrosoftAzure => opened.map_err(setup(AZURE))?,
                _ => opened.map_err(refuse)?,
            };
            Ok(Connected {
                store: Arc::from(store),
                uploads: None,
                path,
            })
        }
    }
}

fn named<T: ObjectStore + MultipartStore>(store: T, path: Path) -> Connected {
    let store = Arc::new(store);
    Connected {
        store: Arc::clone(&store) as _,
        uploads: Some(store),
        path,
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
