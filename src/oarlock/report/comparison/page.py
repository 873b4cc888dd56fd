"""A comparison as one self-contained HTML page, in the look of a run's report."""

from oarlock.report.charts import method_lines
from oarlock.report.comparison import captions, grids
from oarlock.report.comparison.captions import Caption
from oarlock.report.comparison.facts import facts, title
from oarlock.report.comparison.grids import Cell, Grid
from oarlock.report.comparison.summary import Comparison
from oarlock.report.markup import panel, row, text
from oarlock.report.page import PAGE
from oarlock.report.style import COMPARISON_CSS, CSS


def page(comparison: Comparison) -> str:
    tasks = len(comparison.setting["tasks"])
    chart = _chart(comparison) if tasks > 1 else ""
    body = "\n".join(
        [
            _header(comparison),
            _panel(captions.FINAL, _table(grids.final(comparison))),
            _panel(captions.AFTER_EACH_TASK, chart + _table(grids.after_each_task(comparison))),
            _panel(captions.BY_TASK, _table(grids.by_task(comparison))),
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


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{text(heading)}</th>" for heading in grid.headings)
    lines = "".join(f"<tr><th>{text(name.text)}</th>{''.join(map(_cell, cells))}</tr>" for name, *cells in grid.rows)
    table = f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _cell(cell: Cell) -> str:
    content = f"<b>{text(cell.text)}</b>" if cell.best else text(cell.text)
    return f'<td class="note">{content}</td>' if cell.words else f"<td>{content}</td>"
