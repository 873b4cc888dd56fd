"""The commands that list what there is."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from oarlock.cli.common import AsJsonLines, command
from oarlock.errors import OarlockError
from oarlock.printing import console, put_json, say


@command("methods")
def list_methods(as_json: AsJsonLines = False) -> None:
    """List the methods there are."""
    from oarlock.methods import methods

    _show(
        (
            {
                "method": name,
                "what": (cls.__doc__ or "").splitlines()[0],
                "paper": cls.paper,
                "memory": cls.needs_memory,
                "protected": cls.protected,
                "verified": cls.verified,
            }
            for name, cls in sorted(methods.all().items())
        ),
        as_json,
        "What each was verified against: oarlock methods --json, or docs/methods.md.",
    )


@command("detectors")
def list_detectors(as_json: AsJsonLines = False) -> None:
    """List the scores that tell known from unknown inputs, and which methods can use each (--detector)."""
    from oarlock.detectors import detectors
    from oarlock.methods import methods

    _show(
        (
            {
                "detector": name,
                "what": one.what,
                "needs": ", ".join(one.needs),
                "methods": ", ".join(m for m, cls in sorted(methods.all().items()) if not one.missing(cls.evidence)),
            }
            for name, one in detectors.all().items()
        ),
        as_json,
    )


@command("protectors")
def list_protectors(as_json: AsJsonLines = False) -> None:
    """List what keeps the tasks of a protected method from touching each other (--protector)."""
    from dataclasses import fields

    from oarlock.nets.protectors import protectors
    from oarlock.report.wording import promise_kind

    _show(
        (
            {
                "protector": name,
                "what": " ".join((cls.__doc__ or "").partition("\n\n")[0].split()),
                "promise": promise_kind(cls.tolerance),
                "options": ", ".join(option.name for option in fields(cls.Config)),
            }
            for name, cls in sorted(protectors.all().items())
        ),
        as_json,
    )


@command("trunks")
def list_trunks(as_json: AsJsonLines = False) -> None:
    """List pre-trained networks to build on (--trunk): bundled, installed, or timm's, of which these are examples."""
    from oarlock.nets import trunks

    hidden = () if as_json else ("family", "adapters", "sizes")
    _show(
        (
            {name: value for name, value in one._asdict().items() if name not in hidden}
            for one in trunks.list_trunks()
        ),
        as_json,
        "By its name, any network in timm that gives a feature vector is a trunk; load_trunk(NAME, size=…) for",
        "other images. Which sizes it can take, and where adapters stand: oarlock trunks --json, or docs/trunks.md.",
    )


def _show(things: Iterable[dict[str, Any]], as_json: bool, *afterwards: str) -> None:
    """Print a line of JSON each, or a table."""
    rows = list(things)
    if as_json:
        for row in rows:
            put_json(row)
        return
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    console.print(table)
    if afterwards:
        say(*afterwards)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, bool) or name == "verified":
        return "yes" if value else ""
    return "" if value is None else str(value)


@command("sizes")
def list_sizes(
    protocol: Annotated[list[str] | None, typer.Option(help="One of the paper's protocols, such as c10-5t.")] = None,
    as_json: AsJsonLines = False,
) -> None:
    """Show the paper's table of model sizes, counted on the real modules (DeiT-S/16; no weights are needed)."""
    from oarlock.experiments.protocols import PAPER
    from oarlock.experiments.sizes import sizes

    names = protocol or list(PAPER)
    if unknown := [name for name in names if name not in PAPER]:
        raise OarlockError(f"the paper has no protocol {unknown[0]!r}; its protocols: {', '.join(PAPER)}")
    cells = sizes(names)
    if as_json:
        for cell in cells:
            put_json({**cell._asdict(), "difference": cell.difference, "why": cell.why})
        return
    table = Table("method", *names, box=None, padding=(0, 1, 0, 0))
    for name in dict.fromkeys(cell.method for cell in cells):
        row = [cell for cell in cells if cell.method == name]
        table.add_row(name, *(_size(cell.ours, cell.paper) for cell in row))
    console.print("Million entries without images; below, the paper's number and the difference")
    console.print(table)
    for name, why in {cell.method: cell.why for cell in cells if cell.why}.items():
        say(f"* {name}: {why}")


def _size(ours: float, paper: float | None) -> str:
    from oarlock.experiments.sizes import NEAR

    if paper is None:
        return f"{ours:.2f}"
    return f"{ours:.2f}\n{paper:.1f}  {ours - paper:+.2f}{'*' if abs(ours - paper) > NEAR else ''}"
