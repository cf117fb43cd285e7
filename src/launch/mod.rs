//! What happens around a sweep that NeMo Gym's own programs serve: its data is prepared and its servers are started before,
//! and nothing of them is left after.
//!
//! [`Launch`] runs `gym dataset collate` and `gym env start` at the same time, each below two processes that [`supervise`] and
//! end when the one above does, however that happens:
//!
//! ```text
//! rollstream collect ──pipe──► supervise --first ──pipe──► supervise ──► gym env start ──► servers, Ray
//!                               at its end: SIGTERM, then SIGKILL, to all below
//! ```
//!
//! Only the command line uses this module.

mod error;
mod process;
mod program;
mod readiness;
mod supervisor;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::time::sleep;

use crate::config::{ServerUrl, Settings};
pub use error::{LaunchError, LogEnd};
use process::Supervised;
use program::{GymProgram, prepared_data, quoted};
pub(crate) use program::{install_root, roots};
use readiness::{FINGERPRINT, Head, Instance, Readiness, address, free_place};
use supervisor::kill_orphans;
pub(crate) use supervisor::supervise;

/// The pause between looks at the programs and servers.
const TICK: Duration = Duration::from_millis(200);

/// The first remark on what is being waited for comes after this time, further ones at [`REMARKS`].
const FIRST_REMARK: Duration = Duration::from_secs(10);
const REMARKS: Duration = Duration::from_secs(30);

/// While NeMo Gym starts its servers and one of them is gone, it has this time to say why: it may be ending all of them, one
/// after the other, because of something else.
const EXPLANATION: Duration = Duration::from_secs(30);

/// NeMo Gym's programs for one sweep. Dropping it ends them, unless they are kept.
#[derive(Debug)]
pub struct Launch {
    program: GymProgram,
    /// The prepared split; none where the input is a file, or the run has its tasks already.
    data: Option<PathBuf>,
    reuses_data: bool,
    keeps_servers: bool,
    logs: Option<TempDir>,
    preparation: Option<Supervised>,
    servers: Option<Supervised>,
    head: Option<Head>,
    /// When a server was first seen to be gone.
    gone_since: Option<Instant>,
}

impl Launch {
    /// Plans what the settings ask for; none if they name no configuration of NeMo Gym. `secrets` are overrides for its
    /// programs that are no settings.
    ///
    /// # Errors
    /// There is no NeMo Gym, or nothing to send to its servers.
    pub fn of(settings: &Settings, secrets: Vec<String>) -> Result<Option<Self>, LaunchError> {
        if settings.config_paths.is_empty() {
            return Ok(None);
        }
        if settings.split.is_none() && settings.input.is_empty() && !settings.resume {
            return Err(LaunchError::NoInput);
        }
        let program = GymProgram::find(settings, secrets)?;
        let data = settings.split.map(|split| {
            let folder = prepared_data(settings);
            folder.join(format!("{split}.jsonl"))
        });
        Ok(Some(Self {
            program,
            data,
            reuses_data: settings.reuse_existing_data_preparation,
            keeps_servers: settings.keep_servers,
            logs: None,
            preparation: None,
            servers: None,
            head: None,
            gone_since: None,
        }))
    }

    /// Prepares the data and starts the servers, waits for both, and puts the input and the address of the head server
    /// into the settings. `say` gets a line for each step.
    ///
    /// # Errors
    /// A program failed, a server died, or the servers were not ready in time. Whoever started this calls
    /// [`Self::stop`] then, too.
    pub async fn start(
        &mut self,
        settings: &mut Settings,
        say: impl Fn(&str),
    ) -> Result<(), LaunchError> {
        let started = Instant::now();
        let logs = tempfile::Builder::new()
            .prefix("gym-logs-")
            .tempdir()
            .map_err(LaunchError::Logs)?;
        let folder = logs.path().to_owned();
        self.logs = Some(logs);
        self.prepare(&folder, &say)?;
        let mut readiness = self.serve(settings, &folder, &say).await?;
        let mut is_ready = false;
        let mut remark = FIRST_REMARK;
        loop {
            if self.is_prepared()? {
                self.preparation = None;
                say(&format!(
                    "the data is prepared ({})",
                    seconds(started.elapsed())
                ));
            }
            if !is_ready && readiness.look().await {
                is_ready = true;
                self.tell_ready(readiness.head_server(), started, &say);
            }
            self.check(readiness.head(), EXPLANATION)?;
            if is_ready && self.preparation.is_none() {
                break;
            }
            if !is_ready && readiness.is_late() {
                return Err(LaunchError::Deadline {
                    waited: seconds(started.elapsed()),
                    missing: readiness.missing().await,
                    log: self.log_of(None),
                });
            }
            if started.elapsed() >= remark {
                let missing = if is_ready {
                    "the data".to_owned()
                } else {
                    readiness.missing().await
                };
                say(&format!(
                    "waiting for {missing} ({})",
                    seconds(started.elapsed())
                ));
                remark = started.elapsed() + REMARKS;
            }
            sleep(TICK).await;
        }
        let head = readiness.into_head();
        settings.head_server = Some(head.url().clone());
        self.head = Some(head);
        if let Some(data) = &self.data {
            settings.input = vec![data.display().to_string()];
        }
        Ok(())
    }

    /// Puts the data that was prepared before and the address of servers that run already into the settings.
    ///
    /// # Errors
    /// Data or servers are not there.
    pub async fn reuse(&self, settings: &mut Settings) -> Result<(), LaunchError> {
        if let Some(data) = &self.data {
            if !data.exists() {
                return Err(LaunchError::NotPrepared { path: data.clone() });
            }
            settings.input = vec![data.display().to_string()];
        }
        let url = address(settings)?;
        let readiness = Readiness::new(url.clone())?;
        if !readiness.has_fingerprint(&self.program.fingerprint()).await {
            return Err(LaunchError::NotRunning { url });
        }
        settings.head_server = Some(url);
        Ok(())
    }

    /// Says that the servers are ready. From here on, those that are kept outlive this process.
    fn tell_ready(&mut self, head: &Head, started: Instant, say: &impl Fn(&str)) {
        say(&format!(
            "NeMo Gym's {} servers are ready ({})",
            head.servers().len(),
            seconds(started.elapsed())
        ));
        if let Some(servers) = self.servers.as_mut().filter(|_| self.keeps_servers) {
            servers.keep();
            say(&format!(
                "the servers stay at {}; to stop them: kill {}",
                head.url(),
                servers.pid()
            ));
        }
    }

    /// Starts to prepare the data, unless that of an earlier sweep is reused.
    fn prepare(&mut self, logs: &Path, say: &impl Fn(&str)) -> Result<(), LaunchError> {
        let Some((data, folder)) = self
            .data
            .as_deref()
            .and_then(|data| Some((data, data.parent()?)))
        else {
            return Ok(());
        };
        if self.reuses_data && data.exists() {
            say(&format!(
                "uses the data prepared before: {}",
                data.display()
            ));
            return Ok(());
        }
        let more = [
            "++mode=train_preparation".to_owned(),
            "++should_download=true".to_owned(),
            format!("++output_dirpath={}", quoted(&folder.display().to_string())),
        ];
        say(&format!("prepares {}", data.display()));
        let arguments = self.program.arguments(&["dataset", "collate"], more);
        let log = logs.join("data.log");
        self.preparation = Some(Supervised::start(&self.program, arguments, log)?);
        Ok(())
    }

    /// Returns whether the preparation of the data has just ended well.
    fn is_prepared(&mut self) -> Result<bool, LaunchError> {
        let (Some(preparation), Some(data)) = (&mut self.preparation, &self.data) else {
            return Ok(false);
        };
        let Some(how) = preparation.ended() else {
            return Ok(false);
        };
        if !how.success() {
            return Err(LaunchError::Failed {
                command: "gym dataset collate",
                how,
                log: preparation.log_end(&self.program),
            });
        }
        if !data.exists() {
            return Err(LaunchError::NoData {
                path: data.clone(),
                log: preparation.log_end(&self.program),
            });
        }
        Ok(true)
    }

    /// Starts the servers, or finds those that an earlier sweep has kept.
    async fn serve(
        &mut self,
        settings: &Settings,
        logs: &Path,
        say: &impl Fn(&str),
    ) -> Result<Readiness, LaunchError> {
        let url = address(settings)?;
        let fingerprint = self.program.fingerprint();
        let readiness = Readiness::new(url.clone())?;
        if readiness.has_fingerprint(&fingerprint).await {
            say(&format!("uses the servers that run at {url}"));
            return Ok(readiness);
        }
        let (host, port) = free_place(&url)?;
        let at: ServerUrl = format!("http://{host}:{port}")
            .parse()
            .map_err(LaunchError::Address)?;
        if at != url {
            say(&format!("{url} is taken; the head server is {at}"));
        }
        let logs_of_servers = self.program.logs_of_servers(logs);
        let more = [
            format!("++head_server.host={}", quoted(&host)),
            format!("++head_server.port={port}"),
            format!(
                "++nemo_gym_log_dir={}",
                quoted(&logs_of_servers.display().to_string())
            ),
            format!("++{FINGERPRINT}={fingerprint}"),
        ];
        say(&format!("starts NeMo Gym's servers at {at}"));
        let arguments = self.program.arguments(&["env", "start"], more);
        let log = logs.join("gym-env-start.log");
        self.servers = Some(Supervised::start(&self.program, arguments, log)?);
        Readiness::new(at)
    }

    /// Waits until one of the servers dies. Never ends while all of them are well.
    pub async fn died(&mut self) -> LaunchError {
        loop {
            let head = self.head.take();
            let checked = self.check(head.as_ref(), Duration::ZERO);
            self.head = head;
            if let Err(error) = checked {
                return error;
            }
            sleep(TICK).await;
        }
    }

    /// Fails if the program that started the servers has ended, or if a server has died and the program has not ended within
    /// `patience`.
    fn check(&mut self, head: Option<&Head>, patience: Duration) -> Result<(), LaunchError> {
        let instances = head.map(Head::servers).unwrap_or_default();
        let dead: Vec<&Instance> = instances
            .iter()
            .filter(|server| !server.is_alive())
            .collect();
        if let Some(first) = dead.first() {
            let waited = self.gone_since.get_or_insert_with(Instant::now).elapsed();
            // All at once: the program that started them has ended, and is about to be reported.
            let are_all = dead.len() > 1 && dead.len() == instances.len();
            if self.servers.is_none() || (waited >= patience && !are_all) {
                return Err(self.of_dead(first.name.clone()));
            }
        }
        let Some(servers) = &mut self.servers else {
            return Ok(());
        };
        let Some(how) = servers.ended() else {
            return Ok(());
        };
        let log = servers.log_end(&self.program);
        if let Some(server) = log.dead_server() {
            return Err(self.of_dead(server));
        }
        Err(LaunchError::Failed {
            command: "gym env start",
            how,
            log,
        })
    }

    fn of_dead(&self, server: String) -> LaunchError {
        LaunchError::Died {
            log: self.log_of(Some(&server)),
            server,
        }
    }

    /// Returns the end of the log of a server, or else of the program that started it. The logs outlive this process.
    fn log_of(&self, server: Option<&str>) -> LogEnd {
        let folder = self.logs.as_ref().map(TempDir::path);
        let own = server.zip(folder).map(|(server, folder)| {
            let folder = self.program.logs_of_servers(folder);
            LogEnd::read(
                folder.join(format!("{}.log", server.replace('/', "_"))),
                &self.program,
            )
        });
        match (own, &self.servers) {
            (Some(own), _) if !own.is_empty() => own,
            (_, Some(servers)) => servers.log_end(&self.program),
            (own, None) => own.unwrap_or_default(),
        }
    }

    /// Returns whether [`Self::stop`] has something to end.
    pub fn will_end(&self) -> bool {
        let mut started = self.preparation.iter().chain(&self.servers);
        started.any(|process| !process.is_kept())
    }

    /// Ends what was started, and waits for it. Logs stay if `failed`, and those of servers that are kept.
    pub async fn stop(&mut self, failed: bool) {
        for process in self.processes() {
            process.stop().await;
        }
        self.kill_orphans().await;
        let is_kept = self.servers.as_ref().is_some_and(Supervised::is_kept);
        if let Some(logs) = self.logs.take().filter(|_| failed || is_kept) {
            let _ = logs.keep();
        }
    }

    /// Ends what was started without giving it time to end by itself.
    pub async fn kill(&mut self) {
        for process in self.processes() {
            process.kill().await;
        }
        self.kill_orphans().await;
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Supervised> {
        self.preparation.iter_mut().chain(&mut self.servers)
    }

    async fn kill_orphans(&mut self) {
        let servers = self.servers.as_ref();
        let kept = servers.filter(|servers| servers.is_kept());
        let kept = kept.map(Supervised::pid);
        if self.processes().any(Supervised::left_orphans) {
            kill_orphans(kept).await;
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}
