//! What every page has: its head, its navigation, its tables and the addresses of others.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use url::form_urlencoded::Serializer;

use crate::error::Error;
use crate::show::{number, visible_lines};

/// The style sheet of pages and reports.
pub(super) const STYLE: &str = include_str!("view.css");

/// The script of the pages. They can be read without it.
pub(super) const SCRIPT: &str = include_str!("view.js");

/// The addresses of pages. In a report there are none.
#[derive(Debug, Clone, Default)]
pub(super) struct Links {
    /// What every address begins with.
    pub base: Option<String>,
}

impl Links {
    /// The page at a path.
    pub(super) fn to(&self, path: &str) -> Option<String> {
        Some(format!("{}/{path}", self.base.as_ref()?))
    }

    /// A page of a run.
    pub(super) fn of_run(&self, run: usize, page: &str) -> Option<String> {
        self.to(&format!("{run}/{page}"))
    }

    /// The page of a task.
    pub(super) fn task(&self, run: usize, task: i64) -> Option<String> {
        self.to(&format!("{run}/tasks/{task}"))
    }

    /// The page of a rollout.
    pub(super) fn rollout(&self, run: usize, task: i64, rollout: i64) -> Option<String> {
        self.to(&format!("{run}/tasks/{task}/{rollout}"))
    }
}

/// Writes the query of an address. Values that are empty are left out.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let mut query = Serializer::new(String::from("?"));
    query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

/// The part of a page before its content. `follows` says that the page changes with its run.
pub(super) fn head(
    title: &str,
    links: &Links,
    places: &[(String, String)],
    follows: bool,
) -> Markup {
    let asset = |name: &str| links.to(&format!("assets/{name}"));
    html! {
        (DOCTYPE)
        // Tags that `foot` closes: a page is sent in pieces.
        (PreEscaped("<html lang=\"en\">"))
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – rollstream" }
                @match asset("view.css") {
                    Some(style) => {
                        link rel="stylesheet" href=(style);
                        link rel="icon" href="data:,";
                        script src=[asset("view.js")] defer data-follows=[follows.then(|| links.to("events")).flatten()] {}
                    }
                    None => {
                        meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                        style { (PreEscaped(STYLE)) }
                    }
                }
            }
            (PreEscaped("<body><a class=\"skip\" href=\"#main\">Skip to the content</a>"))
            header {
                @if let Some(home) = links.to("") { a class="home" href=(home) { "rollstream" } }
                nav {
                    @for (name, place) in places { " " a href=(place) { (name) } }
                }
                @if let Some(search) = links.to("search") {
                    form action=(search) role="search" {
                        input type="search" name="q" placeholder="Search prompts and answers" aria-label="Search prompts and answers";
                    }
                }
            }
            (PreEscaped("<main id=\"main\">"))
    }
}

/// The end of a page.
pub(super) fn foot() -> Markup {
    PreEscaped("</main></body></html>".to_owned())
}

/// A text of an agent or a user, in which what a reader could not see is written out.
pub(super) fn text(text: &str) -> Markup {
    html! { (visible_lines(text)) }
}

/// A number, or a dash where there is none.
pub(super) fn maybe(value: Option<f64>) -> String {
    value
        .filter(|value| value.is_finite())
        .map_or_else(|| "–".to_owned(), number)
}

/// An error where a part of a page should be.
pub(super) fn error(error: &Error) -> Markup {
    html! { p class="error" role="alert" { (text(&error.report())) } }
}

/// A bar for a share between 0 and 1.
pub(super) fn bar(share: f64) -> Markup {
    let share = if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    };
    html! {
        svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect class="rest" width="100" height="8" {}
            rect class="done" width=((share * 1000.0).round() / 10.0) height="8" {}
        }
    }
}

/// Links to the pages of a long table before and after this one; nothing if this is the only one.
pub(super) fn pages(page: usize, has_more: bool, link: impl Fn(usize) -> Option<String>) -> Markup {
    if page == 1 && !has_more {
        return html! {};
    }
    html! {
        nav class="pages" aria-label="Pages" {
            @if page > 1 { a rel="prev" href=[link(page - 1)] { "← previous" } }
            " page " (page) " "
            @if has_more { a rel="next" href=[link(page + 1)] { "next →" } }
        }
    }
}
