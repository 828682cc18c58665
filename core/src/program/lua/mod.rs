//! The lua executor.
