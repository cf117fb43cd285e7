//! [`Site`]: the runs that are viewed, and which page answers which address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use maud::html;
use tokio::time::{Instant, sleep};
use url::form_urlencoded;

use super::html::{self, Links, SCRIPT, STYLE};
use super::look::{Look, ViewedRun};
use super::server::{Answer, Out};
use super::{compare, overview, rollout, search, sql, tasks};
use crate::error::Error;
use crate::transcript::Key;

const HTML: &str = "text/html; charset=utf-8";

/// Time after which a page that follows a run hears something, so that a closed one is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The runs that are viewed, at one address.
pub(super) struct Site {
    /// Where it listens.
    pub address: SocketAddr,
    /// The hash of the token that is the first part of every path.
    pub token_hash: blake3::Hash,
    /// The addresses of its pages.
    pub links: Links,
    /// The runs, whose numbers in addresses begin with 1.
    pub runs: Vec<ViewedRun>,
    /// Comparisons that were made.
    pub comparisons: compare::Comparisons,
}

/// What a request asks for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    path: String,
    pairs: Vec<(String, String)>,
}

impl Asked {
    /// Reads the path behind the token, and the query.
    pub(super) fn new(path: &str, query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self {
            path: path.to_owned(),
            pairs: pairs.into_owned().collect(),
        }
    }

    /// A parameter of the query; empty if it was not given.
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.pairs.iter().find(|(given, _)| given == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// A parameter that is a number.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.get(name).parse().ok()
    }

    /// The page of a long table, from 1.
    pub(super) fn page(&self) -> usize {
        self.number("page").unwrap_or(1).clamp(1, 1_000_000)
    }
}

impl Site {
    /// Returns the run of a number, which begins with 1.
    pub(super) fn run(&self, number: usize) -> Option<&ViewedRun> {
        self.runs.get(number.checked_sub(1)?)
    }

    /// Answers a request.
    pub(super) async fn answer(self: Arc<Self>, asked: Asked) -> Answer {
        let path = asked.path.clone();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            ["assets", "view.css"] => Answer::whole("text/css; charset=utf-8", STYLE),
            ["assets", "view.js"] => Answer::whole("text/javascript; charset=utf-8", SCRIPT),
            ["events"] => Answer::made_by("text/event-stream", |out| self.follow(out)),
            [] if self.runs.len() > 1 => self.page("Runs", None, move |site, out| async move {
                overview::runs(&site, &out).await
            }),
            ["search"] => self.page("Search", None, move |site, out| async move {
                search::search(&site, &asked, &out).await
            }),
            ["compare"] => self.page("Compare", None, move |site, out| async move {
                compare::comparison(&site, &asked, &out).await
            }),
            ["compare", "task"] => self.page("Compare", None, move |site, out| async move {
                compare::task(&site, &asked, &out).await
            }),
            [] => self.of_run(1, &[], asked).await,
            [number, rest @ ..] => {
                let number = number.parse().unwrap_or_default();
                let rest: Vec<&str> = rest.to_vec();
                self.of_run(number, &rest, asked).await
            }
        }
    }

    async fn of_run(self: Arc<Self>, number: usize, path: &[&str], asked: Asked) -> Answer {
        let Some(run) = self.run(number) else {
            return self.missing("There is no such page.");
        };
        let label = run.label.clone();
        let index = |text: &str| text.parse::<i64>().ok();
        let key = |task: &str, rollout: &str| {
            Some(Key {
                task_index: index(task)?,
                rollout_index: index(rollout)?,
            })
        };
        match path {
            [] => self.page(&label, Some(number), move |site, out| async move {
                let look = site.look(number).await?;
                overview::overview(&look, &site.links, &out).await
            }),
            ["tasks"] => self.page(
                &format!("Tasks of {label}"),
                Some(number),
                move |site, out| async move {
                    let look = site.look(number).await?;
                    tasks::list(&look, &site.links, &asked, &out).await
                },
            ),
            ["sql"] => match asked.get("format") {
                "csv" | "parquet" => match self.look(number).await {
                    Ok(look) => sql::download(look, &asked).await,
                    Err(error) => self.failed(&error),
                },
                _ => self.page(
                    &format!("SQL on {label}"),
                    Some(number),
                    move |site, out| async move {
                        let look = site.look(number).await?;
                        sql::query(&look, &site.links, &asked, &out).await
                    },
                ),
            },
            ["tasks", task] if let Some(task) = index(task) => {
                let made = async {
                    let look = self.look(number).await?;
                    tasks::task(&look, &self.links, task, asked.page()).await
                };
                self.whole(&format!("Task {task} of {label}"), number, made.await)
            }
            ["tasks", task, rollout] if let Some(key) = key(task, rollout) => {
                let made = async {
                    let look = self.look(number).await?;
                    rollout::rollout(&look, &self.links, key).await
                };
                let title = format!(
                    "Rollout {}/{} of {label}",
                    key.task_index, key.rollout_index
                );
                self.whole(&title, number, made.await)
            }
            ["tasks", task, rollout, "raw"] if let Some(key) = key(task, rollout) => {
                let made = async { rollout::raw(self.look(number).await?.as_ref(), key).await };
                self.raw("application/json", made.await)
            }
            ["tasks", task, rollout, "item", item]
                if let (Some(key), Ok(item)) = (key(task, rollout), item.parse()) =>
            {
                let made =
                    async { rollout::item(self.look(number).await?.as_ref(), key, item).await };
                self.raw("text/plain; charset=utf-8", made.await)
            }
            _ => self.missing("There is no such page."),
        }
    }

    /// Looks at a run.
    pub(super) async fn look(&self, number: usize) -> Result<Arc<Look>, Error> {
        match self.run(number) {
            Some(run) => run.look(number).await,
            None => Err(Error::Usage("there is no such run".to_owned())),
        }
    }

    /// A page that is sent as it is made.
    fn page<M>(
        self: Arc<Self>,
        title: &str,
        run: Option<usize>,
        make: impl FnOnce(Arc<Self>, Out) -> M + Send + 'static,
    ) -> Answer
    where
        M: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let head = html::head(title, &self.links, &self.places(run), true);
        Answer::made_by(HTML, |out| async move {
            out.put(head.into_string()).await;
            if let Err(error) = make(self, out.clone()).await {
                out.put(html::error(&error).into_string()).await;
            }
            out.put(html::foot().into_string()).await;
        })
    }

    /// A page that is there; `None` is one that does not exist.
    fn whole(&self, title: &str, run: usize, made: Result<Option<maud::Markup>, Error>) -> Answer {
        match made {
            Ok(Some(content)) => {
                let head = html::head(title, &self.links, &self.places(Some(run)), true);
                Answer::whole(
                    HTML,
                    html! { (head) (content) (html::foot()) }.into_string(),
                )
            }
            Ok(None) => self.missing("The run has no such task or rollout."),
            Err(error) => self.failed(&error),
        }
    }

    /// Something of an agent, as it came.
    fn raw(&self, media: &'static str, text: Result<Option<String>, Error>) -> Answer {
        match text {
            Ok(Some(text)) => Answer {
                is_raw: true,
                ..Answer::whole(media, text)
            },
            Ok(None) => self.missing("The run has no such answer."),
            Err(error) => self.failed(&error),
        }
    }

    fn missing(&self, what: &str) -> Answer {
        let head = html::head("Not found", &self.links, &self.places(None), false);
        let page = html! { (head) h1 { "Not found" } p { (what) } (html::foot()) };
        Answer {
            status: StatusCode::NOT_FOUND,
            ..Answer::whole(HTML, page.into_string())
        }
    }

    fn failed(&self, error: &Error) -> Answer {
        let head = html::head("Error", &self.links, &self.places(None), false);
        let page = html! { (head) h1 { "Error" } (html::error(error)) (html::foot()) };
        Answer {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            ..Answer::whole(HTML, page.into_string())
        }
    }

    /// The navigation of a page.
    fn places(&self, run: Option<usize>) -> Vec<(String, String)> {
        let run = run.or((self.runs.len() == 1).then_some(1));
        let mut places = Vec::new();
        for (name, page) in [("Overview", ""), ("Tasks", "tasks"), ("SQL", "sql")] {
            let place = run.and_then(|run| self.links.of_run(run, page));
            places.extend(place.map(|place| (name.to_owned(), place)));
        }
        let compare = (self.runs.len() > 1)
            .then(|| self.links.to("compare"))
            .flatten();
        places.extend(compare.map(|place| ("Compare".to_owned(), place)));
        places
    }

    /// Tells a page whenever one of the runs has changed.
    async fn follow(self: Arc<Self>, out: Out) {
        let pauses = self.runs.iter().map(ViewedRun::patience);
        let pause = pauses.max().unwrap_or_default();
        // What a page that was just made has shown.
        let mut seen = Vec::new();
        for run in &self.runs {
            seen.push(run.looked_at().await);
        }
        let mut said = Instant::now();
        loop {
            let mut is_news = false;
            for ((number, run), seen) in (1..).zip(&self.runs).zip(&mut seen) {
                // A page that is made now has this look, too. A run that can't be read now is looked at again.
                let look = run.look(number).await;
                let version = look.ok().map(|look| look.version).or(*seen);
                is_news |= seen.is_some() && version != *seen;
                *seen = version;
            }
            if is_news || said.elapsed() > HEARTBEAT {
                let event = if is_news {
                    "data: changed\n\n"
                } else {
                    ":\n\n"
                };
                if !out.put(event).await {
                    return;
                }
                said = Instant::now();
            }
            sleep(pause).await;
        }
    }
}
