"""Joint training: all images of all classes seen so far, trained anew at every task: the upper bound.

It keeps every image and so is no continual learner; it says what the trunk, the adapters and the head can do.
"""

from torch import Tensor

from oarlock.methods import method
from oarlock.methods.config import AdapterConfig
from oarlock.methods.shared import SharedMethod, TrainShared
from oarlock.training import Phase, TaskData


@method("joint")
class Joint(SharedMethod):
    """All data at once, trained anew at every task: the upper bound."""

    Config = AdapterConfig
    verified = "an ordinary training loop on the union, written out"
    needs_memory = False

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainAnew(self, task)]


class TrainAnew(TrainShared):
    """From fresh adapters and a fresh head, on the union of all tasks, which the memory keeps without a limit."""

    def start(self) -> None:
        self.method.memory.add_images(*super().training_set())
        self.network.reset(self.task.generator("anew"))

    def training_set(self) -> tuple[Tensor, Tensor]:
        return self.method.memory.images, self.method.memory.labels
