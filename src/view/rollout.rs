//! The page of a rollout: its conversation, its scores, its attempts and its calls.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::chart::{Stretch, waterfall};
use super::html::{Links, maybe, text};
use super::look::Look;
use crate::error::Error;
use crate::outcome::OK;
use crate::session::row;
use crate::show::{count, number};
use crate::transcript::{Item, Key, Kind, RolloutState};

/// Bytes of a text that a page shows at once.
const SHOWN: usize = 20_000;

/// Bytes of all texts of a page.
const SHOWN_IN_ALL: usize = 400_000;

/// Calls of a rollout on a page.
const MAX_CALLS: usize = 500;

/// Bytes of an image that a page has in it.
const MAX_IMAGE: usize = 4_000_000;

/// Bytes of a text that is tried as JSON, to lay it out.
const MAX_JSON: usize = 100_000;

/// Returns the beginning of a text.
pub(super) fn beginning(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

/// The items of a conversation. `whole` gives the address of the whole text of an item.
pub(super) fn conversation(items: &[Item], whole: impl Fn(usize) -> Option<String>) -> Markup {
    let mut room = SHOWN_IN_ALL;
    let mut take = |text: &'_ str| {
        let shown = text.floor_char_boundary(SHOWN.min(room));
        room -= shown;
        shown
    };
    html! {
        ol class="conversation" {
            @for (position, item) in items.iter().enumerate() {
                @let shown = beginning(&item.text, take(&item.text));
                @let rest = item.text.len() - shown.len();
                li class={ "item " (class(item)) } {
                    @match item.kind {
                        Kind::Reasoning => details { summary { "reasoning" } (body(shown)) },
                        Kind::FunctionCall => { h3 { "calls " (text(&item.name)) } (body(shown)) }
                        Kind::FunctionCallOutput => { h3 { "output " (text(&item.name)) } (body(shown)) }
                        Kind::Message | Kind::Other => { h3 { (text(&item.name)) } (body(shown)) }
                    }
                    @for image in &item.images {
                        @if image.len() <= MAX_IMAGE { (with_images(image)) } @else { p class="more" { "an image of " (size(image.len() * 3 / 4)) } }
                    }
                    @if rest > 0 {
                        p class="more" {
                            (size(rest)) " more"
                            @if let Some(whole) = whole(position) { " – " a href=(whole) { "show all" } }
                        }
                    }
                }
            }
        }
    }
}

fn class(item: &Item) -> &'static str {
    match (item.kind, item.name.as_str()) {
        (Kind::Reasoning, _) => "reasoning",
        (Kind::FunctionCall, _) => "call",
        (Kind::FunctionCallOutput, _) => "output",
        (_, "user") => "user",
        (_, "assistant") => "assistant",
        _ => "other",
    }
}

fn size(bytes: usize) -> String {
    bytesize::ByteSize(bytes as u64).to_string()
}

/// A text: JSON laid out, code in blocks, images as images, and all else as it is.
fn body(shown: &str) -> Markup {
    let trimmed = shown.trim();
    let is_json = trimmed.len() <= MAX_JSON && trimmed.starts_with(['{', '[']);
    if let Some(value) = is_json
        .then(|| serde_json::from_str::<Value>(trimmed).ok())
        .flatten()
    {
        let laid_out = serde_json::to_string_pretty(&value).unwrap_or_else(|_| trimmed.to_owned());
        return html! { pre class="code" { (text(&laid_out)) } };
    }
    html! {
        @for (number, block) in shown.split("```").enumerate() {
            @if number % 2 == 1 {
                @let (language, code) = block.split_once('\n').unwrap_or(("", block));
                pre class="code" title=(language) { (text(code)) }
            } @else if !block.trim().is_empty() {
                (with_images(block))
            }
        }
    }
}

/// The kinds of images that are shown. SVG is not: it is a document.
const IMAGES: [&str; 4] = ["png", "jpeg", "gif", "webp"];

/// A text in which images that stand in it as data are shown.
fn with_images(block: &str) -> Markup {
    let mut pieces = block.split("data:image/");
    let first = pieces.next().unwrap_or_default();
    html! {
        div class="text" {
            (text(first))
            @for piece in pieces {
                @let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && !";,+/=".contains(c)).unwrap_or(piece.len());
                @let (data, rest) = piece.split_at(end);
                @match data.split_once(";base64,") {
                    Some((kind, code)) if IMAGES.contains(&kind) && !code.is_empty() => {
                        img src={ "data:image/" (data) } alt={ "an image of " (size(code.len() * 3 / 4)) };
                    }
                    _ => { "data:image/" (text(data)) }
                }
                (text(rest))
            }
        }
    }
}

/// Named values, if there are any.
pub(super) fn fields(title: &str, fields: &Map<String, Value>) -> Markup {
    let shown = |value: &Value| match value {
        Value::String(string) => string.clone(),
        Value::Object(_) | Value::Array(_) => {
            serde_json::to_string_pretty(value).unwrap_or_default()
        }
        other => other.to_string(),
    };
    html! {
        @if !fields.is_empty() {
            section class="fields" {
                h2 { (title) }
                dl { @for (name, value) in fields {
                    @let value = shown(value);
                    dt { (text(name)) } dd { (text(beginning(&value, SHOWN))) @if value.len() > SHOWN { " …" } }
                } }
            }
        }
    }
}

row! {
    struct Call {
        attempt: i64,
        kind: String,
        name: Option<String>,
        outcome: String,
        error: Option<String>,
        started: i64,
        latency_ms: Option<f64>,
        input_tokens: Option<i64>,
        output_tokens: Option<i64>,
        http_status: Option<i64>,
    }
}

row! {
    struct Times {
        attempt: i64,
        dispatched: i64,
        permit_wait_ms: f64,
        rate_wait_ms: f64,
        connect_ms: Option<f64>,
        server_ms: Option<f64>,
        client_ms: Option<f64>,
    }
}

/// The page of a rollout; `None` if there is no such rollout.
pub(super) async fn rollout(look: &Look, links: &Links, key: Key) -> Result<Option<Markup>, Error> {
    let (task, index) = (key.task_index, key.rollout_index);
    let reader = look.reader().await?;
    let Some(read) = reader.read(key).await? else {
        return Ok(None);
    };
    let others = reader.task(task).await?.keys;
    let place = others.iter().position(|other| *other == key);
    let beside = |step: isize| -> Option<String> {
        let place = place?.checked_add_signed(step)?;
        links.rollout(look.number, task, others.get(place)?.rollout_index)
    };
    let this = key.condition();
    let times = format!(
        "SELECT attempt, CAST(dispatched_at AS BIGINT) AS dispatched, permit_wait_ms, rate_wait_ms, connect_ms, server_ms,
            client_ms FROM attempts WHERE {this} ORDER BY attempt"
    );
    let times = look.rows(&times, Times::rows).await?;
    let calls = format!(
        "SELECT attempt, kind, name, outcome, error, CAST(started_at AS BIGINT) AS started, latency_ms, input_tokens,
            output_tokens, http_status FROM calls WHERE {this} ORDER BY attempt, call LIMIT {}",
        MAX_CALLS + 1
    );
    let calls = look.rows(&calls, Call::rows).await?;
    let address = |rest: &str| links.of_run(look.number, &format!("tasks/{task}/{index}/{rest}"));
    let state = read.state.name();
    Ok(Some(html! {
        h1 { a href=[links.task(look.number, task)] { "Task " (task) } ", rollout " (index) }
        p class="state" {
            span class={ "badge " (state) } { (state) }
            " reward " strong { (maybe(read.reward)) }
            @if read.masked { " (masked)" } @if read.truncated { " (cut off)" }
            " · " (text(&read.agent_name))
            @if let Some(tokens) = read.output_tokens { " · " (tokens) " output tokens" }
            @if let Some(latency) = read.latency_ms { " · " (number(latency.round())) " ms" }
            @if let Some(started) = &read.started_at { " · " (started) }
            @if let RolloutState::Done = read.state { " · " a href=[address("raw")] { "raw JSON" } }
        }
        nav class="pages" aria-label="Rollouts" {
            @if let Some(previous) = beside(-1) { a rel="prev" href=(previous) { "← previous" } }
            " "
            @if let Some(next) = beside(1) { a rel="next" href=(next) { "next →" } }
        }
        (fields("Expected", &read.expected))
        (fields("Scores", &read.scores))
        section id="conversation" {
            h2 { "Conversation" }
            @if !read.tools.is_empty() { p class="note" { "Tools: " (text(&read.tools.join(", "))) } }
            (conversation(&read.items, |item| address(&format!("item/{item}"))))
        }
        section id="attempts" {
            h2 { "Attempts" }
            (waterfall("Attempts over time: waiting, connecting, the server, the client", &attempts(&times)))
            div class="scroll" { table {
                thead { tr { th { "attempt" } th { "outcome" } th { "status" } th { "sent" } th { "server ms" } th { "error" } } }
                tbody { @for attempt in &read.attempts {
                    tr class=(if attempt.outcome == OK { "" } else { "bad" }) {
                        td class="n" { (attempt.attempt) } td { (text(&attempt.outcome)) @if attempt.terminal { " (final)" } }
                        td class="n" { (attempt.http_status.map_or_else(String::new, |status| status.to_string())) }
                        td { (attempt.dispatched_at) } td class="n" { (maybe(attempt.server_ms)) }
                        td class="long" { (text(attempt.error.as_deref().unwrap_or_default())) }
                    }
                } }
            } }
        }
        @if !calls.is_empty() {
            section id="calls" {
                h2 { "Calls" }
                @if calls.len() > MAX_CALLS { p class="note" { "The first " (MAX_CALLS) ". The table " code { "calls" } " has all." } }
                (waterfall("Calls over time", &stretches(calls.get(..MAX_CALLS).unwrap_or(&calls))))
                div class="scroll" { table {
                    thead { tr { th { "attempt" } th { "call" } th { "outcome" } th { "status" } th { "ms" } th { "input tokens" } th { "output tokens" } th { "error" } } }
                    tbody { @for call in calls.iter().take(MAX_CALLS) {
                        tr class=(if call.outcome == OK { "" } else { "bad" }) {
                            td class="n" { (call.attempt) }
                            td { (call.kind) " " (text(call.name.as_deref().unwrap_or_default())) }
                            td { (text(&call.outcome)) }
                            td class="n" { (call.http_status.map_or_else(String::new, |status| status.to_string())) }
                            td class="n" { (maybe(call.latency_ms)) }
                            td class="n" { (tokens(call.input_tokens)) } td class="n" { (tokens(call.output_tokens)) }
                            td class="long" { (text(call.error.as_deref().unwrap_or_default())) }
                        }
                    } }
                } }
            }
        }
        (fields("Task", &read.task))
        p class="note" { (text(&read.source_file)) ", line " (read.source_line) }
    }))
}

fn tokens(number: Option<i64>) -> String {
    number.map_or_else(String::new, |number| count(number.unsigned_abs()))
}

fn attempts(times: &[Times]) -> Vec<Stretch> {
    let begin = |times: &Times| {
        times.dispatched as f64 / 1000.0 - times.permit_wait_ms - times.rate_wait_ms
    };
    let first = times.iter().map(begin).fold(f64::INFINITY, f64::min);
    let stretch = |times: &Times| {
        let parts = [
            (times.permit_wait_ms + times.rate_wait_ms, "wait"),
            (times.connect_ms.unwrap_or_default(), "connect"),
            (times.server_ms.unwrap_or_default(), "server"),
            (times.client_ms.unwrap_or_default(), "client"),
        ];
        let named = parts.map(|(length, name)| format!("{name} {} ms", number(length)));
        Stretch {
            name: format!("attempt {}", times.attempt),
            title: named.join(", "),
            from: begin(times) - first,
            parts: parts.to_vec(),
        }
    };
    times.iter().map(stretch).collect()
}

fn stretches(calls: &[Call]) -> Vec<Stretch> {
    let first = calls
        .iter()
        .map(|call| call.started)
        .min()
        .unwrap_or_default();
    let stretch = |call: &Call| {
        let class = if call.outcome == OK {
            "server"
        } else {
            "failure"
        };
        let length = call.latency_ms.unwrap_or_default();
        let name = call.name.as_deref().unwrap_or_default();
        Stretch {
            name: call.kind.clone(),
            title: format!("{} {name}: {} ms", call.kind, number(length)),
            from: (call.started - first) as f64 / 1000.0,
            parts: vec![(length, class)],
        }
    };
    calls.iter().map(stretch).collect()
}

/// The answer of a rollout as it came; `None` if there is none.
pub(super) async fn raw(look: &Look, key: Key) -> Result<Option<String>, Error> {
    look.reader().await?.result(key).await
}

/// The whole text of an item of a conversation; `None` if there is no such item.
pub(super) async fn item(look: &Look, key: Key, item: usize) -> Result<Option<String>, Error> {
    let read = look.reader().await?.read(key).await?;
    Ok(read
        .and_then(|mut read| (item < read.items.len()).then(|| read.items.swap_remove(item).text)))
}
