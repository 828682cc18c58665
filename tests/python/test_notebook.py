"""The example notebook runs from top to bottom, as a user would run it."""

from __future__ import annotations

import pathlib

import pytest

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(180)
def test_the_example_notebook_runs(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert all(output.output_type != "error" for output in outputs)
    html = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any("cadenza-" in page for page in html), "agents and outcomes show themselves in a notebook"
