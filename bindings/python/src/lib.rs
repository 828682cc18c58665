//! The Python face of Cadenza: the private extension `cadenza._core`.
//!
//! It translates and decides nothing: names, options, limits and dispatch are the core's. What is Python's own lives
//! here: values, the GIL, signals, event loops, fork.

use std::sync::atomic::{AtomicBool, Ordering};

use cadenza_core::program::rhai::MeteredAllocator;
use mimalloc::MiMalloc;
use pyo3::prelude::*;
use pyo3::types::PyDict;

mod agent;
mod async_agent;
mod cli;
mod context;
mod convert;
mod coroutines;
mod errors;
mod log;
mod notebook;
mod options;
mod outcome;
mod program;
mod provider;
mod runtime;
mod serving;
mod signals;
mod surface;
mod tools;
mod tree;
mod watch;
mod workers;

/// Bounds the memory of Rhai programs, over an allocator that is quick at freeing what another thread allocated. Serves this extension alone, not the interpreter around it.
#[global_allocator]
static ALLOCATOR: MeteredAllocator<MiMalloc> = MeteredAllocator(MiMalloc);

/// What happens in a forked child before anything else.
#[pyfunction]
fn _after_fork_in_child(py: Python<'_>) {
    cadenza_core::fork::after_fork_in_child();
    signals::after_fork_in_child();
    workers::after_fork_in_child();
    async_agent::after_fork_in_child();
    // Without it the worker's last log lines are lost, which is no reason to fail the fork.
    drop(flush_at_worker_exit(py));
}

/// A worker of `multiprocessing` ends without `atexit`: its own list of things to do at the end has to know of the logs.
/// That list is emptied after the fork, and then those who asked for it are told.
fn flush_at_worker_exit(py: Python<'_>) -> PyResult<()> {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(util) = modules.get_item("multiprocessing.util")? else { return Ok(()) };
    // Children of this child inherit the list of those who asked.
    if !ASKED.swap(true, Ordering::AcqRel) {
        let core = py.import("cadenza._core")?;
        let told = (core.getattr("_flush_logs")?, core.getattr("_finalize_worker")?);
        util.call_method1("register_after_fork", told)?;
    }
    Ok(())
}

/// In a worker of `multiprocessing` that has just begun.
#[pyfunction]
fn _finalize_worker(flush_logs: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = flush_logs.py();
    let options = PyDict::new(py);
    options.set_item("exitpriority", 0)?;
    py.import("multiprocessing.util")?.call_method("Finalize", (py.None(), flush_logs), Some(&options)).map(drop)
}

/// Writes every log out; at exit.
#[pyfunction]
fn _flush_logs(py: Python<'_>) {
    py.detach(|| {
        cadenza_core::store::flush_all();
        cadenza_core::log::flush_all();
    });
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<agent::PyAgent>()?;
    module.add_class::<async_agent::PyAsyncAgent>()?;
    module.add_class::<async_agent::AsyncCall>()?;
    module.add_class::<watch::CallEvents>()?;
    module.add_class::<outcome::PyOutcome>()?;
    module.add_class::<runtime::PyRuntime>()?;
    module.add_class::<program::PyProgram>()?;
    module.add_class::<tree::PyCallTree>()?;
    module.add_class::<context::PyRuntimeContext>()?;
    module.add_class::<provider::PyModelRequest>()?;
    module.add("CadenzaError", py.get_type::<errors::CadenzaError>())?;
    module.add("OutcomeError", py.get_type::<errors::OutcomeError>())?;
    module.add("StoreError", py.get_type::<errors::PyStoreError>())?;
    module.add("OptionError", errors::option_error_type(py)?)?;
    module.add("BusyError", errors::busy_error_type(py)?)?;
    module.add_function(wrap_pyfunction!(runtime::default_runtime, module)?)?;
    module.add_function(wrap_pyfunction!(outcome::_outcome_from_dict, module)?)?;
    module.add_function(wrap_pyfunction!(cli::cli_main, module)?)?;
    module.add_function(wrap_pyfunction!(_flush_logs, module)?)?;
    module.add_function(wrap_pyfunction!(_after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(_finalize_worker, module)?)?;
    context::register(py)?;
    program::register(py)?;
    py.import("atexit")?.call_method1("register", (module.getattr("_flush_logs")?,))?;
    let hooks = pyo3::types::PyDict::new(py);
    hooks.set_item("after_in_child", module.getattr("_after_fork_in_child")?)?;
    // Only where there is a fork.
    if let Ok(register) = py.import("os").and_then(|os| os.getattr("register_at_fork")) {
        register.call((), Some(&hooks))?;
    }
    Ok(())
}
