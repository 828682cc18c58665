//! `log=callable`: each call's record as a dict, on the background writer's thread.

use std::sync::Arc;

use pyo3::prelude::*;

use cadenza_core::log::{BackgroundLog, LogSink, masked};
use cadenza_core::value::Value;

use crate::convert::to_python;

/// A log that a Python callable takes. What it raises is reported as unraisable and costs nothing else (AC-18).
pub(crate) fn sink(callable: &Bound<'_, PyAny>) -> Arc<dyn LogSink> {
    let callable = callable.clone().unbind();
    Arc::new(BackgroundLog::to_callback("a Python callable", move |record| {
        // At the very end of the process there is no interpreter, and nobody to tell.
        Python::try_attach(|py| {
            let line = to_python(py, &masked(&Value::Map(record.to_map())));
            if let Err(error) = line.and_then(|line| callable.bind(py).call1((line,))) {
                error.write_unraisable(py, Some(callable.bind(py)));
            }
        });
    }))
}
