"""One self-contained HTML page about a finished run: no network, no scripts, for phone and desk."""

import base64
import io
import json
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from oarlock.report import wording
from oarlock.report.charts import accuracy_lines, capacity_bars, score_histogram
from oarlock.report.heat_map import FULL_PAGE, HALF_PAGE, Axis, heat_map
from oarlock.report.run_files import Array, RunFiles, read_run_files
from oarlock.report.style import CSS

MOST_EXAMPLES = 48
THUMBNAIL = 112
MOST_TASKS_IN_VIEW = 6
MOST_NAMED_TASKS = 10
MOST_CLASSES_ON_HALF_PAGE = 12

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run directory that holds `result.json` and `evaluation.safetensors`."""
    run_dir = Path(run_dir)
    page = _page(read_run_files(run_dir))
    report = run_dir / "report.html"
    draft = run_dir / f".report.html.{os.getpid()}.tmp"
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(report)
    finally:
        draft.unlink(missing_ok=True)
    return report


def _page(run: RunFiles) -> str:
    result, tensors = run.result, run.tensors
    several_tasks = len(result["tasks"]) > 1
    confusions = [_task_confusion(run)] if several_tasks else []
    confusions.append(_class_confusion(run))
    body = [
        _header(run),
        _cards(run),
        _row(_accuracy_matrix(result), _accuracy_over_time(result) if several_tasks else ""),
        _row(*confusions) if _fits_half_page(run) else "".join(map(_row, confusions)),
        _row(_scores(run), _free_capacity(result["free_capacity"])),
        _row(_examples(run) if len(tensors["example_images"]) else ""),
        _row(
            _panel("Configuration", "Every setting of this run.", _table(_flat(result["config"]))),
            _panel("Versions and timing", "What it ran on and what it cost.", _table(_costs(result))),
        ),
    ]
    # A line must not break between a number and its unit.
    return PAGE.format(
        title=_title(result), css=CSS, body="\n".join(body).replace(" %", "\N{NO-BREAK SPACE}%")
    )


def _text(value: object) -> str:
    """Everything that comes from a file passes through here before it becomes HTML."""
    return escape(wording.printable(value))


def _title(result: dict[str, Any]) -> str:
    return _text(f"{result['method']} on {result['source']}")


def _row(*panels: str) -> str:
    shown = "".join(panels)
    return f'<div class="row">{shown}</div>' if shown else ""


def _panel(title: str, how_to_read: str, content: str) -> str:
    return f'<section class="panel"><h2>{title}</h2><p class="how">{how_to_read}</p>{content}</section>'


def _table(rows: Iterable[tuple[object, object]]) -> str:
    lines = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<table>{lines}</table>"


def _header(run: RunFiles) -> str:
    result = run.result
    facts = {
        "Protocol": result["protocol"] or "none",
        "Class order": result["order"],
        "Seed": result["seed"],
        "Trunk": result["trunk"],
        "Pre-training saw": wording.overlap(result),
        "Memory": f"{result['memory'] or 0:,} images",
    }
    list_of_facts = "".join(
        f"<div><dt>{name}</dt><dd>{_text(fact)}</dd></div>" for name, fact in facts.items()
    )
    tasks = "".join(f"<li>{_text(', '.join(map(str, task)))}</li>" for task in result["tasks"])
    count = f"{len(run.classes)} classes in {len(result['tasks'])} tasks, in the order learned"
    opened = " open" if len(result["tasks"]) <= MOST_TASKS_IN_VIEW else ""
    return (
        f'<header><p class="eyebrow">Oarlock run</p><h1>{_title(result)}</h1>'
        f'<dl class="facts">{list_of_facts}</dl>'
        f'<details{opened}><summary>{count}</summary><ol class="tasks">{tasks}</ol></details></header>'
    )


def _cards(run: RunFiles) -> str:
    result = run.result
    unchanged, fpr95 = result["unchanged"], result["ood_fpr95"]
    slip = (
        ""
        if fpr95 is None
        else f" Accepting 95 % of known images lets {wording.share(fpr95)} of new ones slip through."
    )
    cards = [
        (
            "Average accuracy (ACA)",
            wording.percent(result["aca"]),
            f"Right answers among all {len(run.classes)} classes after the last task, averaged over tasks. "
            "Nobody says which task an image is from.",
        ),
        (
            "Forgetting",
            wording.points(result["forgetting"]),
            "Nothing to forget yet: this run learned one task."
            if result["forgetting"] is None
            else "Accuracy a task has lost, on average, since it was learned. Lower is better; 0 is none.",
        ),
        (
            "Task given (TIL)",
            wording.percent(wording.last_mean(result["til_accuracy"])),
            "Accuracy after the last task if the learner is told which task each image is from.",
        ),
        (
            "Right task chosen",
            wording.percent(result["task_id_accuracy"]),
            "How often the answer is at least a class from the right task.",
        ),
        (
            "Telling known from new (AUROC)",
            wording.ratio(result["ood_auroc"]),
            "Not measured: this run had no images of classes it never learned."
            if result["ood_auroc"] is None
            else f"1 is always, 0.5 is guessing.{slip}",
        ),
        (
            "Promise about old tasks",
            wording.NOTHING if unchanged is None else "Kept" if unchanged["changed"] == 0 else "Broken",
            wording.promise(unchanged),
        ),
    ]
    return (
        '<div class="cards">'
        + "".join(
            f'<section class="card"><h2>{name}</h2><strong>{value}</strong><p>{meaning}</p></section>'
            for name, value, meaning in cards
        )
        + "</div>"
    )


def _task_labels(tasks: list[list[str]]) -> list[str]:
    numbers = _numbers(len(tasks))
    if len(tasks) > MOST_NAMED_TASKS:
        return numbers
    names = (wording.printable(", ".join(map(str, task))) for task in tasks)
    return [f"{wording.shorten(name, 18)} {number}" for number, name in zip(numbers, names, strict=True)]


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def _accuracy_matrix(result: dict[str, Any]) -> str:
    size = len(result["tasks"])
    shares = np.full((size, size), np.nan)
    for row, accuracies in enumerate(result["accuracy"]):
        shares[row, : row + 1] = np.array(accuracies) / 100
    rows = Axis("after learning task", _task_labels(result["tasks"]))
    drawing = heat_map(shares, rows, Axis("accuracy on task, %", _numbers(size)), width=HALF_PAGE)
    how = "Read down a column: one task, tested again after each task that came later."
    return _panel("Accuracy on every task, after every task", how, drawing)


def _accuracy_over_time(result: dict[str, Any]) -> str:
    how = (
        "Mean over the tasks seen so far. The gap between the lines is the price of not being told the task."
    )
    return _panel("Accuracy after each task", how, accuracy_lines(result) + _readings(result))


def _readings(result: dict[str, Any]) -> str:
    if not result["readings"]:
        return ""
    lines = {"this run": result, **result["readings"]}
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td>{wording.percent(line['aca'])}</td>"
        f"<td>{wording.points(line['forgetting'])}</td></tr>"
        for name, line in lines.items()
    )
    heads = "<thead><tr><th>Read as</th><th>ACA</th><th>Forgetting</th></tr></thead>"
    return f'<table class="readings">{heads}{rows}</table>'


def _fits_half_page(run: RunFiles) -> bool:
    return len(run.classes) <= MOST_CLASSES_ON_HALF_PAGE


def _confusion(run: RunFiles, name: str, rows: Axis, columns: Axis) -> str:
    """Each row as shares of its sum; what never happened stays blank."""
    counts = run.tensors[name]
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = np.where(counts > 0, counts / totals, np.nan)
    return heat_map(shares, rows, columns, width=HALF_PAGE if _fits_half_page(run) else FULL_PAGE, root=True)


def _task_confusion(run: RunFiles) -> str:
    tasks = run.result["tasks"]
    rows = Axis("true task", _task_labels(tasks))
    columns = Axis("chosen task, % of the row", _numbers(len(tasks)))
    drawing = _confusion(run, "task_confusion", rows, columns)
    how = "Which task the learner chose for the test images of each task, after the last one."
    return _panel("Which task was it?", how, drawing)


def _class_confusion(run: RunFiles) -> str:
    names = [wording.printable(name) for name in run.classes]
    groups = [len(task) for task in run.result["tasks"]]
    rows, columns = Axis("true class", names, groups), Axis("answer, % of the row", names, groups)
    drawing = _confusion(run, "class_confusion", rows, columns)
    how = "Answers after the last task. Thin lines separate the tasks, in the order learned."
    return _panel("Which class was it?", how, drawing)


def _scores(run: RunFiles) -> str:
    known, unknown = run.tensors["known_scores"], run.tensors.get("unknown_scores")
    threshold = float(run.tensors["threshold"][0]) if "threshold" in run.tensors else None
    auroc = run.result["ood_auroc"]
    title = "Known or new?" if auroc is None else f"Known or new? AUROC {wording.ratio(auroc)}"
    sentences = ["How familiar each test image looks to the learner."]
    if threshold is None:
        sentences.append("This method sets no threshold.")
    else:
        accepted = f"{wording.share(float(np.mean(known >= threshold)))} of known images pass it"
        refused = (
            ""
            if unknown is None
            else f", {wording.share(float(np.mean(unknown < threshold)))} of new ones do not"
        )
        sentences.append(f"Below the threshold the answer is “unknown”: {accepted}{refused}.")
    if unknown is None:
        sentences.append("No images of classes never learned were tested.")
    return _panel(title, " ".join(sentences), score_histogram(known, unknown, threshold))


def _free_capacity(free: list[float] | None) -> str:
    if free is None:
        return ""
    how = (
        "Share of the adapters’ units that no task has claimed. At zero, new tasks can only reuse old units."
    )
    return _panel("Free capacity after each task", how, capacity_bars(free))


def _examples(run: RunFiles) -> str:
    images, truths, predictions, probabilities = (
        run.tensors[f"example_{part}"][:MOST_EXAMPLES]
        for part in ("images", "truth", "prediction", "probability")
    )
    items = "".join(
        _example(image, _name(run, truth), _name(run, prediction), float(probability))
        for image, truth, prediction, probability in zip(
            images, truths, predictions, probabilities, strict=True
        )
    )
    right = int((truths == predictions).sum())
    how = (
        f"{right} of these {len(images)} are right (✓, solid frame); the others are wrong (✗, dashed frame)."
    )
    return _panel("Examples from the test images", how, f'<ul class="examples">{items}</ul>')


def _name(run: RunFiles, index: int) -> str | None:
    return run.classes[index] if index >= 0 else None


def _example(image: Array, truth: str | None, prediction: str | None, probability: float) -> str:
    answer = "unknown" if prediction is None else prediction
    facts = [] if prediction is None else [f"{100 * probability:.0f} %"]
    if truth is None:
        facts.append("never learned")
    elif truth != prediction:
        facts.append(f"is {wording.printable(truth)}")
    return (
        f'<li class="{"right" if truth == prediction else "wrong"}"><img src="{_thumbnail(image)}" alt="">'
        f"<b>{_text(answer)}</b><small>{_text(', '.join(facts))}</small></li>"
    )


def _thumbnail(image: Array) -> str:
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _flat(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str) else json.dumps(value)


def _costs(result: dict[str, Any]) -> Iterable[tuple[str, str]]:
    yield "training", wording.duration(result["seconds"]["train"])
    yield "evaluation", wording.duration(result["seconds"]["evaluate"])
    if result["peak_mb"] is not None:
        yield "peak memory", f"{result['peak_mb']:,.0f} MB"
    yield "threads", str(result["threads"] or "not set")
    yield "entries in the model", f"{result['entries']:,}"
    yield from sorted(result["versions"].items())
