//! The native binary `cadenza`.

use std::process::ExitCode;

use cadenza_core::program::rhai::MeteredAllocator;

/// Bounds the memory of Rhai programs.
#[global_allocator]
static ALLOCATOR: MeteredAllocator = MeteredAllocator;

fn main() -> ExitCode {
    let exit = cadenza_cli::main_with(std::env::args_os().collect(), None);
    // Exit codes are 0 to 130.
    ExitCode::from(u8::try_from(exit).unwrap_or(1))
}
