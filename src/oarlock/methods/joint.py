"""Joint training: all images of all classes seen so far, trained anew at every task: the upper bound.

It keeps every image and so is no continual learner; it says what the trunk, the adapters and the head can do.
"""

from typing import Any

import torch
from torch import Tensor

from oarlock.memory import EncodedImages
from oarlock.methods import method
from oarlock.methods.config import TrainConfig
from oarlock.methods.shared import SharedMethod, TrainShared
from oarlock.nets.trunk import Trunk
from oarlock.training import Phase, TaskData


@method("joint")
class Joint(SharedMethod):
    """All data at once, trained anew at every task: the upper bound."""

    Config = TrainConfig
    needs_memory = False

    def __init__(self, trunk: Trunk, memory: int, config: TrainConfig) -> None:
        super().__init__(trunk, memory, config)
        self.memory = EncodedImages(trunk.card.preprocessing.size, 0)  # of everything, without features

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainAnew(self, task)]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "memory": self.memory.describe()}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.memory.rebuild(description["memory"])


class TrainAnew(TrainShared):
    """From fresh adapters and a fresh head, on the union of all tasks."""

    method: Joint

    def start(self) -> None:
        images, labels = super().training_set()
        self.method.memory.add_images(images, labels, torch.zeros(len(images), 0, 0))
        random = self.task.generator("anew")
        self.method.adapters.reset(random)
        self.method.head.reset(random)

    def training_set(self) -> tuple[Tensor, Tensor]:
        return self.method.memory.images, self.method.memory.labels
