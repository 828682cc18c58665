//! The `cadenza` command.
fn main() {}
