use std::process::ExitCode;

use clap::Parser;
use rollstream::cli::{self, Cli};

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
