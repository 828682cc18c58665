//! The rhai executor.
