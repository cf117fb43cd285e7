//! The processes between a sweep and one of NeMo Gym's programs: they end the program, and all that descends from it, when
//! the sweep ends.
//!
//! Gym starts shells that start servers, and Ray starts daemons in sessions of their own: neither a process group nor the
//! death of a parent reaches them all. So the supervisor is the one that inherits orphans below it (Linux), and has ended
//! everything when it has no children left. It learns of the end of the sweep by the end of its standard input, which the
//! system closes even if the sweep was killed. If the supervisor is killed, the sweep inherits the orphans and kills them.
//! There are two supervisors, one below the other, so that one of the three is left to do so if two are killed at once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, setsid, wait, waitpid,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

/// The hidden command of the program, and its flag for the first of two.
pub(super) const COMMAND: &str = "supervise";
pub(super) const FIRST: &str = "--first";

/// The name of the process: whoever kills all processes with the program's own name leaves this one to end the servers. So
/// no argument that it gets from the program has that name in it.
pub(super) const NAME: &str = "gym-supervisor";

/// The order to outlive the sweep.
pub(super) const KEEP: u8 = b'k';

/// The order to end, as if the sweep had ended. It leaves the pipe open for [`KILL`].
pub(super) const END: u8 = b'e';

/// The order to kill at once.
pub(super) const KILL: u8 = b'9';

/// The time that processes have to end by themselves. NeMo Gym gives its servers half of that.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Processes that the system can't kill are left after this time.
const GIVE_UP: Duration = Duration::from_secs(4);

/// The pause between looks at what is left.
const TICK: Duration = Duration::from_millis(20);

/// Runs a program until it ends, a signal arrives, or standard input ends; then ends all its descendants. Returns the
/// program's exit code, or 128 and the signal that ended it. `is_first`: runs the second supervisor, which runs the program.
///
/// # Errors
/// The program can't be started.
pub(crate) async fn supervise(
    is_first: bool,
    program: &OsString,
    arguments: &[OsString],
) -> std::io::Result<u8> {
    // Other systems have no such file, and show the name that the process was started with.
    let _ = std::fs::write("/proc/self/comm", NAME);
    // A terminal's interrupt is for the sweep, which decides what follows from it.
    let _ = setsid();
    adopt_orphans()?;
    let mut children = signal(SignalKind::child())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut orders = orders()?;
    let mut command = if is_first {
        let mut second = Command::new(std::env::current_exe()?);
        second.arg0(NAME).arg(COMMAND).arg(program);
        second.stdin(Stdio::piped());
        second
    } else {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        command
    };
    let child = command.args(arguments).spawn()?;
    let mut below = Below {
        program: child.id().cast_signed(),
        code: None,
    };
    let mut is_kept = false;
    let grace = loop {
        tokio::select! {
            order = orders.recv(), if !is_kept => match order {
                Some(KEEP) => is_kept = true,
                Some(KILL) => break Duration::ZERO,
                _ => break GRACE,
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
    // Ends the second one where the system lists no processes.
    drop(child);
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
    let kept = kept.map(u32::cast_signed);
    // As the system lists them: a session that began outside this container has no number that could be asked for.
    let own = std::fs::read_to_string("/proc/self/stat");
    let own = own.ok().and_then(|stat| Stat::parse(&stat));
    let own = own.map_or(0, |stat| stat.session);
    let is_orphan = |pid: Pid, session| session != own && Some(pid.as_raw_nonzero().get()) != kept;
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
            for pid in descendants(|_, _| true) {
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

/// Returns the children of this process that are asked for, by process and session, and all that descends from them, as
/// `/proc` lists them.
fn descendants(is_asked: impl Fn(Pid, i32) -> bool) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes: Vec<(Pid, Stat)> = entries
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, Stat::parse(&stat)?))
        })
        .collect();
    let children = |of: Pid| {
        let of = of.as_raw_nonzero().get();
        processes.iter().filter(move |(_, stat)| stat.parent == of)
    };
    let asked = children(getpid()).filter(|(pid, stat)| is_asked(*pid, stat.session));
    let mut found: Vec<Pid> = asked.map(|(pid, _)| *pid).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(children(parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// What `/proc/PID/stat` says of a process.
pub(super) struct Stat {
    state: char,
    parent: i32,
    session: i32,
}

impl Stat {
    /// Reads the line of a process, whose name may hold anything.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        Some(Self {
            state: words.next()?.chars().next()?,
            parent: words.next()?.parse().ok()?,
            // After the group.
            session: words.nth(1)?.parse().ok()?,
        })
    }

    /// Returns whether the process has ended, and only its parent has not taken note.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_and_outside_its_container() {
        let stat = Stat::parse("7 (a) b (c) Z 1 0 0 34816 7").unwrap();
        assert!(stat.has_ended());
        assert_eq!((stat.parent, stat.session), (1, 0));
    }
}
