"""Detectors: scores that tell known inputs from unknown ones, higher is more known. One function each, found by its
decorator.

A detector's parameters name the evidence it looks at, of one task at a time; a method says which evidence it has, and
any detector that needs no more can be used with it (`detector=`, `--detector`, `oarlock detectors`). By the paper's
theory an input is unknown when every task disclaims it, so what counts is the best that any task gives.

What evidence there may be:

- `own`: what the method itself tells tasks, or classes, apart by [B]
- `familiarity`: how near the task's classes are under the bare trunk, in direction and in distance [B]
- `kinship`: the same of all classes together, once for all tasks [B]
- `bare`: of the inputs under the bare trunk, once for all tasks [B, D]
- `statistics`: of all classes under the bare trunk, once for all tasks (`pooled.PooledGaussians`)
- `probabilities`: of all classes in the final answer, once for all tasks [B, C]
- `scores`: of the task's classes in the final answer [B, n]
- `features`: of the inputs under the task [B, D]
- `logits`: of the task's classes [B, n]
- `log_probabilities`: of the task's classes, held against an output "not mine" [B, n]
- `gaussians`: of the task's classes, with distances in their metric
- `memory`: features of all images kept for replay, under the task [M, D]
- `own_in_memory`: which of these are the task's own [M]
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.registry import Registry

EvidenceOf = Callable[[Any, Tensor], Sequence[Any]]  # a method, its encoded inputs → something of every task


class Detector(NamedTuple):
    """Hold a function that scores inputs [B], and tell what evidence it needs."""

    function: Callable[..., Tensor]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.function).parameters)

    @property
    def what(self) -> str:
        """Return what it measures, in one line."""
        return " ".join((inspect.getdoc(self.function) or "").partition("\n\n")[0].split())

    def missing(self, evidence: Mapping[str, EvidenceOf]) -> list[str]:
        """Return what it needs and a method does not have."""
        return [name for name in self.needs if name not in evidence]

    def scores(self, method: Any, encoded: Tensor) -> Tensor:
        """Return a column for every task."""
        parts = [method.evidence[name](method, encoded) for name in self.needs]
        return torch.stack([self.function(*of_task) for of_task in zip(*parts, strict=True)], 1)


detectors: Registry[Detector] = Registry("detector", __name__)


def detector(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Return a decorator that makes a function known as a detector."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        detectors.register(name)(Detector(function))
        return function

    return register
