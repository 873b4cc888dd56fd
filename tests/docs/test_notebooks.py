"""The notebooks: kept without outputs, listed, and run."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_all_are_listed() -> None:
    listed = re.findall(r"\]\(([\w-]+\.ipynb)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [path.name for path in NOTEBOOKS] and len(listed) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_cleared(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_with_cards_and_plots_inline(path: Path, tmp_path: Path) -> None:
    notebook = NotebookClient(read(path), timeout=3600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = {kind for output in shown if "data" in output for kind in output.data}
    assert "image/png" in kinds
    assert any("tasks: <b>" in output.data.get("text/html", "") for output in shown if "data" in output)
    assert not [output.text for output in shown if output.output_type == "stream" and output.name == "stderr"]
    if "ProgressBar" in path.read_text(encoding="utf-8"):
        assert "application/vnd.jupyter.widget-view+json" in kinds
