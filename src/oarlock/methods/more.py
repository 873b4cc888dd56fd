"""MORE: multi-head model for continual learning via OOD replay (Kim et al., CoLLAs 2022), the system ROW grew out of.

A task's features and OOD head are learned as in ROW's first step. There is no WP head and no OOD term in the
prediction: classes compete by their probability under their own task's OOD head, times the distance coefficient.
After every task the *earlier* tasks' heads are updated on the memory ("back-updating"), which then holds the new
task too.

Choices: back-updating sees own and foreign images half and half, as ROW's step 3 does here; the authors' code draws
them as they stand in the memory and, as released, computes their features under the first task's gates, which we take
for an oversight. Exponent and temperature of the formula are 1 as in the paper; the released code predicts at
temperature 2. Covariance as ROW's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oarlock.methods import method
from oarlock.methods._ood_heads import OodConfig, OodHeadMethod, TuneOodHeads
from oarlock.methods._protected import AS_IN_PAPER, TrainFeatures
from oarlock.options import option
from oarlock.training import Phase, TaskData


@dataclass(frozen=True)
class MoreConfig(OodConfig):
    ood_epochs: int = option(10, least=0)  # back-updating
    tau: float = option(1.0, least=1e-3)
    gamma: float = option(1.0, least=0)


@method("more")
class More(OodHeadMethod):
    """Learn OOD heads with replay, weigh their classes by distance."""

    Config = MoreConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": AS_IN_PAPER | {"tau": 1.0, "shrinkage": 0.2, "gamma": 1.0},
        "c10-5t-mini": {"lr": 0.09},
        "c10-5t-lite": {"lr": 0.01},
    }
    paper = "Kim et al., CoLLAs 2022"
    verified = "prediction by hand; back-updating moves earlier heads only; old tasks bit for bit"

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainFeatures(self, task, self.ood_heads[task.index]), BackUpdate(self, task, task.index)]

    def scores(self, encoded: Tensor) -> Tensor:
        """Return the log of softmax(h_k)_y · c_k(x), the softmax over k's classes and "not mine"."""
        c, own = self.config.gamma * self.log_coefficients(encoded), self.log_own(self.ood_heads, encoded)
        return torch.cat([p + c[:, k, None] for k, p in enumerate(own)], 1)


class BackUpdate(TuneOodHeads):
    """Take the statistics of the new task, then tune the heads of the tasks before it."""

    name = "back-update"

    def start(self) -> None:
        self.method.fit_gaussians(self.task)
        super().start()
