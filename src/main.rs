use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use mimalloc::MiMalloc;
use rollstream::cli::{self, Cli};
use tokio::runtime::Builder;

/// Rollouts are many small allocations that one thread makes and another frees, beside buffers of megabytes that must go
/// back to the system: what the C library's allocator is worst at.
///
/// Its feature `no_thp` keeps the process from getting huge pages: the system zeroes and counts one as a whole for the
/// first byte of it, again after each return, and most of what we allocate is smaller.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A blocking thread ends after it was idle for this long. A resume has one for each part that it reads, and a thread
/// that stays holds on to the memory that it worked with.
const IDLE: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    if let Some(page) = cli::guide_page(std::env::args_os()) {
        // A reader that has seen enough is no error.
        let _ = std::io::stdout().write_all(page.as_bytes());
        return ExitCode::SUCCESS;
    }
    let cli = match cli::translated(std::env::args_os()) {
        Ok(arguments) => Cli::parse_from(arguments),
        Err(error) => {
            cli::complain(&error);
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
            cli::complain(&error);
            ExitCode::from(error.exit_code())
        }
    };
    // What still runs on blocking threads has nobody left to answer to.
    runtime.shutdown_background();
    code
}
