"""HTML made of names and numbers, for pages and for notebooks: whatever comes from a file passes through `text`."""

from collections.abc import Iterable, Mapping
from html import escape

from oarlock.errors import printable

# A notebook has colours of its own, light or dark, so a card has none.
CARD = (
    '<div style="display:inline-block;max-width:100%;border:1px solid #8886;border-radius:8px;padding:.6em 1em">'
    "<b>{title}</b><div>{facts}</div>"
    '<div style="max-height:24em;overflow:auto">{tables}</div></div>'
)


def text(value: object) -> str:
    """Return a value as HTML; all that comes from a file passes through here, or through `escape`.

    >>> text("<cats & dogs>")
    '&lt;cats &amp; dogs&gt;'
    """
    return escape(printable(value))


def table(rows: Iterable[tuple[object, ...]], heads: Iterable[str] = ()) -> str:
    """Return rows as a table; the first cell of each is its heading."""
    head = "".join(f"<th>{name}</th>" for name in heads)
    lines = (
        f"<tr><th>{text(first)}</th>{''.join(f'<td>{text(x)}</td>' for x in rest)}</tr>" for first, *rest in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}{''.join(lines)}</table>"


def card(title: str, facts: Mapping[str, object], *tables: str) -> str:
    """Return what a notebook shows of an object: its title, facts about it, and tables made by `table`.

    >>> "classes: <b>2</b>" in card("oar", {"classes": 2})
    True
    """
    shown = " · ".join(f"{name}: <b>{text(value)}</b>" for name, value in facts.items())
    return CARD.format(title=text(title), facts=shown, tables="".join(tables))
