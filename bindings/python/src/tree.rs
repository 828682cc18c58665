//! `cadenza.CallTree`: one ended call with the calls that its program made.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use cadenza_core::runtime::calls::{CALL_FIELDS, CallTree};

use crate::convert::fields;
use crate::notebook;

/// One ended call with the calls that its program made, and theirs.
///
/// `call` is the call as Runtime.calls() has it, `children` are trees again. In a notebook it shows itself.
#[pyclass(module = "cadenza", name = "CallTree", frozen)]
pub(crate) struct PyCallTree {
    tree: CallTree,
}

impl PyCallTree {
    pub(crate) fn new(tree: CallTree) -> Self {
        Self { tree }
    }
}

#[pymethods]
impl PyCallTree {
    /// The call as a dict.
    #[getter]
    fn call<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        fields(py, &CALL_FIELDS, &self.tree.call)
    }

    /// What its program called, in the order in which that began.
    #[getter]
    fn children(&self) -> Vec<Self> {
        self.tree.children.iter().cloned().map(Self::new).collect()
    }

    fn __repr__(&self) -> String {
        let (role, method) = (self.tree.text("role"), self.tree.text("method"));
        format!("<CallTree {role}.{method}: {}, {} calls>", self.tree.text("outcome_status"), self.tree.count())
    }

    /// One line per call, children below their callers.
    fn __str__(&self) -> String {
        let mut text = String::new();
        write(&self.tree, 0, &mut text);
        text
    }

    fn _repr_html_(&self) -> String {
        notebook::call_tree(&self.tree)
    }
}

fn write(tree: &CallTree, depth: usize, text: &mut String) {
    text.push_str(&"  ".repeat(depth));
    text.push_str(&notebook::call_line(tree));
    text.push('\n');
    tree.children.iter().for_each(|child| write(child, depth + 1, text));
}
