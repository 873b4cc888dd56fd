"""A certificate in the terminal, 80 columns wide."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from oarlock.report.tables import ruled_table
from oarlock.report.theory import grids
from oarlock.theory.certificate import Certificate


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Print risks and bounds for the first k tasks, the detectors they come from, and what that means."""
    _print(console, grids.data_sentence(certificate))
    console.print()
    _print(console, "The first k tasks: measured risks, and the bounds on them")
    _print_table(console, grids.RISK_HEADS, grids.risk_rows(certificate))
    _print(console, "Every detector: its risk, on what share of foreign data, and how much of the bound it spends")
    _print_table(console, grids.DETECTOR_HEADS, grids.detector_rows(certificate))
    for sentence in grids.sentences(certificate):
        _print(console, sentence)


def _print(console: Console, sentence: str) -> None:
    console.print(Text(sentence), soft_wrap=False)


def _print_table(console: Console, heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    table = ruled_table()
    for column, head in enumerate(heads):
        table.add_column(head, justify="right" if column else "left", vertical="bottom")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
