//! Handles SIGINT, SIGTERM and SIGHUP.

use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::run::{Shutdown, StopReason};
use crate::show::Messages;

/// A listener for SIGINT and SIGTERM. It also catches SIGHUP and ignores it: a sweep outlives its terminal.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Error> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.hangup.recv() => {}
            }
        }
    }
}

/// Waits for SIGINT or SIGTERM.
pub(super) async fn interrupted() -> Result<(), Error> {
    Signals::listen()?.next().await;
    Ok(())
}

/// Counts interrupts from now on. SIGTERM and SIGHUP still end the process.
///
/// A thread of its own listens: queries can keep every thread of the runtime busy.
pub(super) fn interrupts() -> Result<watch::Receiver<u64>, Error> {
    let failed = |error| Error::failed("cannot listen for signals", error);
    let runtime = Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(failed)?;
    let (counted, count) = watch::channel(0);
    std::thread::Builder::new()
        .name("interrupts".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                let Ok(mut interrupt) = listen(SignalKind::interrupt()) else {
                    return;
                };
                while !counted.is_closed() && interrupt.recv().await.is_some() {
                    counted.send_modify(|count| *count += 1);
                }
            });
        })
        .map_err(failed)?;
    Ok(count)
}

fn listen(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| Error::failed("cannot listen for signals", error))
}

/// Stops a sweep on the first signal, drops the calls in flight on the second, and ends the process on the third.
/// `grace` is the time that the sweep gives the calls in flight. Dropping the returned value stops listening.
pub(super) fn stop_on_signal(
    shutdown: Shutdown,
    grace: Duration,
    messages: Messages,
) -> Result<JoinSet<()>, Error> {
    let mut signals = Signals::listen()?;
    let mut task = JoinSet::new();
    task.spawn(async move {
        signals.next().await;
        let grace = humantime::format_duration(grace);
        messages.say(&format!(
            "stopping: waiting up to {grace} for the calls in flight; interrupt again to drop them"
        ));
        shutdown.stop(StopReason::Signal);
        signals.next().await;
        messages.say("dropping the calls in flight");
        shutdown.abort();
        signals.next().await;
        // A store that does not answer can delay the landing for minutes. All answers are in the journal, and
        // a user who interrupts a third time wants the terminal back.
        messages.say(
            "exiting before all answers are in Parquet; `rollstream resume` writes them from the journal",
        );
        std::process::exit(130);
    });
    Ok(task)
}
