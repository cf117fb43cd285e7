use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use mimalloc::MiMalloc;
use rollstream::cli::{self, Cli};
use tokio::runtime::Builder;

/// Rollouts are many small allocations that one thread makes and another frees, beside buffers of
/// megabytes that must go back to the system: what the C library's allocator is worst at.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A thread for work that blocks ends when it has none for this long. A resume has one for each part
/// that it reads; those that stayed would hold on to the memory that they worked with.
const IDLE: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    use_small_pages();
    if let Some(page) = cli::guide_page(std::env::args_os()) {
        // A reader that has seen enough is no error.
        let _ = std::io::stdout().write_all(page.as_bytes());
        return ExitCode::SUCCESS;
    }
    let cli = match cli::translated(std::env::args_os()) {
        Ok(arguments) => Cli::parse_from(arguments),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(IDLE)
        .build();
    let runtime = match runtime {
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

/// Has the system back our memory with small pages. A huge page is zeroed and counted as a whole for
/// the first byte of it, again after each return to the system; what we allocate is mostly smaller.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the C library has no safe way to be told")]
fn use_small_pages() {
    // SAFETY: this `prctl` takes numbers alone. If it fails, all is as it was.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    }
}

#[cfg(not(target_os = "linux"))]
fn use_small_pages() {}
