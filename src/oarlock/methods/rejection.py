"""How methods with OOD heads tell known inputs from unknown ones: scores to choose from, higher is more known.

By the paper's theory an input is unknown when the OOD head of every task disclaims it, so what counts is the best
that any task gives: scores here have a column per task.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from oarlock.ood import plain_distances

if TYPE_CHECKING:
    from oarlock.methods.ood_heads import OodHeadMethod

Rejection = Literal["claim", "softmax", "not-foreign", "energy", "distance", "memory"]


def by_claim(method: "OodHeadMethod", encoded: Tensor) -> Tensor:
    """What tasks are told apart by: the best class's output of the OOD head times the distance coefficient."""
    return method.log_claims(encoded, method.config.gamma)


def by_softmax(method: "OodHeadMethod", encoded: Tensor) -> Tensor:
    """The best class's output of the OOD head alone."""
    return method.log_claims(encoded, gamma=0)


def by_not_foreign(method: "OodHeadMethod", encoded: Tensor) -> Tensor:
    """One minus the output "not mine": what all the task's classes have together."""
    own = method.log_own(method.ood_heads, encoded)
    return torch.stack([outputs.logsumexp(1) for outputs in own], 1)


def by_energy(method: "OodHeadMethod", encoded: Tensor) -> Tensor:
    """The logits of the task's classes, not held against "not mine"."""
    features = method.by_task(encoded)
    logits = [head(f)[:, :-1] for head, f in zip(method.ood_heads, features, strict=True)]
    return torch.stack([of_task.logsumexp(1) for of_task in logits], 1)


def by_distance(method: "OodHeadMethod", encoded: Tensor) -> Tensor:
    """The distance coefficient alone: how near the nearest class mean is, in its task's metric."""
    return method.log_coefficients(encoded)


def by_memory(method: "OodHeadMethod", encoded: Tensor) -> Tensor:
    """How near the nearest image of the memory is, in the features and the metric of its task."""
    memory = method.memory
    tasks = method.tasks_of(memory.labels)
    kept = method.by_task(memory.encoded)
    nearest = []
    for k, features in enumerate(method.by_task(encoded)):
        whitening = method.gaussians[k].whitening
        distances = plain_distances(features @ whitening.T, kept[k] @ whitening.T)
        nearest.append(distances.masked_fill(tasks != k, torch.inf).amin(1))
    return -torch.stack(nearest, 1)


SCORES: dict[Rejection, Callable[["OodHeadMethod", Tensor], Tensor]] = dict(
    zip(get_args(Rejection), (by_claim, by_softmax, by_not_foreign, by_energy, by_distance, by_memory), strict=True)
)
