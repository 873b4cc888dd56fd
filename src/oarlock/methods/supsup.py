"""SupSup: supermasks in superposition (Wortsman et al., NeurIPS 2020), where nobody says the task of an image.

Every task has a mask over fixed random adapters (the protector of the same name) and over a fixed random output
layer, which all tasks share: class y of every task is output y, and outputs that a task has no class for are
superfluous neurons. An image's task is found by the entropy of what a superposition of all tasks' masks answers,
H(f(x, W ⊙ Σ α_k M_k)): the task whose share α_k would lower it most, argmin of ∂H/∂α at α = 1/T (one-shot). The
binary search keeps the better half of the tasks and asks again, log₂ T times. The answer is then that of the
task's own mask.

As in the authors' code: the masks, the gradient at equal shares, of an odd number of tasks the larger half. Per
image, as their experiments infer it (from one image of a batch). Not here: their second objective G. Ours: a frozen
trunk below and around the adapters, with norms of a task's own that are superposed by the same shares; scores have a
rate of their own; the classes of tasks that were not chosen keep a probability of about e^−20.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.detectors import EvidenceOf
from oarlock.errors import OarlockError
from oarlock.methods import method
from oarlock.methods._options import ProtectedConfig
from oarlock.methods._protected import ProtectedMethod, TrainFeatures
from oarlock.nets.adapters import CachedActivations
from oarlock.nets.heads import Modules
from oarlock.nets.protectors import supsup
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Phase, TaskData

CHOSEN = 20.0  # by how much the task that was chosen is more probable, as a logarithm


@dataclass(frozen=True)
class SupSupConfig(ProtectedConfig):
    protector: str = "supsup"
    outputs: int = option(100, least=1, most=2**14)  # of the output layer; more where a task has more classes
    search: Literal["one-shot", "binary"] = "one-shot"  # how the task is found


class Output(nn.Module):
    """Hold the output layer, with a mask of it for every task. A task with more classes than there are outputs adds
    a block, which earlier tasks never evaluate."""

    def __init__(self, inputs: int, outputs: int, share: float) -> None:
        super().__init__()
        self.inputs, self.outputs, self.share = inputs, outputs, share
        self.blocks: Modules[supsup.MaskedLinear] = Modules()
        self.begun_with: list[int] = []  # blocks, of every task

    def add(self, classes: int, learning: bool) -> None:
        """Take the shapes of one more task."""
        missing = classes - sum(len(block.constants) for block in self.blocks)
        if missing > 0:
            new = supsup.MaskedLinear(self.inputs, missing if self.blocks else max(missing, self.outputs), self.share)
            for _ in self.begun_with:
                new.add(learning=False)
            self.blocks.append(new)
        for block in self.blocks:
            block.add(learning)
        self.begun_with.append(len(self.blocks))

    def reset(self, random: torch.Generator) -> None:
        """Draw new scores, and constants where there are none."""
        for block in self.blocks:
            block.reset(random)

    @torch.no_grad()
    def finish(self) -> None:
        """Keep the newest task's masks."""
        for block in self.blocks:
            block.finish(closed=False)

    def forward(self, features: Tensor, task: int | None = None) -> Tensor:
        """Return what a task, or the newest, says."""
        task = len(self.begun_with) - 1 if task is None else task
        blocks = [self.blocks[index] for index in range(self.begun_with[task])]
        return torch.cat([F.linear(features, block.weight(task)) for block in blocks], 1)

    def superposed(self, features: Tensor, shares: Tensor) -> Tensor:
        """Return what superpositions of tasks say, one for each image."""
        parts = [(block.superposed(shares) @ features[:, :, None])[:, :, 0] for block in self.blocks]
        return torch.cat(parts, 1)


@method("supsup")
class SupSup(ProtectedMethod):
    """Mask fixed random weights, and find the task by the gradient of the entropy of all masks in superposition."""

    Config = SupSupConfig
    paper = "Wortsman et al., NeurIPS 2020"
    verified = "masks, entropy, gradients and both searches with the authors' code; old tasks bit for bit"
    needs_memory = False
    config: Any
    protector: supsup.SupSup
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **ProtectedMethod.evidence,
        "logits": lambda method, encoded: method.logits(encoded),
    }

    def __init__(self, trunk: Trunk, memory: int, config: Any) -> None:
        super().__init__(trunk, memory, config)
        if not isinstance(self.protector, supsup.SupSup):
            raise OarlockError(
                f"option protector={config.protector!r}: supsup finds the task by superposing masks, which only the "
                "protector 'supsup' has"
            )
        self.features_frozen = False  # what is believed of a task changes with every further one
        self.output = Output(trunk.dim, config.outputs, config.share).to(self.device)

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.output.add(task.classes, learning=True)
        self.output.to(self.device).reset(task.generator("heads"))

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainMasks(self, task, self.output)]

    # -- what is asked of images: features of every task, and what is believed of it --------------------------

    def feature_sets(self, tasks: int) -> Sequence[int]:
        """Return the tasks, and as many rows of features as have room for a number for each of them."""
        return [*range(tasks), *range(-tasks // self.trunk.dim, 0)]

    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        return self._asked(self.protector.below(images), sets)

    def encode_cached(
        self, activations: CachedActivations, sets: Sequence[int], rows: Tensor | None = None
    ) -> Tensor:
        return activations.through(lambda chunk: self._asked(chunk, sets), rows)

    def _asked(self, activations: Tensor, sets: Sequence[int]) -> Tensor:
        tasks = [index for index in sets if index >= 0]
        features = self._under(activations, tasks)
        if len(tasks) == len(sets):
            return features
        beliefs = F.pad(self.beliefs(activations, len(tasks)), (0, -len(tasks) % self.trunk.dim))
        return torch.cat([features, beliefs.view(len(features), -1, self.trunk.dim)], 1)

    def beliefs(self, activations: Tensor, tasks: int) -> Tensor:
        """Return one column per task, the largest in that of the task that is found."""
        if self.config.search == "one-shot":
            return -self.entropy_gradient(activations, activations.new_full((len(activations), tasks), 1 / tasks))
        believed, left = activations.new_zeros(len(activations), tasks), tasks
        alive = torch.ones_like(believed, dtype=torch.bool)
        while left > 1:
            gradient = self.entropy_gradient(activations, alive / left)
            left = (left + 1) // 2
            better = gradient.masked_fill(~alive, torch.inf).argsort(dim=1, stable=True)[:, :left]
            alive = torch.zeros_like(alive).scatter(1, better, True)
            believed += alive
        return believed

    @torch.enable_grad()
    def entropy_gradient(self, activations: Tensor, shares: Tensor) -> Tensor:
        """Return for each image ∂H/∂α at these shares [B, tasks]."""
        shares = shares.detach().requires_grad_()
        logits = self.output.superposed(self.protector.superposed(activations, shares), shares)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum()
        return torch.autograd.grad(entropy, shares)[0]

    def by_task(self, encoded: Tensor) -> list[Tensor]:
        return list(encoded[:, : len(self.classes_per_task)].unbind(1))

    # -- prediction ----------------------------------------------------------------------------------------

    def logits(self, encoded: Tensor) -> list[Tensor]:
        """Return what every task's mask says of its classes."""
        pairs = zip(self.by_task(encoded), self.classes_per_task, strict=True)
        return [self.output(features, task)[:, :classes] for task, (features, classes) in enumerate(pairs)]

    def scores(self, encoded: Tensor) -> Tensor:
        """Return log P(y, k | x): within a task its own softmax, and nearly all for the task that is found."""
        found = self.task_scores(encoded)
        parts = [logits.log_softmax(1) + found[:, k, None] for k, logits in enumerate(self.logits(encoded))]
        return torch.cat(parts, 1)

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        return self.logits(encoded)[task].log_softmax(1)

    def task_scores(self, encoded: Tensor) -> Tensor:
        tasks = len(self.classes_per_task)
        believed = encoded[:, tasks:].flatten(1)[:, :tasks]
        found = F.one_hot(believed.argmax(1), tasks)
        return (believed.log_softmax(1) + CHOSEN * found).log_softmax(1)

    @property
    def can_compact(self) -> bool:
        """Return no: a superposition is asked for, not only what tasks have."""
        return False

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised = super().promised(images, task)
        return {**promised, "logits": self.output(promised["features"], task)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        for task, classes in enumerate(self.classes_per_task, 1):
            self.output.add(classes, self.protector.learning and task == len(self.classes_per_task))
        self.output.to(self.device)


class TrainMasks(TrainFeatures):
    """Train the scores of the task's masks, of the adapters and of the output layer, and its norms."""

    head: Output

    def optimiser(self) -> Optimizer:
        norms, scores = self.protector.parameter_groups()
        scores["params"] += [block.scores for block in self.head.blocks]
        return self.config.new_optimiser([norms, scores], self.config.lr)

    def finish(self) -> None:
        super().finish()
        self.head.finish()
