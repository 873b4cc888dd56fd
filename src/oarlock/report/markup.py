"""The few pieces of HTML that every part of the page is made of."""

from collections.abc import Iterable
from html import escape

from oarlock.report.wording import printable


def text(value: object) -> str:
    """Everything that comes from a file passes through here, or through `escape`, to become HTML.

    >>> text("<cats & dogs>")
    '&lt;cats &amp; dogs&gt;'
    """
    return escape(printable(value))


def row(*panels: str) -> str:
    """Panels side by side, where the screen is wide enough."""
    return f'<div class="row">{"".join(panels)}</div>' if any(panels) else ""


def panel(title: str, how_to_read: str, content: str) -> str:
    return f'<section class="panel"><h2>{title}</h2><p class="how">{how_to_read}</p>{content}</section>'


def table(rows: Iterable[tuple[object, ...]], heads: Iterable[str] = ()) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    lines = (
        f"<tr><th>{text(first)}</th>{''.join(f'<td>{text(x)}</td>' for x in rest)}</tr>" for first, *rest in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}{''.join(lines)}</table>"
