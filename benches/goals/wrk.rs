//! The limit of the loopback and the agent: [`Wrk`], the load generator of that name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::common::{Child, Usage};

/// `wrk` with one request that it sends again and again.
#[derive(Debug)]
pub struct Wrk {
    script: PathBuf,
    seconds: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Driven {
    /// Answers in all.
    pub requests: f64,
    /// Answers per second.
    pub rate: f64,
    /// What the process took.
    pub usage: Usage,
}

impl Wrk {
    /// Writes its script into `directory`; nothing where there is no `wrk`.
    pub fn new(directory: &Path, body: &str, seconds: u64) -> anyhow::Result<Option<Self>> {
        // It fails when it tells its version.
        let mut probe = Command::new("wrk");
        probe.arg("-v").stdout(Stdio::null()).stderr(Stdio::null());
        if probe.status().is_err() {
            return Ok(None);
        }
        let script = directory.join("post.lua");
        let text = format!(
            "wrk.method = \"POST\"\nwrk.headers[\"content-type\"] = \"application/json\"\nwrk.body = [==[{body}]==]\n"
        );
        std::fs::write(&script, text)?;
        Ok(Some(Self { script, seconds }))
    }

    /// Sends to `url` over so many connections.
    pub fn drive(&self, url: &str, connections: usize) -> anyhow::Result<Driven> {
        let mut command = Command::new("wrk");
        command.args(["-t", "1", "-c", &connections.to_string()]);
        command.args(["-d", &format!("{}s", self.seconds)]);
        command.arg("-s").arg(&self.script).arg(url);
        let (output, usage) = Child::start(&mut command)?.finish()?;
        ensure!(
            !output.contains("Non-2xx") && !output.contains("Socket errors"),
            "not all requests of wrk were answered well:\n{output}"
        );
        let told = |number: Option<&str>| -> anyhow::Result<f64> {
            let number = number.with_context(|| format!("wrk told no rate:\n{output}"))?;
            Ok(number.trim().parse()?)
        };
        let mut lines = output.lines();
        let mut rates = output.lines();
        Ok(Driven {
            requests: told(
                lines
                    .find_map(|line| line.split_once(" requests in "))
                    .map(|(n, _)| n),
            )?,
            rate: told(rates.find_map(|line| line.strip_prefix("Requests/sec:")))?,
            usage,
        })
    }
}
