"""RanPAC: random projections and a ridge regression (McDonnell et al., NeurIPS 2023) on the frozen trunk.

Features are lifted, h = relu(f·W) with W drawn from N(0, 1) once, and regressed on one-hot classes by the sums G =
Σ hᵀh and Q = Σ hᵀy. The penalty λ is chosen for every task, from 10⁻⁸ to 10⁸, by the squared error on a fifth of
its images that is held out, and the latest holds, as in the authors' code; so the answer depends on the last task.
With a fixed λ (`lamb`) it is that of one regression on everything, in any order. Choices: no adapters are tuned on
the first task; a λ below 10⁻¹⁰ of G's trace is raised to that, since rounding would lose it, and of two that do as
well the larger is taken; W is in half precision; 2,000 random features where the paper has 10,000 (what they cost is
in docs/closed-form.md). An output is about 1 for the right class and 0 for others, and read as a log-probability ten
times as large.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.detectors.sums import Products, products
from oarlock.methods import method
from oarlock.methods._closed_form import SHARPNESS, ClosedFormMethod
from oarlock.methods._lifted import RandomDirections, ridge
from oarlock.methods._options import MethodConfig
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import TaskData

PENALTIES = tuple(10.0**power for power in range(-8, 9))
HELD_OUT = 5  # one of so many images
FIRST_PENALTY = 1.0  # of a first task of one image, which leaves nothing to hold out


@dataclass(frozen=True)
class RanpacConfig(MethodConfig):
    random_features: int = option(2000, least=2, most=20_000)
    lamb: float | None = option(None, least=1e-8, most=1e8)  # penalty of the ridge; None: chosen for every task


@method("ranpac")
class Ranpac(ClosedFormMethod):
    """Fit a ridge regression on random features of the frozen trunk."""

    Config = RanpacConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"random_features": 10_000}}
    paper = "McDonnell et al., NeurIPS 2023"
    verified = "scikit-learn's Ridge on the same features; the authors' code on a small case"
    exact_with: ClassVar[Mapping[str, Any]] = {"lamb": 1.0}
    config: RanpacConfig

    def __init__(self, trunk: Trunk, memory: int, config: RanpacConfig) -> None:
        super().__init__(trunk, memory, config)
        self.directions = RandomDirections(trunk.dim, config.random_features)
        self.products = Products(config.random_features)  # G
        self.register_buffer("targets", torch.zeros(config.random_features, 0, dtype=torch.float64))  # Q
        self.register_buffer("penalty", torch.tensor(config.lamb or FIRST_PENALTY, dtype=torch.float64))
        self.register_buffer("weights", torch.zeros(config.random_features, 0))  # solving takes longer than loading
        self.targets: Tensor
        self.penalty: Tensor
        self.weights: Tensor

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        if task.index == 0:
            self.directions.draw(task.generator("random features"))
        self.targets, self.weights = (F.pad(columns, (0, task.classes)) for columns in (self.targets, self.weights))

    def take(self, features: Tensor, task: TaskData) -> None:
        lifted, right = self.lifted(features), F.one_hot(task.labels.to(features.device), task.classes)
        if self.config.lamb is None and len(features) > 1:
            order = torch.randperm(len(features), generator=task.generator("held out")).to(features.device)
            self.penalty.fill_(best_penalty(lifted[order], right[order]))
        self.targets[:, self.class_slice(task.index)] = products(lifted, right).to(self.device)
        self.weights.copy_(ridge(self.products.add(lifted), float(self.penalty), self.targets.cpu()))

    def lifted(self, features: Tensor) -> Tensor:
        return self.directions.along(features).relu()

    def outputs(self, features: Tensor) -> Tensor:
        """Return the regression's outputs [B, classes]."""
        return self.lifted(features) @ self.weights

    def scores(self, encoded: Tensor) -> Tensor:
        return SHARPNESS * self.outputs(encoded[:, 0])

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        classes = sum(self.classes_per_task)
        self.targets, self.weights = (F.pad(columns, (0, classes)) for columns in (self.targets, self.weights))


def best_penalty(lifted: Tensor, right: Tensor) -> float:
    """Return the penalty of which a ridge on all but the last fifth of the images has the least squared error on
    that. With fewer images than features it is solved in images, (HHᵀ + λI)⁻¹ in place of (HᵀH + λI)⁻¹."""
    kept = len(lifted) - -(-len(lifted) // HELD_OUT)
    (seen, held_out), (wanted, truth) = lifted.tensor_split([kept]), right.tensor_split([kept])
    if kept < lifted.shape[1]:
        inner, left, wanted = products(seen.T, seen.T), products(held_out.T, seen.T), wanted.cpu().double()
    else:
        inner, left, wanted = products(seen, seen), held_out.cpu().double(), products(seen, wanted)
    errors = {}
    for penalty in reversed(PENALTIES):  # of two that do as well, the larger
        answer = left @ ridge(inner.clone(), penalty, wanted)
        errors[penalty] = float((answer - truth.cpu()).square().mean())
    return min(errors, key=errors.__getitem__)
