use std::net::TcpListener;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far longer than anything takes: a test that fails must not hang.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so. `what` says what it is not, should it never be.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        // Only spares the processor; nothing depends on it.
        sleep(Duration::from_millis(5));
    }
}

/// Sends a signal, such as `INT`, to a process.
#[track_caller]
pub fn signal(name: &str, pid: u32) {
    let kill = format!("kill -{name} {pid}");
    let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(sent.success(), "{kill}");
}

/// A free port below those that systems give away by themselves: nobody takes it until the test's own server starts.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new((std::process::id() % 600 * 16) as u16));
    loop {
        let port = 10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
