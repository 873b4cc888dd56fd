import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from oarlock.errors import OarlockError
from oarlock.experiments.result import RunResult
from oarlock.files import write_tensors
from oarlock.report import print_summary, write_report
from oarlock.upgrades import FORMAT

VOID = {"meta", "img"}


def lower_triangular(size: int, start: float) -> list[list[float]]:
    return [[start - 2.0 * (after - task) for task in range(after + 1)] for after in range(size)]


def result_of(tasks: list[list[str]], **changes: Any) -> dict[str, Any]:
    size = len(tasks)
    result = {
        "format": FORMAT,
        "method": "row",
        "protocol": None,
        "source": "sample",
        "order": 0,
        "seed": 1,
        "memory": 200,
        "trunk": "vit_pico",
        "config": {"epochs": 3, "optimizer": {"name": "sgd", "momentum": 0.9}},
        "threads": 2,
        "tasks": tasks,
        "accuracy": lower_triangular(size, 90.0),
        "til_accuracy": lower_triangular(size, 98.0),
        "task_id_accuracy": 91.3,
        "aca": 88.8,
        "aia": 89.4,
        "forgetting": 2.5 if size > 1 else None,
        "ood_auroc": 0.912,
        "ood_fpr95": 0.31,
        "entries": 123_456,
        "seconds": {"train": 75.0, "evaluate": 4.2},
        "peak_mb": 900.0,
        "free_capacity": [0.9] * size,
        "unchanged": {"compared": 1234, "changed": 0},
        "variants": {"without distance": {"accuracy": lower_triangular(size, 80.0), "aca": 77.7, "forgetting": 4.4}},
        "overlap": "no",
        "versions": {"oarlock": "0.1.0"},
    }
    return result | changes


def tensors_of(result: dict[str, Any], side: int = 8) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    sizes = [len(task) for task in result["tasks"]]
    classes = sum(sizes)
    class_confusion = random.integers(0, 3, (classes, classes)) + 20 * np.eye(classes, dtype=np.int64)
    starts = np.cumsum([0, *sizes[:-1]])
    return {
        "known_scores": random.normal(2, 1, 200).astype(np.float32),
        "unknown_scores": random.normal(0, 1, 60).astype(np.float32),
        "threshold": np.array([0.5], np.float32),
        "task_confusion": np.add.reduceat(np.add.reduceat(class_confusion, starts, axis=0), starts, axis=1),
        "class_confusion": class_confusion,
        "example_images": random.integers(0, 256, (4, 3, side, side), dtype=np.uint8),
        "example_truth": np.array([0, 0, -1, -1]),
        "example_prediction": np.array([0, -1, -1, 0]),
        "example_probability": np.array([0.9, 0.8, 0.7, 0.6], np.float32),
    }


def save_run(folder: Path, result: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    (folder / "result.json").write_text(json.dumps(result))
    as_torch = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in tensors.items()}
    write_tensors(folder / "evaluation.safetensors", "evaluation", as_torch, {})
    return folder


def report_of(folder: Path, result: dict[str, Any], *without: str, side: int = 8) -> str:
    tensors = {name: tensor for name, tensor in tensors_of(result, side).items() if name not in without}
    return write_report(save_run(folder, result, tensors)).read_text(encoding="utf-8")


def tasks_of(tasks: int, classes: int) -> list[list[str]]:
    return [[f"class {task}-{index}" for index in range(classes)] for task in range(tasks)]


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index("<body>") :]))


class Balance(HTMLParser):
    """Fails when tags are not closed in the order in which they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_well_formed_file_that_refers_to_nothing_outside(tmp_path: Path) -> None:
    page = report_of(tmp_path, result_of(tasks_of(3, 2)))
    assert "http" not in page and "<script" not in page and "@import" not in page
    assert all(source.startswith("data:") for source in re.findall(r'src="([^"]*)', page))
    assert all(target.startswith("#") for target in re.findall(r'(?:href="|url\()([^")]*)', page))
    assert "#010101" not in page  # every stand-in colour has become a variable of the page
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert len(balance.ids) == len(set(balance.ids))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "evaluation.safetensors",
        "report.html",
        "result.json",
    ]


def test_the_page_says_what_the_run_is_and_how_it_went(tmp_path: Path) -> None:
    shown = words(report_of(tmp_path, result_of(tasks_of(3, 2))))
    for expected in (
        "row on sample",
        "vit_pico",
        "200 images",
        "88.8 %",
        "2.5 points",
        "91.3 %",
        "AUROC 0.912",
        "1,234 values promised bit-identical, 0 changed.",
        "without distance",
        "optimizer.momentum",
        "1 min 15 s",
        "2 of these 4 are right",
    ):
        assert expected in shown


def test_headings_come_in_the_order_of_the_story(tmp_path: Path) -> None:
    page = report_of(tmp_path, result_of(tasks_of(3, 2)))
    panels = re.findall(r'class="panel"><h2>([^<]*)', page)
    assert panels == [
        "Accuracy on every task, after every task",
        "Accuracy after each task",
        "Which task was it?",
        "Which class was it?",
        "Known or new? AUROC 0.912",
        "Free capacity after each task",
        "Examples from the test images",
        "Configuration",
        "Versions and timing",
    ]


def test_right_and_wrong_answers_differ_by_more_than_colour(tmp_path: Path) -> None:
    page = report_of(tmp_path, result_of(tasks_of(3, 2)))
    kinds = re.findall(r'<li class="(right|wrong)">.*?<b>(.*?)</b><small>(.*?)</small>', page)
    assert [(kind, answer, fact.replace("\N{NO-BREAK SPACE}", " ")) for kind, answer, fact in kinds] == [
        ("right", "class 0-0", "90 %"),
        ("wrong", "unknown", "is class 0-0"),
        ("right", "unknown", "never learned"),
        ("wrong", "class 0-0", "60 %, never learned"),
    ]
    assert '.examples .wrong b::before { content: "✗ "' in page


def test_names_from_folders_cannot_become_markup(tmp_path: Path) -> None:
    evil = [
        '<script>alert("1")</script>',
        "a & b' \" <img src=x>",
        "caf\x1b[31m\x00",
        "broken \udc80",
        "[red]cat[/red]",
    ]
    result = result_of([evil[:2], evil[2:]], source="<b>source</b>", config={"<u>": "<u>"})
    result["variants"] = {"<s>reading $x$": result["variants"]["without distance"]}
    page = report_of(tmp_path, result)
    assert not re.search(r"<(script|b>source|u>|s>|img src=x)", page)
    assert "\x1b" not in page and "\x00" not in page
    balance = Balance()
    balance.feed(page)
    assert balance.open == []


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    first = report_of(tmp_path, result_of(tasks_of(3, 2)))
    assert report_of(tmp_path, result_of(tasks_of(3, 2))) == first


def test_one_task_has_nothing_to_forget(tmp_path: Path) -> None:
    page = report_of(tmp_path, result_of(tasks_of(1, 3)))
    assert "Nothing to forget yet" in page
    assert "in 1 task," in page
    assert "Accuracy after each task" not in page and "Which task was it?" not in page


def test_without_unknowns_the_page_says_so(tmp_path: Path) -> None:
    page = report_of(tmp_path, result_of(tasks_of(2, 2), ood_auroc=None, ood_fpr95=None), "unknown_scores")
    assert "Not measured" in page and "No images of classes never learned were tested." in page
    assert "AUROC " not in page


def test_methods_without_gates_or_threshold(tmp_path: Path) -> None:
    page = report_of(
        tmp_path, result_of(tasks_of(2, 2), free_capacity=None, unchanged=None, variants={}), "threshold"
    )
    assert "Free capacity" not in page and "Variant" not in page
    assert "This method sets no threshold." in page
    assert "This method promises no bit-identical values." in page


def test_a_broken_promise_is_called_broken(tmp_path: Path) -> None:
    page = report_of(tmp_path, result_of(tasks_of(2, 2), unchanged={"compared": 10, "changed": 3}))
    assert "<strong>Broken</strong>" in page and "10 values promised bit-identical, 3 changed." in page


def test_a_hundred_classes_in_twenty_tasks_stay_legible_and_small(tmp_path: Path) -> None:
    page = report_of(tmp_path, result_of(tasks_of(20, 5)), side=224)
    assert len(page.encode()) < 1_500_000
    heat_maps = re.findall(r'<svg class="heat".*?</svg>', page)
    texts = [heat_map.count("<text") for heat_map in heat_maps]
    titles, labels = 2, 40
    assert texts[0] == titles + labels + 20 * 21 // 2  # the accuracy matrix keeps its numbers
    assert texts[2] == titles + labels  # the classes do not: tasks are numbered instead


def test_uneven_tasks_and_strange_scores(tmp_path: Path) -> None:
    result = result_of([["a"], ["b", "c", "d"], ["e", "f"]])
    tensors = tensors_of(result)
    tensors["known_scores"][:3] = np.inf, -np.inf, np.nan
    tensors["unknown_scores"][:] = 1e9
    tensors["class_confusion"][0] = 0
    write_report(save_run(tmp_path, result, tensors))


def test_equal_scores_and_no_examples(tmp_path: Path) -> None:
    result = result_of(tasks_of(2, 1))
    tensors = tensors_of(result)
    tensors["known_scores"][:] = tensors["unknown_scores"][:] = tensors["threshold"][:] = 1.0
    for name in ("images", "truth", "prediction", "probability"):
        tensors[f"example_{name}"] = tensors[f"example_{name}"][:0]
    assert "Examples" not in write_report(save_run(tmp_path, result, tensors)).read_text(encoding="utf-8")


def replace(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.__setitem__(name, value)


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.__delitem__(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("aca"), "it has no 'aca'"),
        (replace("aca", "high"), "aca is 'high', not a number"),
        (replace("tasks", []), "tasks is a list of 0"),
        (replace("accuracy", [[90.0]]), "'accuracy' must have one row per task"),
        (replace("accuracy", [[90.0], ["high", 1.0]]), r"accuracy\[1\]\[0\] is 'high'"),
        (replace("variants", {"x": {}}), "variants.x has no 'accuracy'"),
        (replace("free_capacity", [0.5]), "'free_capacity' must hold one number per task"),
        (replace("seconds", {}), "seconds has no 'train'"),
        (replace("unchanged", {"compared": 1}), "unchanged has no 'changed'"),
    ],
)
def test_a_wrong_result_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    result = result_of(tasks_of(2, 2))
    tensors = tensors_of(result)
    change(result)
    with pytest.raises(OarlockError, match=f"result.json: .*{message}.*; evaluate"):
        write_report(save_run(tmp_path, result, tensors))
    assert not list(tmp_path.glob("*report*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("task_confusion"), "'task_confusion' is missing"),
        (drop("example_images"), "'example_images' is missing"),
        (replace("class_confusion", np.zeros((3, 3), np.int64)), r"'class_confusion' is int64\[3, 3\]"),
        (replace("example_images", np.zeros((4, 3, 8, 8), np.float32)), "'example_images' is float32"),
        (replace("example_truth", np.array([0, 1])), "'example_truth' is"),
        (replace("example_prediction", np.array([0, 1, 2, 4])), "'example_prediction' names a class"),
        (replace("known_scores", np.zeros(0, np.float32)), "'known_scores' holds no finite number"),
        (replace("threshold", np.array([np.nan], np.float32)), "'threshold' holds no finite number"),
        (replace("unknown_scores", np.zeros((2, 2), np.float32)), "'unknown_scores' is"),
    ],
)
def test_wrong_tensors_are_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    result = result_of(tasks_of(2, 2))
    tensors = tensors_of(result)
    change(tensors)
    with pytest.raises(OarlockError, match=f"evaluation.safetensors: .*{message}.*; evaluate"):
        write_report(save_run(tmp_path, result, tensors))
    assert not list(tmp_path.glob("*report*"))


@pytest.mark.parametrize("name", ["result.json", "evaluation.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b'{"half": ', b"[]", bytes(range(256))])
def test_missing_and_damaged_files_are_refused_and_the_old_report_stays(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    result = result_of(tasks_of(2, 2))
    report = write_report(save_run(tmp_path, result, tensors_of(result)))
    before = report.read_bytes()
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OarlockError, match=re.escape(name)):
        write_report(tmp_path)
    assert report.read_bytes() == before


def test_a_truncated_tensor_file_is_refused(tmp_path: Path) -> None:
    result = result_of(tasks_of(2, 2))
    save_run(tmp_path, result, tensors_of(result))
    file = tmp_path / "evaluation.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(OarlockError, match="damaged"):
        write_report(tmp_path)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    result = result_of(tasks_of(2, 2))
    save_run(tmp_path, result, tensors_of(result))
    file = tmp_path / "evaluation.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(OarlockError, match="checksum"):
        write_report(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match="finished run"):
        write_report(tmp_path / "nowhere")


def summary_of(result: dict[str, Any], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_summary(RunResult.from_json(result), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(printed, str)
    return printed


@pytest.mark.parametrize(("tasks", "classes"), [(1, 1), (2, 2), (5, 2), (10, 10), (11, 3), (20, 5)])
def test_the_summary_fits_eighty_columns_and_keeps_every_number(tasks: int, classes: int) -> None:
    result = result_of(tasks_of(tasks, classes))
    printed = summary_of(result)
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    matrix = printed[: printed.index("ACA")]
    numbers = sorted(map(float, re.findall(r"\d+\.\d", matrix)))
    assert numbers == sorted(value for row in result["accuracy"] for value in row)
    assert printed.rstrip().endswith("1,234 values promised bit-identical, 0 changed.")


def test_the_summary_of_a_run_without_extras() -> None:
    nothing = dict.fromkeys(("ood_auroc", "ood_fpr95", "free_capacity", "unchanged"))
    printed = summary_of(result_of(tasks_of(1, 2), variants={}, **nothing))
    assert "needs a second task" in printed and "no unknowns tested" in printed
    assert "free capacity" not in printed
    assert printed.rstrip().endswith("This method promises no bit-identical values.")


def test_names_cannot_steer_the_terminal() -> None:
    printed = summary_of(result_of([["[red]cat[/red]", "\x1b[31mdog"]]), width=120)
    assert "[red]" in printed and "\x1b" not in printed
