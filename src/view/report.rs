//! A report: the overview of one or several runs, their comparison, and some transcripts, in one file that needs nothing else.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use maud::{Markup, html};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::compare::Comparisons;
use super::html::{self, Links, maybe, text};
use super::look::{Look, ViewedRun};
use super::overview::overview;
use super::rollout::{conversation, fields};
use super::server::Out;
use super::tasks::{NAME, rollouts};
use crate::error::Error;
use crate::measure::MetricTables;
use crate::schema::REWARD;
use crate::session::{NamedRun, Rows, row};
use crate::store::StoreError;
use crate::transcript::{Item, Key};

/// Bytes of a text in a transcript: a report is sent around.
const TEXT: usize = 8_000;

/// Bytes of an image in a transcript.
const IMAGE: usize = 50_000;

/// Items of a transcript.
const ITEMS: usize = 40;

/// Writes the report of runs to a file, which appears under its name when it is complete.
///
/// # Errors
/// A run can't be read, or the file can't be written.
pub(crate) async fn report(
    path: &Path,
    runs: Vec<NamedRun>,
    metrics: Arc<MetricTables>,
) -> Result<(), Error> {
    let failed = |source| StoreError::file("write", path)(source).of_output();
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let file = tempfile::Builder::new()
        // The process's umask applies, as for any file.
        .permissions(Permissions::from_mode(0o666))
        .prefix(".rollstream-")
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .map_err(failed)?;
    let mut output = File::from_std(file.as_file().try_clone().map_err(failed)?);
    let (out, mut made) = Out::new();
    let write = async {
        while let Some(piece) = made.recv().await {
            output.write_all(&piece).await.map_err(failed)?;
        }
        output.flush().await.map_err(failed)?;
        output.sync_all().await.map_err(failed)
    };
    let runs: Vec<ViewedRun> = runs
        .into_iter()
        .map(|run| ViewedRun::new(run.label, run.run, Arc::clone(&metrics)))
        .collect();
    let make = async {
        let made = sections(&runs, &out).await;
        drop(out);
        made
    };
    tokio::try_join!(make, write)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

async fn sections(runs: &[ViewedRun], out: &Out) -> Result<(), Error> {
    let links = Links::default();
    let names: Vec<&str> = runs.iter().map(|run| run.label.as_str()).collect();
    let head = html::head(&names.join(", "), &links, &[], false);
    out.put(head.into_string()).await;
    let mut looks = Vec::new();
    for (number, run) in (1..).zip(runs) {
        looks.push(run.look(number).await?);
    }
    let comparisons = Comparisons::default();
    if let [base, candidates @ ..] = looks.as_slice() {
        for candidate in candidates {
            let pair = comparisons.of(base, candidate, REWARD).await?;
            let section = html! {
                section {
                    h1 { (text(&base.label)) " and " (text(&candidate.label)) }
                    (pair.summary(&links).await?)
                }
            };
            out.put(section.into_string()).await;
        }
    }
    for look in &looks {
        overview(look, &links, out).await?;
        out.put(transcripts(look).await?.into_string()).await;
    }
    out.put(html::foot().into_string()).await;
    Ok(())
}

row! {
    struct Task {
        task_index: i64,
        mean: Option<f64>,
        spread: Option<f64>,
    }
}

/// The best, the worst and the most disputed task, with a transcript of each.
async fn transcripts(look: &Look) -> Result<Markup, Error> {
    let mut shown = Vec::new();
    for (title, order, highest) in [
        ("The worst task", "mean ASC NULLS LAST", false),
        ("The most disputed task", "spread DESC NULLS LAST", false),
        ("The best task", "mean DESC NULLS LAST", true),
    ] {
        let sql = format!(
            "SELECT task_index, mean, spread FROM {NAME} WHERE mean IS NOT NULL ORDER BY {order}, task_index LIMIT 1"
        );
        let Some(task) = Rows::of(look.tasks().await?, &sql, Task::rows)
            .await?
            .next()
            .await?
        else {
            continue;
        };
        let rows = rollouts(look, task.task_index).await?;
        let scored = rows
            .iter()
            .filter_map(|row| Some((row.reward?, row.rollout_index)));
        let chosen = if highest {
            scored.max_by(|a, b| a.0.total_cmp(&b.0))
        } else {
            scored.min_by(|a, b| a.0.total_cmp(&b.0))
        };
        let Some((_, rollout_index)) = chosen else {
            continue;
        };
        let key = Key {
            task_index: task.task_index,
            rollout_index,
        };
        if let Some(read) = look.reader().await?.read(key).await? {
            shown.push((title, task, read));
        }
    }
    let cut = |items: &[Item]| -> Vec<Item> {
        let cut = |item: &Item| {
            let mut item = item.clone();
            item.text.truncate(item.text.floor_char_boundary(TEXT));
            item.images.retain(|image| image.len() <= IMAGE);
            item.images.truncate(1);
            item
        };
        items.iter().take(ITEMS).map(cut).collect()
    };
    Ok(html! {
        section class="transcripts" {
            h2 { "Transcripts" }
            @for (title, task, read) in &shown {
                details open {
                    summary { (title) ": task " (task.task_index) ", mean reward " (maybe(task.mean)) ", spread " (maybe(task.spread)) }
                    h3 { "Rollout " (read.rollout_index) ", reward " (maybe(read.reward)) }
                    (fields("Expected", &read.expected))
                    (fields("Scores", &read.scores))
                    (conversation(&cut(&read.items), |_| None))
                    @if read.items.len() > ITEMS { p class="note" { "The first " (ITEMS) " of " (read.items.len()) " items." } }
                }
            }
        }
    })
}
