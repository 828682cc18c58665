//! The execution contract, proved against the kernel: text traces, golden vectors, properties.
//!
//! Everything goes through the scripted bench of `cadenza_core::kernel::script`, which after each run also checks what
//! holds for every run: one terminal entry, legal transitions, digests that fold, a chain that verifies, a replay that
//! ends the same (EC-DG1, EC-S5, EC-S6, EC-ID1, EC-IE1, EC-H1, EC-RP1, EC-RP2).

#[path = "kernel/adapter.rs"]
mod adapter;
#[path = "kernel/chain.rs"]
mod chain;
#[path = "kernel/contract.rs"]
mod contract;
#[path = "kernel/machine.rs"]
mod machine;
#[path = "kernel/profiles.rs"]
mod profiles;
#[path = "kernel/properties.rs"]
mod properties;
#[path = "kernel/trace.rs"]
mod trace;
