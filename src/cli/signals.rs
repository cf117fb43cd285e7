use std::io::{self, Write};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::Error;
use crate::run::Shutdown;

/// Time that calls in flight get after the first signal.
const GRACE: Duration = Duration::from_secs(30);

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Error::Defect(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Waits for a signal.
pub(super) async fn interrupted() -> Result<(), Error> {
    Signals::listen()?.next().await;
    Ok(())
}

/// Stops a sweep on the first signal, drops what is in flight on the second, or after a time, and ends
/// the process on the next.
/// The signals are listened for until what is returned is dropped.
pub(super) fn stop_on_signal(shutdown: Shutdown) -> Result<JoinSet<()>, Error> {
    let mut signals = Signals::listen()?;
    let mut task = JoinSet::new();
    task.spawn(async move {
        signals.next().await;
        let say = |text: &str| {
            // A terminal that has gone need not be told.
            let _ = writeln!(io::stderr(), "{text}");
        };
        say("stopping: waiting up to 30 s for the calls in flight; interrupt again to drop them");
        shutdown.stop();
        if timeout(GRACE, signals.next()).await.is_ok() {
            say("dropping the calls in flight");
        }
        shutdown.abort();
        signals.next().await;
        // A store that does not answer can hold up the landing for minutes. What was answered is in
        // the journal; whoever asks a third time wants the terminal back.
        say("not waiting for what was answered to land; --resume lands it");
        std::process::exit(130);
    });
    Ok(task)
}
