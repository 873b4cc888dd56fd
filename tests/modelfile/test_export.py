"""`oarlock export`: a graph that answers as torch does, or a sentence and no file."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from conftest import Command, make_task, make_tiny_convnet, make_tiny_trunk
from oarlock import Learner, load
from oarlock.modelfile import export
from oarlock.modelfile.export import Graph

TEST = make_task([0, 1, 2, 3, 4], 5, seed=1)
SMALL = {"epochs": 1, "width": 6, "wing": 4, "grow_below": 0.5}


def save(path: Path, method: str = "oar", convolutional: bool = False, **options: object) -> Path:
    trunk = make_tiny_convnet() if convolutional else make_tiny_trunk()
    learner = Learner(method, trunk=trunk, memory=20, **options)
    learner.learn(*make_task([0, 1])).learn(*make_task([2, 3, 4])).save(path)
    return path


def ask(graph: Path) -> tuple[np.ndarray, np.ndarray, dict]:
    session = onnxruntime.InferenceSession(graph)
    answers = session.run(None, {"images": TEST[0].transpose(0, 3, 1, 2)})
    described = session.get_modelmeta().custom_metadata_map
    return *answers, {key: json.loads(value) for key, value in described.items()}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("oar", SMALL),
        ("oar", {**SMALL, "few": 0}),
        ("oar", {**SMALL, "convolutional": True}),
        pytest.param("tpl", SMALL, marks=pytest.mark.slow),
        pytest.param("oar", {**SMALL, "detector": "memory"}, marks=pytest.mark.slow),
        pytest.param("derpp", {"epochs": 1}, marks=pytest.mark.slow),
        pytest.param("icarl", {"epochs": 1}, marks=pytest.mark.slow),
        pytest.param("l2p", {"epochs": 1}, marks=pytest.mark.slow),
        ("slda", {}),
    ],
)
def test_a_graph_answers_as_the_model_does(
    method: str, options: dict, tmp_path: Path, oarlock: Command, capsys: pytest.CaptureFixture
) -> None:
    model = save(tmp_path / "model.oar", method, **options)
    assert oarlock("export", model, "--onnx", tmp_path / "model.onnx", "--json") == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["bytes"] == (tmp_path / "model.onnx").stat().st_size and printed["difference"] < 1e-4
    learner = load(model)
    log_probabilities, known, described = ask(tmp_path / "model.onnx")
    assert np.allclose(np.exp(log_probabilities), learner.predict_proba(TEST[0]), atol=1e-4)
    assert np.allclose(known, learner.in_distribution(TEST[0]), rtol=1e-4, atol=1e-4)
    assert described["classes"] == [0, 1, 2, 3, 4] and described["tasks"] == [[0, 1], [2, 3, 4]]
    assert described["unknown_below"]["0.95"] == learner.threshold(0.95)
    assert described["image_size"] == 16


def test_a_class_that_was_learned_in_parts_has_one_output(tmp_path: Path) -> None:
    learner = load(save(tmp_path / "model.oar", few=60, **SMALL))
    learner.learn(*make_task([1, 5], seed=3), more=True).merge(0, 4)
    export.export_onnx(learner, tmp_path / "model.onnx")
    log_probabilities, _, described = ask(tmp_path / "model.onnx")
    assert described["classes"] == [0, 1, 2, 3, 5] and described["tasks"] == [[0, 1], [2, 3, 0], [1, 5]]
    np.testing.assert_allclose(np.exp(log_probabilities), learner.predict_proba(TEST[0]), atol=1e-4)


def test_the_program_in_the_how_to_reads_a_graph(
    tmp_path: Path, oarlock: Command, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "fast.md").read_text(encoding="utf-8")
    program = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "onnxruntime" in block)
    model = save(tmp_path / "shop.oar", "slda")
    monkeypatch.chdir(tmp_path)
    assert oarlock("export", model, "--onnx", "shop.onnx") == 0
    assert "images compared with torch's" in capsys.readouterr().out
    (tmp_path / "inbox").mkdir()
    for number, image in enumerate(TEST[0]):
        Image.fromarray(image).save(tmp_path / "inbox" / f"{number:03}.png")
    exec(compile(program, "fast.md", "exec"), {})
    answers = load(model).predict(TEST[0], accept=0.95)
    assert capsys.readouterr().out.split() == ["unknown" if answer is None else str(answer) for answer in answers]


def test_without_the_library_it_says_what_to_install(
    tmp_path: Path, oarlock: Command, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(tmp_path / "model.oar", "slda")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert oarlock("export", model, "--onnx", tmp_path / "model.onnx") == 2
    assert "pip install 'oarlock[onnx]'" in capsys.readouterr().err
    assert not (tmp_path / "model.onnx").exists()


def test_a_graph_that_answers_differently_is_not_written(
    tmp_path: Path, oarlock: Command, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(tmp_path / "model.oar", "derpp", epochs=1)

    def write_and_change(graph: Graph, *rest: Any) -> Any:
        written = graph_of(graph, *rest)
        with torch.no_grad():
            graph.method.network.head.bias[0] += 1
        return written

    graph_of = export._graph_of
    monkeypatch.setattr(export, "_graph_of", write_and_change)
    assert oarlock("export", model, "--onnx", tmp_path / "model.onnx") == 2
    assert "answers differently" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["model.oar"]
