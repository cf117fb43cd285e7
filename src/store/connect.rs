use std::env;
use std::fmt::Debug;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, Result, parse_url_opts};
use url::Url;

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

/// The store at an address, set up from the environment. Nothing is asked yet.
pub(super) fn connect(url: &Url) -> Result<Connected> {
    let (scheme, path) = ObjectStoreScheme::parse(url)?;
    let path = Path::parse(path)?;
    match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::new().with_url(url.as_str());
            let builder = options().fold(builder, |builder, (key, value)| match key.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            });
            Ok(named(builder.build()?, path))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::new().with_url(url.as_str());
            let builder = options().fold(builder, |builder, (key, value)| match key.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            });
            Ok(named(builder.build()?, path))
        }
        // Azure forgets pieces that nothing was made of by itself.
        _ => {
            let (store, path) = parse_url_opts(url, options())?;
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

/// Options of the clouds' stores, from the variables that their own tools read.
fn options() -> impl Iterator<Item = (String, String)> {
    const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
    env::vars_os().filter_map(|(key, value)| {
        let key = key.into_string().ok()?;
        let known = PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        known.then_some((key.to_ascii_lowercase(), value.into_string().ok()?))
    })
}
