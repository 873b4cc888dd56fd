"""ROW's other readings as methods of their own: trained as ROW is, down to the last bit, and read another way.

A run of `row` holds them already, as readings of its one training. As methods they can be taught, saved and asked.
"""

from typing import ClassVar

from torch import Tensor

from oarlock.methods import method
from oarlock.methods.base import Method, Readings
from oarlock.methods.row import Row


class RowAblation(Row):
    """ROW whose scores are its reading of the same name; everything else follows from the scores."""

    verified = "the same training as row, tensor for tensor; row's readings, bit for bit"
    readings: ClassVar[Readings] = {}
    within_task = Method.within_task
    task_scores = Method.task_scores
    known_to_tasks = Method.known_to_tasks

    def scores(self, encoded: Tensor) -> Tensor:
        return Row.readings[self.name](self, encoded)


@method("row-paper")
class RowOfThePaper(RowAblation):
    """ROW by the paper's formula: without what was added to it for trunks that tell tasks apart less well."""


@method("row-wp")
class RowWithoutWp(RowAblation):
    """ROW without WP heads: step 1's OOD heads times the distance coefficient."""


@method("row-wp-md")
class RowWithoutWpMd(RowAblation):
    """ROW without WP heads and distances: step 1's logits side by side."""
