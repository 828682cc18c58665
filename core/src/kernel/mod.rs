//! The kernel.
pub mod transcript;
