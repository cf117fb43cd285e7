//! The process between a sweep and one of NeMo Gym's programs: it ends the program, and all that descends from it, when the
//! sweep ends.
//!
//! Gym starts shells that start servers, and Ray starts daemons in sessions of their own: neither a process group nor the
//! death of a parent reaches them all. So the supervisor is the one that inherits orphans below it (Linux), and has ended
//! everything when it has no children left. It learns of the end of the sweep by the end of its standard input, which the
//! system closes even if the sweep was killed. If the supervisor is killed, the sweep inherits the orphans and kills them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getsid, kill_process, kill_process_group, setsid, wait,
    waitpid,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

/// The hidden command of the program.
pub(super) const COMMAND: &str = "supervise";

/// The order to outlive the sweep.
pub(super) const KEEP: u8 = b'k';

/// The order to kill at once.
pub(super) const KILL: u8 = b'9';

/// The time that processes have to end by themselves. NeMo Gym gives its servers half of that.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Processes that the system can't kill are left after this time.
const GIVE_UP: Duration = Duration::from_secs(4);

/// The pause between looks at what is left.
const TICK: Duration = Duration::from_millis(20);

/// Runs a program until it ends, a signal arrives, or standard input ends; then ends all its descendants. Returns the
/// program's exit code, or 128 and the signal that ended it.
///
/// # Errors
/// The program can't be started.
pub(crate) async fn supervise(program: &OsString, arguments: &[OsString]) -> std::io::Result<u8> {
    // A terminal's interrupt is for the sweep, which decides what follows from it.
    let _ = setsid();
    adopt_orphans()?;
    let mut children = signal(SignalKind::child())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut orders = orders()?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()?;
    let mut below = Below {
        program: child.id().cast_signed(),
        code: None,
    };
    let mut is_kept = false;
    let grace = loop {
        tokio::select! {
            order = orders.recv(), if !is_kept => match order {
                Some(KEEP) => is_kept = true,
                Some(_) => break Duration::ZERO,
                None => break GRACE,
            },
            _ = children.recv() => {
                below.reap();
                if below.code.is_some() {
                    break GRACE;
                }
            }
            _ = interrupt.recv() => break GRACE,
            _ = terminate.recv() => break GRACE,
            _ = hangup.recv() => {}
        }
    };
    below.end(grace, &mut orders).await;
    Ok(below.code.unwrap_or(1))
}

/// Makes this process the parent of all orphans below it, where the system can do that.
pub(super) fn adopt_orphans() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Kills what supervisors that were killed have left below this process, and waits for its end. `kept` is a supervisor that
/// stays. What a supervisor starts is in other sessions than this process; its other children are not.
pub(super) async fn kill_orphans(kept: Option<u32>) {
    let kept = kept.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let own = getsid(None);
    let is_orphan = |pid| getsid(Some(pid)) != own && Some(pid) != kept;
    let deadline = Instant::now() + GIVE_UP;
    while Instant::now() < deadline {
        let left = descendants(is_orphan);
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
            // The first thread of a process may have ended before others: only this tells. Children of others come later.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        sleep(TICK).await;
    }
}

/// Reads orders from standard input. The channel closes when that ends.
fn orders() -> std::io::Result<Receiver<u8>> {
    let (sender, receiver) = channel(4);
    // A thread of its own: a read of standard input can't be cancelled. It ends with the process.
    std::thread::Builder::new()
        .name("orders".to_owned())
        .spawn(move || {
            for order in std::io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.blocking_send(order).is_err() {
                    return;
                }
            }
        })?;
    Ok(receiver)
}

/// What descends from this process.
struct Below {
    program: i32,
    code: Option<u8>,
}

impl Below {
    /// Takes note of the processes that have ended. Returns whether there are children left.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.program => {
                    let signalled = status.terminating_signal().map(|signal| 128 + signal);
                    let code = status.exit_status().or(signalled).unwrap_or(1);
                    self.code = Some(u8::try_from(code).unwrap_or(1));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Asks all descendants to end, and kills those that have not after `grace`, or when the order comes.
    async fn end(&mut self, grace: Duration, orders: &mut Receiver<u8>) {
        let mut deadline = Instant::now() + grace;
        let mut asked = HashSet::new();
        while self.reap() && Instant::now() < deadline + GIVE_UP {
            if orders.try_recv() == Ok(KILL) {
                deadline = Instant::now();
            }
            let is_late = Instant::now() >= deadline;
            for pid in descendants(|_| true) {
                if is_late {
                    let _ = kill_process(pid, Signal::KILL);
                } else if asked.insert(pid) {
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            // Where the system does not list processes, it can signal those of the same group, and this one last.
            if cfg!(not(target_os = "linux")) {
                let signal = if is_late { Signal::KILL } else { Signal::TERM };
                let _ = kill_process_group(getpid(), signal);
            }
            sleep(TICK).await;
        }
    }
}

/// Returns the children of this process that are asked for, and all that descends from them, as `/proc` lists them.
fn descendants(is_asked: impl Fn(Pid) -> bool) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(Pid, i32)> = entries
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, parent) = state_and_parent(&stat)?;
            Some((pid, parent))
        })
        .collect();
    let children = |of: Pid| {
        let below = parents.iter();
        let below = below.filter(move |(_, parent)| *parent == of.as_raw_nonzero().get());
        below.map(|(pid, _)| *pid)
    };
    let mut found: Vec<Pid> = children(getpid()).filter(|pid| is_asked(*pid)).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(children(parent));
        next += 1;
    }
    found
}

/// Reads the state of a process and its parent from `/proc/PID/stat`, where the name may hold anything.
pub(super) fn state_and_parent(stat: &str) -> Option<(char, i32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, words.next()?.parse().ok()?))
}
