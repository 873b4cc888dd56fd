"""HAT: hard attention to the task (Serrà et al., ICML 2018), class-incremental as the paper compares it.

Gates and protection as everywhere here, no replay; a task's head has its classes and nothing else. Which task an
input belongs to is not learned: the prediction is the argmax over the logits of all heads side by side. Without
replay no head ever sees another task's images, so logits of different heads are not comparable; this is what ROW adds
to. Choices: HAT's s_max is 400 and λ 0.75 as in its authors' code; growth is ours.
"""

from typing import Any

import torch
from torch import Tensor, nn

from oarlock.methods import method
from oarlock.methods.gated import GatedConfig, GatedMethod, TrainFeatures
from oarlock.nets.heads import new_head
from oarlock.nets.modules import Modules
from oarlock.nets.trunk import Trunk
from oarlock.training import Phase, TaskData


@method("hat")
class Hat(GatedMethod):
    """Hard attention to the task, argmax over the logits of all heads."""

    Config = GatedConfig
    paper = "Serrà et al., ICML 2018"
    verified = "argmax over all heads' logits by hand; gate gradient in closed form; old tasks bit for bit"
    needs_memory = False

    def __init__(self, trunk: Trunk, memory: int, config: GatedConfig) -> None:
        super().__init__(trunk, memory, config)
        self.heads: Modules[nn.Linear] = Modules()

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.heads.append(new_head(self.trunk.dim, task.classes, task.generator("heads")).to(self.device))

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainFeatures(self, task, self.heads[task.index])]  # with a memory that stays empty

    def scores(self, encoded: Tensor) -> Tensor:
        return torch.cat([h(f) for h, f in zip(self.heads, self.by_task(encoded), strict=True)], 1)

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        features = self.encode(images, [task])[:, 0]
        return {"features": features, "logits": self.heads[task](features)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        for classes in self.sizes:
            self.heads.append(new_head(self.trunk.dim, classes, torch.Generator()).to(self.device))
