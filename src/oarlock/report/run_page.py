"""One self-contained HTML page about a finished run: no network, no scripts, for phone and desk."""

import base64
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from oarlock.data.images import Label
from oarlock.errors import printable
from oarlock.experiments.metrics import aca
from oarlock.experiments.result import Array, RunFiles, RunResult, Variant, read_run_files
from oarlock.files import write_text
from oarlock.markup import table, text
from oarlock.report import wording
from oarlock.report.charts import (
    FULL_PAGE,
    HALF_PAGE,
    MOST_LABELS,
    Axis,
    accuracy_lines,
    capacity_bars,
    heat_map,
    score_histogram,
)
from oarlock.report.html import CSS, PAGE, panel, row
from oarlock.report.theory import theory_section

MOST_TASKS_IN_VIEW = 6


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run directory with `result.json` and `evaluation.safetensors`; return its path."""
    report = Path(run_dir) / "report.html"
    write_text(report, _page(read_run_files(Path(run_dir))))
    return report


def _page(run: RunFiles) -> str:
    result = run.result
    body = "\n".join(
        [
            _header(run),
            _cards(run),
            accuracy(result),
            confusions(run),
            row(scores(run), free_capacity(result.free_capacity)),
            theory_section(run.certificate),
            row(examples(run)),
            row(
                panel("Configuration", "Every setting of this run.", table(_flat(result.config))),
                panel("Versions and timing", "What it ran on and what it cost.", table(_costs(result))),
            ),
        ]
    )
    # A line must not break between a number and its unit.
    return PAGE.format(title=_title(result), css=CSS, body=body.replace(" %", "\N{NO-BREAK SPACE}%"))


def _title(result: RunResult) -> str:
    return text(f"{result.method} on {result.source}")


def _header(run: RunFiles) -> str:
    result = run.result
    facts = {
        "Protocol": wording.protocol(result),
        "Class order": result.order,
        "Seed": result.seed,
        "Trunk": result.trunk,
        "Pre-training saw": wording.overlap(result.overlap),
        "Memory": wording.count(result.memory or 0, "image"),
    }
    facts_shown = "".join(f"<div><dt>{name}</dt><dd>{text(fact)}</dd></div>" for name, fact in facts.items())
    tasks = "".join(f"<li>{text(', '.join(map(str, task)))}</li>" for task in result.tasks)
    summary = f"{len(run.classes)} classes in {wording.count(len(result.tasks), 'task')}, in the order learned"
    opened = " open" if len(result.tasks) <= MOST_TASKS_IN_VIEW else ""
    return (
        f'<header><p class="eyebrow">Oarlock run</p><h1>{_title(result)}</h1><dl class="facts">{facts_shown}</dl>'
        f'<details{opened}><summary>{summary}</summary><ol class="tasks">{tasks}</ol></details></header>'
    )


def _cards(run: RunFiles) -> str:
    result = run.result
    cards = [
        _card(
            "Average accuracy (ACA)",
            wording.percent(result.aca),
            f"Right answers among all {len(run.classes)} classes after the last task, averaged over tasks. "
            "Nobody says which task an image is from.",
        ),
        _card(
            "Forgetting",
            wording.points(result.forgetting),
            "Nothing to forget yet: this run learned one task."
            if result.forgetting is None
            else "Accuracy a task has lost, on average, since it was learned. Lower is better; 0 is none.",
        ),
        _card(
            "Task given (TIL)",
            wording.percent(aca(result.til_accuracy)),
            "Accuracy after the last task if the learner is told which task each image is from.",
        ),
        _card(
            "Right task chosen",
            wording.percent(result.task_id_accuracy),
            "How often the task that claims the image most is the right one.",
        ),
        _card(
            "Telling known from new (AUROC)",
            wording.ratio(result.ood_auroc),
            "Not measured: this run had no images of classes it never learned."
            if result.ood_auroc is None
            else "How surely a known image scores above a new one: 1 is always, 0.5 is guessing. "
            f"Accepting 95 % of known images lets {wording.share(result.ood_fpr95)} of new ones slip through.",
        ),
        _card("Promise about old tasks", _verdict(result.unchanged), wording.promise(result.unchanged)),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(name: str, value: str, meaning: str) -> str:
    return f'<section class="card"><h2>{name}</h2><strong>{value}</strong><p>{meaning}</p></section>'


def _verdict(unchanged: dict[str, Any] | None) -> str:
    if unchanged is None or unchanged["compared"] == 0:
        return wording.NOTHING
    return "Kept" if wording.is_kept(unchanged) else "Broken"


def _flat(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str) else json.dumps(value)


def _costs(result: RunResult) -> Iterable[tuple[str, str]]:
    yield "training", wording.duration(result.seconds["train"])
    yield "evaluation", wording.duration(result.seconds["evaluate"])
    if result.peak_mb is not None:
        yield "peak memory", f"{result.peak_mb:,.0f} MB"
    yield "threads", str(result.threads or "not set")
    yield "entries in the model", f"{result.entries:,}"
    yield from sorted(result.versions.items())


MOST_NAMED_TASKS = 10
MOST_CLASSES_ON_HALF_PAGE = 12


def accuracy(result: RunResult) -> str:
    """Return the accuracy matrix and, beside it, its means over time."""
    over_time = _accuracy_over_time(result) if len(result.tasks) > 1 else ""
    return row(_accuracy_matrix(result), over_time)


def _accuracy_matrix(result: RunResult) -> str:
    size = len(result.tasks)
    shares = np.full((size, size), np.nan)
    shares[np.tril_indices(size)] = np.concatenate(result.accuracy) / 100
    rows = Axis("after learning task", _task_labels(result.tasks))
    columns = Axis("accuracy on task, %", _numbers(size))
    return panel(
        "Accuracy on every task, after every task",
        "Read down a column: the same task, tested again after each later one.",
        heat_map(shares, rows, columns, width=HALF_PAGE),
    )


def _accuracy_over_time(result: RunResult) -> str:
    variants: dict[str, RunResult | Variant] = {"this run": result, **result.variants}
    lines = [(name, wording.percent(read.aca), wording.points(read.forgetting)) for name, read in variants.items()]
    return panel(
        "Accuracy after each task",
        "Mean over the tasks seen so far. The gap between the lines is the price of not being told the task.",
        accuracy_lines(result) + (table(lines, ("Variant", "ACA", "Forgetting")) if result.variants else ""),
    )


def confusions(run: RunFiles) -> str:
    """Return panels of which task and which class the learner took each test image for."""
    panels = [_class_confusion(run)]
    if len(run.result.tasks) > 1:
        panels.insert(0, _task_confusion(run))
    return row(*panels) if _on_half_page(run) else "".join(map(row, panels))


def _task_confusion(run: RunFiles) -> str:
    tasks = run.result.tasks
    rows = Axis("true task", _task_labels(tasks))
    columns = Axis("chosen task, % of the row", _numbers(len(tasks)))
    return panel(
        "Which task was it?",
        "Which task the learner chose for the test images of each task, after the last one.",
        _confusion(run, "task_confusion", rows, columns),
    )


def _class_confusion(run: RunFiles) -> str:
    names = [printable(name) for name in run.classes]
    groups = [len(task) for task in run.result.tasks]
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


def _task_labels(tasks: list[list[Label]]) -> list[str]:
    numbers = _numbers(len(tasks))
    if len(tasks) > MOST_NAMED_TASKS:
        return numbers
    names = (wording.shorten(printable(", ".join(map(str, task))), 18) for task in tasks)
    return [f"{name} {number}" for name, number in zip(names, numbers, strict=True)]


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def scores(run: RunFiles) -> str:
    """Return a panel of how well the learner tells known images from those of classes it never learned."""
    known, unknown = run.tensors["known_scores"], run.tensors.get("unknown_scores")
    threshold = float(run.tensors["threshold"][0]) if "threshold" in run.tensors else None
    auroc = run.result.ood_auroc
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
    """Return a panel of how much room is left for tasks to come; nothing where it does not run out."""
    if free is None:
        return ""
    return panel(
        "Free capacity after each task",
        "Share of the adapters’ room that no task has claimed. At zero, new tasks can only reuse what is there.",
        capacity_bars(free),
    )


MOST_EXAMPLES = 48
THUMBNAIL = 176
PHOTO = 96  # pixels on a side, from which an image deserves a larger place


def examples(run: RunFiles) -> str:
    """Return a panel of examples; nothing where the run kept none."""
    images, truths, predictions, probabilities = (
        run.tensors[f"example_{part}"][:MOST_EXAMPLES] for part in ("images", "truth", "prediction", "probability")
    )
    if not len(images):
        return ""
    # Index -1, a class never learned or the answer "unknown", finds the last place.
    names = [*run.classes, None]
    items = "".join(
        _example(image, names[truth], names[prediction], float(probability))
        for image, truth, prediction, probability in zip(images, truths, predictions, probabilities, strict=True)
    )
    right = int((truths == predictions).sum())
    how = f"{right} of these {len(images)} are right (✓, solid frame); the others are wrong (✗, dashed frame)."
    kind = "examples photos" if images.shape[-1] >= PHOTO else "examples"
    return panel("Examples from the test images", how, f'<ul class="{kind}">{items}</ul>')


def _example(image: Array, truth: object | None, prediction: object | None, probability: float) -> str:
    answer = "unknown" if prediction is None else prediction
    facts = [] if prediction is None else [f"{100 * probability:.0f} %"]
    if truth is None:
        facts.append("never learned")
    elif truth != prediction:
        facts.append(f"is {truth}")
    return (
        f'<li class="{"right" if truth == prediction else "wrong"}"><img src="{_thumbnail(image)}" alt="">'
        f"<b>{text(answer)}</b><small>{text(', '.join(facts))}</small></li>"
    )


def _thumbnail(image: Array) -> str:
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
