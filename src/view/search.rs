//! Search for a text or a pattern in the prompts and answers of all runs that are viewed. Hits are sent as they are found;
//! one batch of rows is held at a time.

use std::borrow::Cow;
use std::ops::Range;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::common::cast::as_string_view_array;
use futures::TryStreamExt;
use maud::{Markup, html};
use regex::{Regex, RegexBuilder};

use super::html::text;
use super::server::Out;
use super::site::{Asked, Site};
use crate::error::Error;
use crate::json::Object;
use crate::request::RESPONSES_CREATE_PARAMS;
use crate::schema;
use crate::show::count;

/// Hits of a page: who gets more wants a narrower search.
const MAX_HITS: usize = 200;

/// Bytes shown before and behind a hit.
const AROUND: usize = 120;

/// Rows between two words about the progress.
const STEP: u64 = 2_000;

/// Memory that the automaton of a pattern may take, in bytes.
const MAX_PATTERN: usize = 4_000_000;

/// The page of a search.
pub(super) async fn search(site: &Site, asked: &Asked, out: &Out) -> Result<(), Error> {
    let wanted = asked.get("q");
    let is_regex = !asked.get("regex").is_empty();
    let form = html! {
        h1 { "Search" }
        form class="filter" {
            label { "Text " input type="search" name="q" value=(wanted) size="50" autofocus[wanted.is_empty()]; }
            " " label { input type="checkbox" name="regex" value="1" checked[is_regex]; " regular expression" }
            " " button { "Search" }
        }
    };
    out.put(form.into_string()).await;
    if wanted.is_empty() {
        return Ok(());
    }
    let pattern = if is_regex {
        wanted.to_owned()
    } else {
        regex::escape(wanted)
    };
    let pattern = RegexBuilder::new(&pattern)
        .case_insensitive(true)
        .size_limit(MAX_PATTERN)
        .build();
    let pattern = pattern.map_err(|error| Error::usage("the regular expression", error))?;
    let mut search = Search {
        pattern,
        out,
        hits: 0,
        looked: 0,
    };
    for (number, run) in (1..).zip(&site.runs) {
        let look = site.look(number).await?;
        for (table, column, index) in [
            (schema::TASKS, schema::REQUEST, schema::FIRST_ROLLOUT_INDEX),
            (schema::ROLLOUTS, schema::RESULT, schema::ROLLOUT_INDEX),
        ] {
            let mut rows = look.reader().await?.texts(table, index, column).await?;
            while let Some(batch) = rows.try_next().await? {
                let link = |task: i64, rollout: i64| match table {
                    schema::TASKS => site.links.task(number, task),
                    _ => site.links.rollout(number, task, rollout),
                };
                search.look_in(&batch, table, &run.label, link).await?;
                if search.hits >= MAX_HITS {
                    let end = html! { p class="note" { "These are the first " (MAX_HITS) " hits. A narrower search finds others." } };
                    out.put(end.into_string()).await;
                    return Ok(());
                }
            }
        }
    }
    let end = html! { p class="progress" { (search.hits) " hits in " (count(search.looked)) " prompts and answers." } };
    out.put(end.into_string()).await;
    Ok(())
}

struct Search<'a> {
    pattern: Regex,
    out: &'a Out,
    hits: usize,
    looked: u64,
}

impl Search<'_> {
    /// Looks through the texts of a batch: task, rollout and text.
    async fn look_in(
        &mut self,
        batch: &RecordBatch,
        table: &str,
        run: &str,
        link: impl Fn(i64, i64) -> Option<String>,
    ) -> Result<(), Error> {
        let tasks = batch.column(0).as_primitive::<Int64Type>();
        let rollouts = batch.column(1).as_primitive::<Int64Type>();
        let texts = as_string_view_array(batch.column(2))?;
        for row in 0..batch.num_rows() {
            self.looked += 1;
            if self.looked.is_multiple_of(STEP) {
                let said = html! { p class="progress" { (count(self.looked)) " prompts and answers searched, " (self.hits) " hits" } };
                self.out.put(said.into_string()).await;
            }
            if texts.is_null(row) {
                continue;
            }
            let whole = texts.value(row);
            let answer = (table == schema::ROLLOUTS)
                .then(|| Object::parse(whole).ok())
                .flatten();
            // Many answers echo what was asked: that is found in the prompt.
            let parts: Vec<&str> = match &answer {
                Some(answer) => {
                    let fields = answer
                        .iter()
                        .filter(|(name, ..)| *name != RESPONSES_CREATE_PARAMS);
                    fields.map(|(_, _, value)| value).collect()
                }
                None => vec![whole],
            };
            // People search for what they read, not for how JSON spells it.
            let found = parts.into_iter().find_map(|part| {
                let readable = unescaped(part);
                let found = self.pattern.find(&readable)?.range();
                Some((readable, found))
            });
            let Some((readable, found)) = found else {
                continue;
            };
            let (task, rollout) = (tasks.value(row), rollouts.value(row));
            let hit = html! {
                p class="hit" {
                    a href=[link(task, rollout)] {
                        (text(run)) " task " (task)
                        @if table == schema::ROLLOUTS { ", rollout " (rollout) } @else { ", prompt" }
                    }
                    " " (around(&readable, found))
                }
            };
            self.out.put(hit.into_string()).await;
            self.hits += 1;
            if self.hits >= MAX_HITS {
                break;
            }
        }
        Ok(())
    }
}

/// The text of JSON as people read it: what stands behind a backslash is written out.
fn unescaped(json: &str) -> Cow<'_, str> {
    if !json.contains('\\') {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((before, escape)) = rest.split_once('\\') {
        text.push_str(before);
        let mut behind = escape.chars();
        let code = || u32::from_str_radix(escape.get(1..5)?, 16).ok();
        match behind.next() {
            Some('n' | 'r') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('u') if let Some(code) = code() => {
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                behind = escape.get(5..).unwrap_or_default().chars();
            }
            Some(other) => text.push(other),
            None => {}
        }
        rest = behind.as_str();
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// A hit within its text.
fn around(whole: &str, found: Range<usize>) -> Markup {
    let begin = whole.floor_char_boundary(found.start.saturating_sub(AROUND));
    let end = whole.floor_char_boundary(found.end.saturating_add(AROUND).min(whole.len()));
    let long = whole.floor_char_boundary(found.end.min(found.start + 4 * AROUND));
    html! {
        span class="context" {
            (text(whole.get(begin..found.start).unwrap_or_default()))
            mark { (text(whole.get(found.start..long).unwrap_or_default())) }
            (text(whole.get(found.end..end.max(found.end)).unwrap_or_default()))
        }
    }
}
