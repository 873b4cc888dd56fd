"""A comparison as one HTML page and as Markdown."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from oarlock.errors import printable
from oarlock.experiments.metrics import Spread
from oarlock.files import make_directory, write_text
from oarlock.markup import text
from oarlock.report import wording
from oarlock.report.charts import method_lines
from oarlock.report.comparison import ACCURACY, MEASURES, Comparison, Measure, MethodSummary
from oarlock.report.html import COMPARISON_CSS, CSS, PAGE, panel, row
from oarlock.report.wording import NOTHING, mean_and_std


class Caption(NamedTuple):
    heading: str
    how_to_read: str


FINAL = Caption(
    "After the last task",
    "Mean ± standard deviation over a method's runs; a single run has no ±. The best of a column is bold; of "
    "forgetting, the least. Time is that of training and evaluation together.",
)
AFTER_EACH_TASK = Caption("Accuracy after each task", "Mean over the tasks seen so far (ACA), in percent.")
BY_TASK = Caption(
    "Accuracy on every task, after the last task",
    "Tasks are numbered as they were learned, in percent. Under another class order a task has other classes.",
)


LONGEST_ORDER = 60  # characters of an order that is a list of classes


def title(comparison: Comparison) -> str:
    return f"{wording.count(len(comparison.methods), 'method')} on {comparison.setting.source}"


def facts(comparison: Comparison) -> dict[str, str]:
    setting = comparison.setting
    classes = sum(map(len, setting.tasks))
    shared = {
        "Protocol": wording.protocol(setting),
        "Stream": f"{classes} classes in {wording.count(len(setting.tasks), 'task')}",
        "Class orders": "; ".join(wording.shorten(order, LONGEST_ORDER) for order in comparison.orders),
        "Seeds": ", ".join(map(str, comparison.seeds)),
        "Trunk": setting.trunk,
        "Pre-training saw": wording.overlap(setting.overlap),
        "Memory": wording.count(setting.memory or 0, "image"),
        "Runs": str(comparison.runs),
    }
    if share := setting.validation:
        shared["Tested on"] = f"{wording.share(share)} of the training images"
    return shared


class Cell(NamedTuple):
    text: str
    best: bool = False
    words: bool = False  # may be broken into lines, where a number may not


class Grid(NamedTuple):
    """Hold one row per method, whose name is the first cell."""

    headings: list[str]
    rows: list[list[Cell]]


def final(comparison: Comparison) -> Grid:
    """Return every measure after the last task, and what methods cost."""
    methods = comparison.methods
    columns = {"runs": [Cell(str(len(method.samples))) for method in methods]}
    for measure in MEASURES:
        columns[measure.heading] = _column(measure, [method.numbers[measure.name] for method in methods])
    if any(method.note for method in methods):
        columns["note"] = [Cell(printable(method.note), words=True) for method in methods]
    return _grid(methods, columns)


def after_each_task(comparison: Comparison) -> Grid:
    """Return mean accuracy over the tasks seen so far."""
    return _task_grid(comparison.methods, [method.after_each_task for method in comparison.methods])


def by_task(comparison: Comparison) -> Grid:
    """Return accuracy on each task after the last one."""
    return _task_grid(comparison.methods, [method.by_task for method in comparison.methods])


def _task_grid(methods: list[MethodSummary], spreads: list[list[Spread]]) -> Grid:
    columns = zip(*spreads, strict=True)
    return _grid(methods, {str(task): _column(ACCURACY, column) for task, column in enumerate(columns, 1)})


def _grid(methods: list[MethodSummary], columns: dict[str, list[Cell]]) -> Grid:
    names = [Cell(printable(method.name)) for method in methods]
    return Grid(["method", *columns], [list(row) for row in zip(names, *columns.values(), strict=True)])


def is_best(measure: Measure, spreads: Sequence[Spread | None]) -> list[bool]:
    """Return which of these means are the best; those that look the same are equally good."""
    shown = [None if spread is None else f"{spread.mean:.{measure.digits}f}" for spread in spreads]
    means = [spread.mean for spread in spreads if spread is not None]
    best = f"{measure.best(means):.{measure.digits}f}" if measure.best and means else None
    return [best is not None and mean == best for mean in shown]


def _column(measure: Measure, spreads: Sequence[Spread | None]) -> list[Cell]:
    return [
        Cell(NOTHING) if spread is None else Cell(mean_and_std(*spread, measure.digits), best)
        for spread, best in zip(spreads, is_best(measure, spreads), strict=True)
    ]


def markdown(comparison: Comparison) -> str:
    blocks = [
        f"# {escape(title(comparison))}",
        "\n".join(f"- {name}: {escape(fact)}" for name, fact in facts(comparison).items()),
        *(f"**Warning:** {escape(warning)}" for warning in comparison.warnings),
        *_section(FINAL, final(comparison)),
        *_section(AFTER_EACH_TASK, after_each_task(comparison)),
        *_section(BY_TASK, by_task(comparison)),
    ]
    return "\n\n".join(blocks) + "\n"


def _section(caption: Caption, grid: Grid) -> tuple[str, str, str]:
    return f"## {caption.heading}", caption.how_to_read, _markdown_table(grid)


def _markdown_table(grid: Grid) -> str:
    sides = ["---", *["---:"] * (len(grid.headings) - 1)]
    lines = [grid.headings, sides, *([_markdown_cell(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: Cell) -> str:
    return f"**{escape(cell.text)}**" if cell.best else escape(cell.text)


def escape(value: str) -> str:
    """Return text that Markdown shows as it is.

    >>> escape("a|b <i>")
    'a\\\\|b \\\\<i\\\\>'
    """
    return re.sub(r"([\\`*_<>\[\]|&])", r"\\\1", printable(value))


def page(comparison: Comparison) -> str:
    tasks = len(comparison.setting.tasks)
    chart = _chart(comparison) if tasks > 1 else ""
    body = "\n".join(
        [
            _header(comparison),
            _panel(FINAL, _html_table(final(comparison))),
            _panel(AFTER_EACH_TASK, chart + _html_table(after_each_task(comparison))),
            _panel(BY_TASK, _html_table(by_task(comparison))),
        ]
    )
    return PAGE.format(title=text(title(comparison)), css=CSS + COMPARISON_CSS, body=body)


def _header(comparison: Comparison) -> str:
    shown = "".join(f"<div><dt>{name}</dt><dd>{text(fact)}</dd></div>" for name, fact in facts(comparison).items())
    warnings = "".join(
        f'<p class="warning" role="note">Warning: {text(warning)}</p>' for warning in comparison.warnings
    )
    return (
        f'<header><p class="eyebrow">Oarlock comparison</p><h1>{text(title(comparison))}</h1>'
        f'{warnings}<dl class="facts">{shown}</dl>{_orders(comparison)}</header>'
    )


def _orders(comparison: Comparison) -> str:
    """The tasks under every class order, folded away."""
    blocks = []
    for order, tasks in comparison.orders.items():
        classes = "".join(f"<li>{text(', '.join(map(str, task)))}</li>" for task in tasks)
        summary = f"Tasks under class order {text(order)}"
        blocks.append(f'<details><summary>{summary}</summary><ol class="tasks">{classes}</ol></details>')
    return "".join(blocks)


def _panel(caption: Caption, content: str) -> str:
    return row(panel(caption.heading, caption.how_to_read, content))


def _chart(comparison: Comparison) -> str:
    lines = {method.name: [spread.mean for spread in method.after_each_task] for method in comparison.methods}
    return f'<div class="scroll">{method_lines(lines)}</div>'


def _html_table(grid: Grid) -> str:
    head = "".join(f"<th>{text(heading)}</th>" for heading in grid.headings)
    lines = "".join(
        f"<tr><th>{text(name.text)}</th>{''.join(map(_html_cell, cells))}</tr>" for name, *cells in grid.rows
    )
    table = f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _html_cell(cell: Cell) -> str:
    content = f"<b>{text(cell.text)}</b>" if cell.best else text(cell.text)
    return f'<td class="note">{content}</td>' if cell.words else f"<td>{content}</td>"


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write `compare.md` and `compare.html`; return the path of the page."""
    make_directory(out)
    write_text(out / "compare.md", markdown(comparison))
    write_text(out / "compare.html", page(comparison))
    return out / "compare.html"
