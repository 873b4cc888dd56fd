"""HAT: hard attention to the task (Serrà et al., ICML 2018), class-incremental as the paper compares it.

Gates and protection as everywhere here, no replay; a task's head has its classes and nothing else. Which task an
input belongs to is not learned: the prediction is the argmax over the logits of all heads side by side. Without
replay no head ever sees another task's images, so logits of different heads are not comparable; this is what ROW adds
to. Choices: HAT's s_max is 400 and λ 0.75 as in its authors' code; growth is ours.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.detectors import EvidenceOf
from oarlock.methods import method
from oarlock.methods._options import ProtectedConfig
from oarlock.methods._protected import AS_IN_PAPER, ProtectedMethod, TrainFeatures
from oarlock.nets.heads import Modules, new_head
from oarlock.nets.trunks import Trunk
from oarlock.training import Phase, TaskData


@method("hat")
class Hat(ProtectedMethod):
    """Gate units by hard attention to the task, answer with the argmax over the logits of all heads."""

    Config = ProtectedConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": AS_IN_PAPER | {"s_max": 400.0},
        "c10-5t-mini": {"lr": 0.01},
    }
    paper = "Serrà et al., ICML 2018"
    verified = "argmax over all heads' logits by hand; gate gradient in closed form; old tasks bit for bit"
    needs_memory = False
    size_note = "the paper's HAT heads have an output for every class of the whole stream, ours for their task's"
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **ProtectedMethod.evidence,
        "logits": lambda method, encoded: method.logits(encoded),
    }

    def __init__(self, trunk: Trunk, memory: int, config: ProtectedConfig) -> None:
        super().__init__(trunk, memory, config)
        self.heads: Modules[nn.Linear] = Modules()

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.heads.append(new_head(self.trunk.dim, task.classes, task.generator("heads")).to(self.device))

    forget = ProtectedMethod.forget_class

    def parts_of_tasks(self) -> list[Modules[Any]]:
        return [self.heads]

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainFeatures(self, task, self.heads[task.index])]  # with a memory that stays empty

    def logits(self, encoded: Tensor) -> list[Tensor]:
        """Return what every task's head says."""
        return [h(f) for h, f in zip(self.heads, self.by_task(encoded), strict=True)]

    def scores(self, encoded: Tensor) -> Tensor:
        return torch.cat(self.logits(encoded), 1)

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        features = self.encode(images, [task])[:, 0]
        return {"features": features, "logits": self.heads[task](features)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        for classes in self.classes_per_task:
            self.heads.append(new_head(self.trunk.dim, classes, torch.Generator()).to(self.device))
