//! Epochs: `writers/EPOCH.json` is made by the one writer that has the epoch, and stays as long as the run.

use std::time::Duration;

use super::LockRecord;
use crate::store::{RunStore, StoreError, deadline};

/// Directory of the writers that a run had.
const WRITERS: &str = "writers";

/// How long the store may take for one request.
const DEADLINE: Duration = Duration::from_secs(30);

/// Takes an epoch higher than all that were ever taken.
///
/// # Errors
/// The store failed.
pub(super) async fn begin(run: &RunStore, record: &LockRecord) -> Result<u64, StoreError> {
    let mut text = serde_json::to_vec_pretty(record).map_err(|source| StoreError::Record {
        object: run.display(WRITERS),
        reason: source.to_string(),
    })?;
    text.push(b'\n');
    let mut epoch = newest(run).await? + 1;
    loop {
        let object = format!("{WRITERS}/{epoch:010}.json");
        let shown = || run.display(&object);
        let create = run.create(&object, text.clone());
        if deadline::within(DEADLINE, "create", shown, create).await? {
            return Ok(epoch);
        }
        // Another writer was quicker, or an answer was lost: then the epoch is nobody's.
        epoch += 1;
    }
}

async fn newest(run: &RunStore) -> Result<u64, StoreError> {
    let shown = || run.display(WRITERS);
    let listed = deadline::within(DEADLINE, "list", shown, run.list(WRITERS)).await?;
    let epochs = listed.iter().filter_map(|object| {
        let name = object.location.filename()?;
        name.strip_suffix(".json")?.parse::<u64>().ok()
    });
    Ok(epochs.max().unwrap_or_default())
}
