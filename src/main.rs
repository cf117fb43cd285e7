use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use rollstream::cli::{self, Cli};

/// Rollouts are many small allocations that one thread makes and another frees, beside buffers of
/// megabytes that must go back to the system: what the C library's allocator is worst at.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
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
