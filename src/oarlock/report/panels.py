"""The panels of the page that show how the run went, each with one line on how to read it."""

from typing import Any

import numpy as np

from oarlock.report import wording
from oarlock.report.charts import accuracy_lines, capacity_bars, score_histogram
from oarlock.report.heat_map import FULL_PAGE, HALF_PAGE, MOST_LABELS, Axis, heat_map
from oarlock.report.markup import panel, row, table
from oarlock.report.run_files import RunFiles

MOST_NAMED_TASKS = 10
MOST_CLASSES_ON_HALF_PAGE = 12


def accuracy(result: dict[str, Any]) -> str:
    """The accuracy matrix and, beside it, its means over time."""
    over_time = _accuracy_over_time(result) if len(result["tasks"]) > 1 else ""
    return row(_accuracy_matrix(result), over_time)


def _accuracy_matrix(result: dict[str, Any]) -> str:
    size = len(result["tasks"])
    shares = np.full((size, size), np.nan)
    shares[np.tril_indices(size)] = np.concatenate(result["accuracy"]) / 100
    rows = Axis("after learning task", _task_labels(result["tasks"]))
    columns = Axis("accuracy on task, %", _numbers(size))
    return panel(
        "Accuracy on every task, after every task",
        "Read down a column: the same task, tested again after each later one.",
        heat_map(shares, rows, columns, width=HALF_PAGE),
    )


def _accuracy_over_time(result: dict[str, Any]) -> str:
    readings = {"this run": result, **result["readings"]}
    lines = [
        (name, wording.percent(reading["aca"]), wording.points(reading["forgetting"]))
        for name, reading in readings.items()
    ]
    return panel(
        "Accuracy after each task",
        "Mean over the tasks seen so far. The gap between the lines is the price of not being told the task.",
        accuracy_lines(result) + (table(lines, ("Read as", "ACA", "Forgetting")) if result["readings"] else ""),
    )


def confusions(run: RunFiles) -> str:
    """Which task and which class the learner took each test image for."""
    panels = [_class_confusion(run)]
    if len(run.result["tasks"]) > 1:
        panels.insert(0, _task_confusion(run))
    return row(*panels) if _on_half_page(run) else "".join(map(row, panels))


def _task_confusion(run: RunFiles) -> str:
    tasks = run.result["tasks"]
    rows = Axis("true task", _task_labels(tasks))
    columns = Axis("chosen task, % of the row", _numbers(len(tasks)))
    return panel(
        "Which task was it?",
        "Which task the learner chose for the test images of each task, after the last one.",
        _confusion(run, "task_confusion", rows, columns),
    )


def _class_confusion(run: RunFiles) -> str:
    names = [wording.printable(name) for name in run.classes]
    groups = [len(task) for task in run.result["tasks"]]
    rows, columns = Axis("true class", names, groups), Axis("answer, % of the row", names, groups)
    return panel(
        "Which class was it?",
        "Answers after the last task. Thin lines separate the tasks, in the order learned."
        + (" The numbers are those of the tasks." if len(names) > MOST_LABELS else ""),
        _confusion(run, "class_confusion", rows, columns),
    )


def _confusion(run: RunFiles, name: str, rows: Axis, columns: Axis) -> str:
    """Each row as shares of its sum; what never happened stays blank."""
    counts = run.tensors[name]
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = np.where(counts > 0, counts / totals, np.nan)
    return heat_map(shares, rows, columns, width=HALF_PAGE if _on_half_page(run) else FULL_PAGE, root=True)


def _on_half_page(run: RunFiles) -> bool:
    return len(run.classes) <= MOST_CLASSES_ON_HALF_PAGE


def _task_labels(tasks: list[list[object]]) -> list[str]:
    numbers = _numbers(len(tasks))
    if len(tasks) > MOST_NAMED_TASKS:
        return numbers
    names = (wording.shorten(wording.printable(", ".join(map(str, task))), 18) for task in tasks)
    return [f"{name} {number}" for name, number in zip(names, numbers, strict=True)]


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def scores(run: RunFiles) -> str:
    """How well the learner tells known images from those of classes it never learned."""
    known, unknown = run.tensors["known_scores"], run.tensors.get("unknown_scores")
    threshold = float(run.tensors["threshold"][0]) if "threshold" in run.tensors else None
    auroc = run.result["ood_auroc"]
    how = ["How familiar each test image looks to the learner."]
    if threshold is None:
        how.append("This method sets no threshold.")
    else:
        accepted = wording.share(float(np.mean(known >= threshold)))
        how.append(f"Below the threshold the answer is “unknown”; {accepted} of known images pass it.")
    if unknown is None:
        how.append("No images of classes never learned were tested.")
    elif threshold is not None:
        how.append(f"{wording.share(float(np.mean(unknown < threshold)))} of never learned ones do not.")
    return panel(
        "Known or new?" + ("" if auroc is None else f" AUROC {wording.ratio(auroc)}"),
        " ".join(how),
        score_histogram(known, unknown, threshold),
    )


def free_capacity(free: list[float] | None) -> str:
    """How much room is left for tasks to come; nothing where a method has no gates to count."""
    if free is None:
        return ""
    return panel(
        "Free capacity after each task",
        "Share of the adapters’ units that no task has claimed. At zero, new tasks can only reuse old units.",
        capacity_bars(free),
    )
