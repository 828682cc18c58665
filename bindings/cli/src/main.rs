//! The native binary `cadenza`.

use std::process::ExitCode;

use cadenza_core::program::rhai::MeteredAllocator;
use mimalloc::MiMalloc;

/// Bounds the memory of Rhai programs, over an allocator that is quick at freeing what another thread allocated.
#[global_allocator]
static ALLOCATOR: MeteredAllocator<MiMalloc> = MeteredAllocator(MiMalloc);

fn main() -> ExitCode {
    let exit = cadenza_cli::main_with(std::env::args_os().collect(), None);
    // Exit codes are 0 to 130.
    ExitCode::from(u8::try_from(exit).unwrap_or(1))
}
