//! Kept programs.
