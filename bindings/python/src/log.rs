//! `log=callable`: each call's record as a dict, on the background writer's thread.

use std::sync::Arc;

use pyo3::prelude::*;

use cadenza_core::log::record::CallRecord;
use cadenza_core::log::{BackgroundLog, LogSink, masked};
use cadenza_core::value::Value;

use crate::convert::to_python;

/// A log that a Python callable takes. What it raises is reported as unraisable and costs nothing else (AC-18).
#[derive(Debug)]
pub(crate) struct PyLog {
    /// `None` only while it is being dropped.
    log: Option<BackgroundLog>,
}

impl PyLog {
    pub(crate) fn new(callable: &Bound<'_, PyAny>) -> Self {
        let callable = callable.clone().unbind();
        let log = BackgroundLog::to_callback("a Python callable", move |record| {
            // At the very end of the process there is no interpreter, and nobody to tell.
            Python::try_attach(|py| {
                let line = to_python(py, &masked(&Value::Map(record.to_map())));
                if let Err(error) = line.and_then(|line| callable.bind(py).call1((line,))) {
                    error.write_unraisable(py, Some(callable.bind(py)));
                }
            });
        });
        Self { log: Some(log) }
    }
}

impl LogSink for PyLog {
    fn write(&self, record: &Arc<CallRecord>) {
        if let Some(log) = &self.log {
            log.write(record);
        }
    }

    fn flush(&self) {
        if let Some(log) = &self.log {
            log.flush();
        }
    }

    fn dropped(&self) -> u64 {
        self.log.as_ref().map_or(0, LogSink::dropped)
    }
}

impl Drop for PyLog {
    /// Ending the writer's thread waits for it, and the thread needs the GIL that the one who drops may hold.
    fn drop(&mut self) {
        let Some(log) = self.log.take() else { return };
        let mut log = Some(log);
        Python::try_attach(|py| {
            let log = log.take();
            py.detach(|| drop(log));
        });
        // Without an interpreter the thread may wait for it for ever: it ends with the process.
        std::mem::forget(log);
    }
}
