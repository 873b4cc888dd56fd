"""iCaRL: incremental classifier and representation learning (Rebuffi et al., CVPR 2017).

The network has one sigmoid per class. It learns the task's classes from labels and repeats for all earlier classes,
on new images and exemplars alike, what it said before the task. Exemplars are chosen by herding; the prediction is
the nearest mean of exemplars, on features of length 1.

Choices: the binary cross-entropy is summed over classes and averaged over images, where the authors average over both
and use a learning rate of 2 to make up for it; exemplars are ⌊budget / classes⌋ per class (authors: rounded up, above
the budget); means are of the images as they are, without their mirror images (nothing is augmented here). Means are
taken anew after every task, of old classes too, from the exemplars under the network as it is then.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import Remember, SharedMethod, TrainWithTeacher
from oarlock.nets.trunks import Trunk
from oarlock.schema import Check, integer
from oarlock.training import Phase, TaskData


@method("icarl")
class Icarl(SharedMethod):
    """Train sigmoids with distillation, answer with the nearest mean of herded exemplars."""

    Config = SharedConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.09}}
    paper = "Rebuffi et al., CVPR 2017"
    verified = "herding by brute force; loss by hand; scikit-learn's NearestCentroid"

    described: ClassVar[Mapping[str, Check]] = {**SharedMethod.described, "means": integer(0)}

    def __init__(self, trunk: Trunk, memory: int, config: SharedConfig) -> None:
        super().__init__(trunk, memory, config)
        self.register_buffer("means", torch.zeros(0, trunk.dim))
        self.means: Tensor

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainSigmoids(self, task), RememberWithMeans(self, task, herd=True)]

    def scores(self, encoded: Tensor) -> Tensor:
        features = F.normalize(encoded[:, 0], dim=1)
        return -(features[:, None] - self.means).square().sum(2)

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.means = self.means.new_zeros(description["means"], self.trunk.dim)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "means": len(self.means)}


class TrainSigmoids(TrainWithTeacher):
    """Train new classes by labels, old ones by the network before the task."""

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        targets = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        targets[:, : self.old] = self.taught[rows, : self.old].sigmoid()
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(logits)

    def finish(self) -> None:
        self.method.drop_copies()


class RememberWithMeans(Remember):
    """Remember herded exemplars, then take the mean of every class's."""

    method: Icarl

    def finish(self) -> None:
        memory = self.method.memory
        features = F.normalize(self.method.encode(memory.images, [0])[:, 0], dim=1)
        classes = range(sum(self.method.classes_per_task))
        means = torch.stack([features[memory.labels.to(features.device) == label].mean(0) for label in classes])
        self.method.means = F.normalize(means, dim=1)
