use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::spool::Spool;
use crate::config::{Routing, Settings};
use crate::error::Error;
use crate::read::{
    self, OpenSource, Overrides, Prompt, PromptError, ReadOptions, ReadSummary, ReadTasksError,
    SourceError, batches, read_tasks,
};
use crate::servers::Servers;
use crate::store::{Address, InputRecord};

/// The input of a sweep, read and found good.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) spool: Spool,
    pub(super) records: Vec<InputRecord>,
    pub(super) summary: ReadSummary,
    /// Text of the prompt template, which is part of the sweep's identity.
    pub(super) prompt: Option<String>,
    /// The identity that the run has already, where the tasks are its own.
    pub(super) identity: Option<Value>,
}

impl Inputs {
    /// Reads all that `settings` names. Nothing is left behind if anything is wrong with it.
    pub(super) async fn read(
        settings: &Settings,
        routing: Option<Routing>,
        servers: Option<Arc<Servers>>,
    ) -> Result<Self, Error> {
        let prompt = settings
            .prompt_config
            .as_deref()
            .map(prompt_text)
            .transpose()?;
        let options = ReadOptions {
            agent_name: settings.agent.clone(),
            routing,
            servers,
            limit: settings.limit,
            repeats: settings.num_repeats.clone(),
            seed: settings.num_repeats_add_seed.then_some(settings.seed_field),
            overrides: Overrides::new(&settings.responses_create_params)?,
            prompt: prompt.as_deref().map(Prompt::from_yaml).transpose()?,
        };
        let names = expand(settings.required_input()?)?;
        let runtime = Handle::current();
        let (output, input) = batches();
        let reading = tokio::task::spawn_blocking(move || {
            let sources = names.iter().map(|name| open(name, &runtime));
            read_tasks(sources, options, &output)
        });
        let (spool, read) = tokio::join!(Spool::write(input), reading);
        let read = read
            .map_err(|error| Error::failed("a defect of rollstream: reading the input", error))?;
        let (summary, digests) = match read {
            Ok(read) => read,
            // Then the spool failed first.
            Err(ReadTasksError::Abandoned) => {
                spool?;
                return Err(Error::defect("reading the input was given up"));
            }
            Err(error) => return Err(error.into()),
        };
        let record = |source: crate::read::SourceDigest| InputRecord {
            path: source.name,
            digest: source.digest,
            num_bytes: source.num_bytes,
        };
        Ok(Self {
            spool: spool?,
            records: digests.into_iter().map(record).collect(),
            summary,
            prompt,
            identity: None,
        })
    }
}

pub(super) fn prompt_text(path: &Path) -> Result<String, PromptError> {
    std::fs::read_to_string(path).map_err(|source| PromptError::Unreadable {
        path: path.display().to_string(),
        source,
    })
}

/// The inputs that `patterns` names, in order: a pattern stands for the files that match it now.
fn expand(patterns: &[String]) -> Result<Vec<String>, SourceError> {
    let here = PathBuf::from(".");
    let mut names = Vec::new();
    for pattern in patterns {
        let is_pattern = pattern.contains(['*', '?', '[']);
        if is_pattern && pattern.contains("://") {
            let source = io::Error::other("patterns are for local files; name each object");
            return Err(SourceError::Unreadable {
                path: pattern.clone(),
                source,
            });
        }
        if !is_pattern || Path::new(pattern).exists() {
            names.push(pattern.clone());
            continue;
        }
        let matches = read::expand(pattern, &here);
        if matches.is_empty() {
            return Err(SourceError::NotFound(pattern.clone()));
        }
        names.extend(matches);
    }
    Ok(names)
}

/// Opens an input, wherever it is. Blocks.
fn open(name: &str, runtime: &Handle) -> Result<OpenSource, SourceError> {
    let open = |reader| OpenSource {
        name: name.to_owned(),
        reader,
    };
    if !name.contains("://") {
        return read::open(Path::new(name)).map(open);
    }
    let unreadable = |source: io::Error| SourceError::Unreadable {
        path: name.to_owned(),
        source,
    };
    let refused = |error| unreadable(io::Error::other(error));
    let object = match Address::parse(name).map_err(refused)? {
        Address::Local(path) => return read::open(&path).map(open),
        Address::Remote(object) => object,
    };
    let store = object.store().map_err(refused)?;
    let found = runtime.block_on(async { store.get(&ObjectPath::default()).await });
    let found = found.map_err(|error| match error {
        object_store::Error::NotFound { .. } => SourceError::NotFound(name.to_owned()),
        other => unreadable(other.into()),
    })?;
    let bytes = StreamReader::new(found.into_stream().map_err(io::Error::from));
    let reader = SyncIoBridge::new_with_handle(Box::pin(bytes), runtime.clone());
    read::decoded(name, reader).map(open).map_err(unreadable)
}
