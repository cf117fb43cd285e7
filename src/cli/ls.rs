//! `rollstream ls`: the runs below a directory or a prefix of a bucket.

use clap::Args;
use datafusion::common::runtime::SpawnedTask;
use futures::{StreamExt, TryStreamExt, stream};

use super::output::{Exit, note, print, warn};
use super::runs::{open, state_dir};
use crate::error::Error;
use crate::show;
use crate::status::RunStatus;
use crate::store::{RUN_JSON, RunStore};

const EXAMPLES: &str = "\
Examples:
  rollstream ls runs
  rollstream ls s3://bucket/sweeps
  rollstream ls --json | jq -r 'select(.total.pending > 0).place'

The newest run comes last. `rollstream status RUN` says more about one.";

/// The options of `ls`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LsArgs {
    /// A directory or an object-store prefix
    #[arg(value_name = "DIR", default_value = ".")]
    pub place: String,
    /// Show JSON for programs: a line per run, as `rollstream status --json` describes it
    #[arg(long)]
    pub json: bool,
}

/// The deepest level at which runs are looked for.
const MAX_DEPTH: usize = 8;

/// Folders, and then runs, that are looked at together.
const AT_ONCE: usize = 8;

/// `rollstream ls`: lists runs. Writes nothing to them.
pub(super) async fn ls(args: LsArgs) -> Result<Exit, Error> {
    let place = args.place.trim_end_matches('/');
    let place = if place.is_empty() { "/" } else { place };
    let base = RunStore::open(place, state_dir().as_deref())?;
    if base.local_path().is_some_and(|path| !path.is_dir()) {
        return Err(Error::Usage(format!("there is no directory '{place}'")));
    }
    let found = find(&base).await?;
    let runs = found.iter().map(|relative| match relative.as_str() {
        "" => place.to_owned(),
        relative if place == "." => relative.to_owned(),
        relative => format!("{}/{relative}", place.trim_end_matches('/')),
    });
    // As tasks, so that all cores plan and read.
    let looked = stream::iter(runs.collect::<Vec<_>>()).map(|place| async move {
        let look = SpawnedTask::spawn(async move {
            let run = open(&place)?;
            Ok::<_, Error>(RunStatus::of(&run).await.map_err(|error| (place, error)))
        });
        look.join().await.map_err(Error::defect)?
    });
    let looked: Vec<_> = looked.buffered(AT_ONCE).try_collect().await?;
    let mut runs = Vec::new();
    for run in looked {
        match run {
            Ok(run) => runs.push(run),
            Err((place, error)) => warn(format_args!("{place} can't be read: {error}")),
        }
    }
    if runs.is_empty() {
        note(format_args!("there is no run in {place}"));
    }
    runs.sort_by(|a, b| (&a.created_at, &a.place).cmp(&(&b.created_at, &b.place)));
    if args.json {
        let mut lines = String::new();
        for run in &runs {
            lines.push_str(&serde_json::to_string(run).map_err(Error::defect)?);
            lines.push('\n');
        }
        print(lines)?;
    } else if !runs.is_empty() {
        print(show::runs(&runs))?;
    }
    Ok(Exit::Done)
}

/// Returns where the runs below a place are. A run is not searched for others.
async fn find(base: &RunStore) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    let mut level = vec![String::new()];
    for _ in 0..MAX_DEPTH {
        let listed = stream::iter(level).map(|folder| async move {
            let listed = base.entries(&folder).await?;
            Ok::<_, Error>((folder, listed))
        });
        let listed: Vec<_> = listed.buffered(AT_ONCE).try_collect().await?;
        level = Vec::new();
        for (folder, (files, folders)) in listed {
            if files.iter().any(|name| name == RUN_JSON) {
                found.push(folder);
                continue;
            }
            let folders = folders.iter().filter(|name| !name.starts_with('.'));
            level.extend(folders.map(|name| match folder.as_str() {
                "" => name.clone(),
                folder => format!("{folder}/{name}"),
            }));
        }
    }
    Ok(found)
}
