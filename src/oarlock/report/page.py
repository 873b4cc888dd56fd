"""One self-contained HTML page about a finished run: no network, no scripts, for phone and desk."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oarlock.files import write_text
from oarlock.metrics import aca
from oarlock.report import panels, wording
from oarlock.report.examples import examples
from oarlock.report.markup import panel, row, table, text
from oarlock.report.run_files import RunFiles, read_run_files
from oarlock.report.style import CSS
from oarlock.report.theory.section import section as theory_section

MOST_TASKS_IN_VIEW = 6

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
    report = Path(run_dir) / "report.html"
    write_text(report, _page(read_run_files(Path(run_dir))))
    return report


def _page(run: RunFiles) -> str:
    result = run.result
    body = "\n".join(
        [
            _header(run),
            _cards(run),
            panels.accuracy(result),
            panels.confusions(run),
            row(panels.scores(run), panels.free_capacity(result["free_capacity"])),
            theory_section(run.certificate),
            row(examples(run)),
            row(
                panel("Configuration", "Every setting of this run.", table(_flat(result["config"]))),
                panel("Versions and timing", "What it ran on and what it cost.", table(_costs(result))),
            ),
        ]
    )
    # A line must not break between a number and its unit.
    return PAGE.format(title=_title(result), css=CSS, body=body.replace(" %", "\N{NO-BREAK SPACE}%"))


def _title(result: dict[str, Any]) -> str:
    return text(f"{result['method']} on {result['source']}")


def _header(run: RunFiles) -> str:
    result = run.result
    facts = {
        "Protocol": wording.protocol(result),
        "Class order": result["order"],
        "Seed": result["seed"],
        "Trunk": result["trunk"],
        "Pre-training saw": wording.overlap(result["overlap"]),
        "Memory": wording.count(result["memory"] or 0, "image"),
    }
    facts_shown = "".join(f"<div><dt>{name}</dt><dd>{text(fact)}</dd></div>" for name, fact in facts.items())
    tasks = "".join(f"<li>{text(', '.join(map(str, task)))}</li>" for task in result["tasks"])
    summary = f"{len(run.classes)} classes in {wording.count(len(result['tasks']), 'task')}, in the order learned"
    opened = " open" if len(result["tasks"]) <= MOST_TASKS_IN_VIEW else ""
    return (
        f'<header><p class="eyebrow">Oarlock run</p><h1>{_title(result)}</h1><dl class="facts">{facts_shown}</dl>'
        f'<details{opened}><summary>{summary}</summary><ol class="tasks">{tasks}</ol></details></header>'
    )


def _cards(run: RunFiles) -> str:
    result = run.result
    cards = [
        _card(
            "Average accuracy (ACA)",
            wording.percent(result["aca"]),
            f"Right answers among all {len(run.classes)} classes after the last task, averaged over tasks. "
            "Nobody says which task an image is from.",
        ),
        _card(
            "Forgetting",
            wording.points(result["forgetting"]),
            "Nothing to forget yet: this run learned one task."
            if result["forgetting"] is None
            else "Accuracy a task has lost, on average, since it was learned. Lower is better; 0 is none.",
        ),
        _card(
            "Task given (TIL)",
            wording.percent(aca(result["til_accuracy"])),
            "Accuracy after the last task if the learner is told which task each image is from.",
        ),
        _card(
            "Right task chosen",
            wording.percent(result["task_id_accuracy"]),
            "How often the task that claims the image most is the right one.",
        ),
        _card(
            "Telling known from new (AUROC)",
            wording.ratio(result["ood_auroc"]),
            "Not measured: this run had no images of classes it never learned."
            if result["ood_auroc"] is None
            else "How surely a known image scores above a new one: 1 is always, 0.5 is guessing. "
            f"Accepting 95 % of known images lets {wording.share(result['ood_fpr95'])} of new ones slip through.",
        ),
        _card("Promise about old tasks", _verdict(result["unchanged"]), wording.promise(result["unchanged"])),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(name: str, value: str, meaning: str) -> str:
    return f'<section class="card"><h2>{name}</h2><strong>{value}</strong><p>{meaning}</p></section>'


def _verdict(unchanged: dict[str, int] | None) -> str:
    if unchanged is None or unchanged["compared"] == 0:
        return wording.NOTHING
    return "Broken" if unchanged["changed"] else "Kept"


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
