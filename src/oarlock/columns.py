"""Which columns of a method's scores are of one class.

A method numbers what it learned: a column for each class of each task. A class of which more photos came later, or
that another was merged into, has several, and answers are given by class.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.data.images import Label


class Columns:
    """Read scores of columns as scores of classes, in the order these were first learned.

    >>> columns = Columns(["ant", "bee", "ant"])
    >>> columns.labels
    ['ant', 'bee']
    >>> columns.joined(torch.tensor([[0.2, 0.5, 0.3]]).log()).exp()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self.of: dict[Label, list[int]] = {}
        for column, label in enumerate(labels):
            self.of.setdefault(label, []).append(column)
        self.labels = list(self.of)
        most = max(map(len, self.of.values()), default=0)
        self._each = torch.tensor([own + [len(labels)] * (most - len(own)) for own in self.of.values()])

    def __len__(self) -> int:
        return sum(map(len, self.of.values()))

    @property
    def first(self) -> dict[int, int]:
        """Return for every column of a class but its first which one that is."""
        return {column: own[0] for own in self.of.values() for column in own[1:]}

    def joined(self, scores: Tensor) -> Tensor:
        """Return scores of classes: probabilities of a class's columns are added up."""
        return self._by_class(scores).logsumexp(2) if self.first else scores

    def strongest(self, scores: Tensor) -> Tensor:
        """Return for every class the column that says most for it."""
        if not self.first:
            return torch.arange(scores.shape[1], device=scores.device).repeat(len(scores), 1)
        best = self._by_class(scores).argmax(2, keepdim=True)
        return self._each.to(scores.device).expand(len(scores), -1, -1).gather(2, best)[:, :, 0].contiguous()

    def _by_class(self, scores: Tensor) -> Tensor:
        """[B, classes, columns of each], −∞ where a class has fewer than others."""
        return F.pad(scores, (0, 1), value=-torch.inf)[:, self._each.to(scores.device)]
