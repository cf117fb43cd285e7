//! One or several runs as pages in a browser, and as a file to send around.
//!
//! ```text
//!   request ──► server (token, Host, Origin) ──► site ──► look (a run at one moment) ──► SQL
//!                                                  │
//!                                                  └──► overview, tasks, rollout, search, compare, sql ──► html, chart
//! ```
//!
//! A [`Viewer`] answers a browser; [`report()`] writes the same sections to one file. Both only read the runs.

mod chart;
mod compare;
mod distributions;
mod html;
mod look;
mod over_time;
mod overview;
mod report;
mod rollout;
mod search;
mod server;
mod site;
mod sql;
mod tasks;

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

pub(crate) use report::report;

use self::html::Links;
use self::look::ViewedRun;
use self::site::Site;
use crate::error::Error;
use crate::measure::MetricTables;
use crate::session::NamedRun;

/// A viewer that listens.
pub(crate) struct Viewer {
    listener: TcpListener,
    site: Site,
}

impl Viewer {
    /// Begins to listen. Without a token of the user's, a random one becomes part of every address.
    ///
    /// # Errors
    /// Another program has the port, or the system gives no random numbers.
    pub(crate) async fn open(
        listen: SocketAddr,
        token: Option<String>,
        runs: Vec<NamedRun>,
        metrics: Arc<MetricTables>,
    ) -> Result<Self, Error> {
        let failed = |error| Error::usage(format!("cannot listen on {listen}"), error);
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token = match token {
            Some(token) => token,
            None => random_token().map_err(|error| Error::failed("cannot make a token", error))?,
        };
        let runs = runs.into_iter();
        let site = Site {
            address,
            token_hash: blake3::hash(token.as_bytes()),
            links: Links {
                base: Some(format!("/{token}")),
            },
            runs: runs
                .map(|run| ViewedRun::new(run.label, run.run, Arc::clone(&metrics)))
                .collect(),
            comparisons: compare::Comparisons::default(),
        };
        Ok(Self { listener, site })
    }

    /// The address of the first page.
    pub(crate) fn url(&self) -> String {
        let home = self.site.links.to("").unwrap_or_default();
        format!("http://{}{home}", self.site.address)
    }

    /// Answers requests until it is dropped.
    pub(crate) async fn serve(self) {
        server::serve(self.listener, Arc::new(self.site)).await;
    }
}

/// 128 random bits in hexadecimal digits.
fn random_token() -> std::io::Result<String> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}
