"""The bounds that every comparison lies between: fine-tuning with no protection, and training on all data at once."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import SharedMethod, TrainShared
from oarlock.training import Phase, TaskData


@method("finetune")
class Finetune(SharedMethod):
    """Train on one task after the other without protection: the lower bound."""

    Config = SharedConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.01}}
    verified = "an ordinary training loop on the new task, written out"
    needs_memory = False

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainShared(self, task)]


@method("joint")
class Joint(SharedMethod):
    """Train anew on all data at once at every task: the upper bound."""

    Config = SharedConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.01}, "c10-5t-lite": {"lr": 0.09}}
    verified = "an ordinary training loop on the union, written out"
    needs_memory = False

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainAnew(self, task)]


class TrainAnew(TrainShared):
    """Train fresh adapters and a fresh head on the union of all tasks, which the memory keeps without a limit."""

    def start(self) -> None:
        self.method.memory.add_images(*super().training_set())
        self.network.reset(self.task.generator("anew"))

    def training_set(self) -> tuple[Tensor, Tensor]:
        return self.method.memory.images, self.method.memory.labels
