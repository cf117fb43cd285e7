use std::process::ExitCode;

use clap::Parser;
use rollstream::cli::{self, Cli};

fn main() -> ExitCode {
    give_memory_back();
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::from(1);
        }
    };
    let code = match runtime.block_on(cli::run(cli)) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    };
    // What still runs on blocking threads has nobody left to answer to.
    runtime.shutdown_background();
    code
}

/// Has the allocator return large blocks to the system at once. Left alone, glibc learns from each
/// burst (a part that is encoded, a query over the run) to keep as much for the next, and a sweep's
/// memory grows with its length.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the C library has no safe way to be told")]
fn give_memory_back() {
    const THRESHOLD: libc::c_int = 128 * 1024;
    // SAFETY: `mallopt` only sets numbers of the allocator, and no other thread exists yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, THRESHOLD);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_memory_back() {}
