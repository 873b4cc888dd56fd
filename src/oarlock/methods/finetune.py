"""Fine-tuning on every task in turn, with no protection at all: the lower bound of every comparison."""

from oarlock.methods import method
from oarlock.methods.config import AdapterConfig
from oarlock.methods.shared import SharedMethod, TrainShared
from oarlock.training import Phase, TaskData


@method("finetune")
class Finetune(SharedMethod):
    """No protection: the lower bound."""

    Config = AdapterConfig
    verified = "an ordinary training loop on the new task, written out"
    needs_memory = False

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainShared(self, task)]
