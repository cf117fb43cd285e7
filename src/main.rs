use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Rollouts are many small allocations that one thread makes and another frees, beside buffers of megabytes that must go
/// back to the system: what the C library's allocator is worst at.
///
/// Its feature `no_thp` keeps the process from getting huge pages: the system zeroes and counts one as a whole for the
/// first byte of it, again after each return, and most of what we allocate is smaller.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    rollstream::cli::main()
}
