"""What methods share whose every task can say "not mine": OOD heads on the features of a protector."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.detectors import EvidenceOf
from oarlock.detectors.gaussians import log_nearness
from oarlock.methods._protected import GaussianConfig, GaussianMethod
from oarlock.nets.heads import Modules, new_head
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy, cycled


@dataclass(frozen=True)
class OodConfig(GaussianConfig):
    """Say how heads are tuned on the memory, and what is made of their outputs and of distances."""

    ood_epochs: int = option(5, least=0)
    head_batch: int = option(32, least=1, most=2**16)  # of its own images and of all others, each
    head_lr: float = option(0.003, least=0)
    tau: float = option(5.0, least=1e-3)  # temperature of a head's softmax
    gamma: float = option(8.0, least=0)  # exponent of the distance coefficient; 1 in the papers


class OodHeadMethod(GaussianMethod):
    """Give every task a head h_k with one output more than classes."""

    config: OodConfig
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **GaussianMethod.evidence,
        "own": lambda method, encoded: method.log_claims(encoded, method.config.gamma).unbind(1),
        "logits": lambda method, encoded: method.ood_logits(encoded),
        "log_probabilities": lambda method, encoded: method.log_own(method.ood_heads, encoded),
    }

    def __init__(self, trunk: Trunk, memory: int, config: OodConfig) -> None:
        super().__init__(trunk, memory, config)
        self.ood_heads: Modules[nn.Linear] = Modules()

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        super().add_heads(classes, random)
        self.ood_heads.append(new_head(self.trunk.dim, classes + 1, random).to(self.device))

    forget = GaussianMethod.forget_class

    def parts_of_tasks(self) -> list[Modules[Any]]:
        return [*super().parts_of_tasks(), self.ood_heads]

    def tune_again(self, task: TaskData) -> list[Phase]:
        return [TuneAgain(self, task, len(self.classes_per_task))]

    def log_coefficients(self, encoded: Tensor) -> Tensor:
        """Return log c_k, with c_k(x) = max over k's classes of 1 / Mahalanobis distance under the task's
        features."""
        pairs = zip(self.gaussians, self.measured(encoded), strict=True)
        return torch.stack([log_nearness(gaussians.distances(features)) for gaussians, features in pairs], 1)

    def log_claims(self, encoded: Tensor, gamma: float) -> Tensor:
        """Return how strongly every task claims the input: log of c_k(x)^γ · max over k's classes of softmax(h_k)."""
        best = torch.stack([own.amax(1) for own in self.log_own(self.ood_heads, encoded)], 1)
        return best + gamma * self.log_coefficients(encoded)

    def ood_logits(self, encoded: Tensor) -> list[Tensor]:
        """Return for every task the logits of its classes, without the output "not mine"."""
        return [head(f)[:, :-1] for head, f in zip(self.ood_heads, self.by_task(encoded), strict=True)]

    def log_own(self, heads: Modules[nn.Linear], encoded: Tensor) -> list[Tensor]:
        """Return for every task the log-softmax of its OOD head, without the output "not mine"."""
        return [self.log_softmax(h(f))[:, :-1] for h, f in zip(heads, self.by_task(encoded), strict=True)]

    def log_softmax(self, logits: Tensor) -> Tensor:
        return (logits / self.config.tau).log_softmax(1)


class OwnAndForeign(NamedTuple):
    """Hold a head, and the memory's features under its task: of its own images, with labels, and of all others."""

    head: nn.Linear
    own: Tensor
    labels: Tensor
    foreign: Tensor


class TuneOodHeads(Optimisation):
    """Tune OOD heads of the first tasks, each on the memory: its own images against all the others, half and half."""

    name = "OOD heads"

    def __init__(self, method: OodHeadMethod, task: TaskData, tasks: int) -> None:
        self.method, self.task, self.config = method, task, method.config
        self.heads = [method.ood_heads[j] for j in range(tasks)]
        self.epochs = self.config.ood_epochs if task.index else 0  # nothing is foreign to a single task

    def start(self) -> None:
        self.method.remember(self.task)

    def prepare(self) -> None:
        method, memory = self.method, self.method.memory
        labels = memory.labels.to(method.device)
        self.data = []
        for j, (head, features) in enumerate(zip(self.heads, method.by_task(memory.encoded), strict=False)):
            among = method.as_own(labels, j)
            own = among < method.classes_per_task[j]
            if own.any() and not own.all():  # else there is nothing to tell apart
                self.data.append(OwnAndForeign(head, features[own], among[own], features[~own]))

    def optimiser(self) -> Optimizer:
        parameters = [parameter for head in self.heads for parameter in head.parameters()]
        return self.config.new_optimiser(parameters, self.config.head_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        steps = -(-len(self.method.memory) // self.config.head_batch)
        sizes = [self.config.head_batch] * steps
        columns = []
        for _, own, _, foreign in self.data:
            columns += [cycled(len(own), sizes, random), cycled(len(foreign), sizes, random)]
        return list(zip(*columns, strict=True))

    def loss(self, step: Step) -> Loss:
        """Return the sum of all heads' losses (Eq. obj_back_update): they share nothing, so each is trained as if
        alone."""
        losses, right = [], []
        for j, (head, own, labels, foreign) in enumerate(self.data):
            mine, others = step.batch[2 * j].to(own.device), step.batch[2 * j + 1].to(own.device)
            logits = head(torch.cat([own[mine], foreign[others]]))
            target = torch.cat([labels[mine], labels.new_full((len(others),), head.out_features - 1)])
            losses.append(F.cross_entropy(logits, target))
            right.append(accuracy(logits, target))
        return Loss(torch.stack(losses).sum(), sum(right) / len(right))


class TuneAgain(TuneOodHeads):
    """Tune the heads of all tasks without a new one, on the memory as it is."""

    name = "OOD heads again"

    def start(self) -> None:
        """Leave the memory as it is."""
