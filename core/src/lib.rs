//! Cadenza's core: objects whose methods are written by a model when they are first called.
//!
//! Words (`value`, `schema`, `ids`, `message`, `outcome`, `contract`) know nothing; decisions (`kernel`, `adapter`,
//! `prompt`) are pure; borders (`provider`, `program`, `tools`, `log`, `store`) touch the world; `runtime` performs what
//! the kernel asks for; `agent` is what users hold. ARCHITECTURE.md walks one call through them.

pub mod accounting;
pub mod adapter;
pub mod agent;
pub mod cancel;
pub mod canonical;
pub mod contract;
pub mod fork;
pub mod ids;
pub mod kernel;
pub mod log;
pub mod message;
pub mod outcome;
pub mod printable;
pub mod program;
pub mod prompt;
pub mod provider;
pub mod runtime;
pub mod schema;
pub mod store;
#[cfg(feature = "tokens")]
pub mod tokens;
pub mod tools;
pub mod value;
pub mod warning;
