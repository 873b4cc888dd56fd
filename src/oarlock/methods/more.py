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

from dataclasses import dataclass

import torch
from torch import Tensor

from oarlock.methods import method
from oarlock.methods.config import option
from oarlock.methods.gated import TrainFeatures
from oarlock.methods.ood_heads import OodConfig, OodHeadMethod, TuneOodHeads
from oarlock.training import Phase, TaskData


@dataclass(frozen=True)
class MoreConfig(OodConfig):
    ood_epochs: int = option(10, least=0)  # back-updating
    tau: float = option(1.0, least=1e-3)
    gamma: float = option(1.0, least=0)


@method("more")
class More(OodHeadMethod):
    """OOD heads learned with replay, their classes weighted by distance."""

    Config = MoreConfig
    paper = "Kim et al., CoLLAs 2022"
    verified = "prediction by hand; back-updating moves earlier heads only; old tasks bit for bit"

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainFeatures(self, task, self.ood_heads[task.index]), BackUpdate(self, task, task.index)]

    def scores(self, encoded: Tensor) -> Tensor:
        """log of softmax(h_k)_y · c_k(x), the softmax over k's classes and "not mine"."""
        c, own = self.config.gamma * self.log_coefficients(encoded), self.log_own(self.ood_heads, encoded)
        return torch.cat([p + c[:, k, None] for k, p in enumerate(own)], 1)


class BackUpdate(TuneOodHeads):
    """Statistics of the new task, then the heads of the tasks before it."""

    name = "back-update"

    def start(self) -> None:
        self.method.fit_gaussians(self.task)
        super().start()
