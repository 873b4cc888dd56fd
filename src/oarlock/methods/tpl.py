"""TPL: task prediction by a likelihood ratio (Lin et al., ICLR 2024, "Class Incremental Learning via Likelihood Ratio
Based Task Prediction"), ROW's successor.

A task's features and head are learned as in ROW's first step, but images of the memory keep their own classes: the
head has the task's n_k outputs and one for every class before it; only the first n_k are used afterwards. How much an
input belongs to a task is said by three scores under the task's features: nearness to its classes (MD) plus distance
from what the memory holds of other tasks (KNN), a log-likelihood ratio; and the largest own logit (MLS). MD and MLS
are divided by their means over the task's training images. After every task each task's score is calibrated on the
memory by an affine map, starting from the identity.

From the authors' code: the fifth neighbour; temperature 0.05 of the softmax over tasks; the calibration by
cross-entropy over tasks in 100 full-batch steps of SGD with lr 0.01 and momentum 0.8, without that temperature (an
image of the memory may be its own neighbour, which hardly matters on our sample). KNN is a distance as in the paper;
the code's is squared (faiss). Ours: the covariance is ROW's, shrunk towards the identity (theirs: pooled over images,
pseudo-inverse); a floor for the distance of an image alone in its class; a largest logit that is not divided where a
first task of one class leaves its head nothing to tell apart, and otherwise a floor that only keeps its mean above 0;
the farthest neighbour where the memory has fewer than five foreign images; no KNN while there is a single task;
growth; how networks are trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from oarlock.detectors import EvidenceOf
from oarlock.detectors.gaussians import plain_distances
from oarlock.methods import method
from oarlock.methods._protected import AS_IN_PAPER, GaussianConfig, GaussianMethod, TrainFeatures
from oarlock.nets.heads import Modules, new_head
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy

MIN_SQUARED_DISTANCE = 1.0  # an image alone in its class lies on the mean, and would be all of the training mean
MIN_MEAN_LOGIT = 0.01  # a head that hardly learned may have a mean below 0, which would turn its scores around


@dataclass(frozen=True)
class TplConfig(GaussianConfig):
    neighbour: int = option(5, least=1)  # which of the nearest foreign images counts
    tau: float = option(0.05, least=1e-3)  # temperature of the softmax over tasks
    calibration_steps: int = option(100, least=0, most=10**6)
    calibration_lr: float = option(0.01, least=0)
    calibration_momentum: float = option(0.8, least=0, most=1)


class Scale(nn.Module):
    """Hold what makes one task's scores comparable with others': means over its training images, and a·S + b."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean_logit", torch.ones(()))
        self.register_buffer("mean_nearness", torch.ones(()))
        self.mean_logit: Tensor
        self.mean_nearness: Tensor
        self.a = nn.Parameter(torch.ones(()))
        self.b = nn.Parameter(torch.zeros(()))


@method("tpl")
class Tpl(GaussianMethod):
    """Tell tasks apart by a likelihood ratio between their own classes and the memory's others."""

    Config = TplConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": AS_IN_PAPER | {"shrinkage": 0.2},
        "c10-5t-lite": {"lr": 0.01},
    }
    paper = "Lin et al., ICLR 2024"
    constants = (*GaussianMethod.constants, "training_means")
    verified = "its three scores by scipy and scikit-learn; score, probability and calibration in numpy"
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **GaussianMethod.evidence,
        # Calibrated: the largest of several needs scores that are comparable.
        "own": lambda method, encoded: method.calibrated(method.raw_scores(encoded)).unbind(1),
        "logits": lambda method, encoded: [method.own_logits(f, k) for k, f in enumerate(method.by_task(encoded))],
    }
    config: TplConfig

    def __init__(self, trunk: Trunk, memory: int, config: TplConfig) -> None:
        super().__init__(trunk, memory, config)
        self.heads: Modules[nn.Linear] = Modules()
        self.scales: Modules[Scale] = Modules()

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        super().add_heads(classes, random)
        earlier = self.class_slice(len(self.heads)).start
        self.heads.append(new_head(self.trunk.dim, classes + earlier, random).to(self.device))
        self.scales.append(Scale().to(self.device))

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainAmongAll(self, task, self.heads[task.index]), TakeStatistics(self, task), Calibrate(self, task)]

    # -- prediction ----------------------------------------------------------------------------------------

    def scores(self, encoded: Tensor) -> Tensor:
        """Return log P(y, k | x) = log WP_k(y | x) + log TP_k(x)."""
        tp = self.task_scores(encoded)
        return torch.cat([self.within_task(encoded, k) + tp[:, k, None] for k in range(tp.shape[1])], 1)

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        return self.own_logits(self.by_task(encoded)[task], task).log_softmax(1)

    def task_scores(self, encoded: Tensor) -> Tensor:
        """Return log TP: the softmax over tasks of the calibrated scores."""
        return (self.calibrated(self.raw_scores(encoded)) / self.config.tau).log_softmax(1)

    def calibrated(self, raw: Tensor) -> Tensor:
        return raw * torch.stack([scale.a for scale in self.scales]) + torch.stack([scale.b for scale in self.scales])

    def raw_scores(self, encoded: Tensor) -> Tensor:
        """Return for every task S = −log(exp(−(MD + KNN)) + exp(−MLS)): either score alone can turn an input down."""
        ratios, logits = self.parts(encoded)
        return -torch.stack([-ratios, -logits]).logsumexp(0)

    def parts(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return for every task MD + KNN, and MLS."""
        ratios, logits = [], []
        for k, (features, scale) in enumerate(zip(self.by_task(encoded), self.scales, strict=True)):
            ratios.append(self.nearness(features, k) / scale.mean_nearness + self.foreign_distance(features, k))
            logits.append(self.own_logits(features, k).amax(1) / scale.mean_logit)
        return torch.stack(ratios, 1), torch.stack(logits, 1)

    def own_logits(self, features: Tensor, task: int) -> Tensor:
        return self.heads[task](features)[:, : self.classes_per_task[task]]

    def nearness(self, features: Tensor, task: int) -> Tensor:
        """Return 1 / squared Mahalanobis distance to the nearest of the task's classes."""
        return 1 / self.gaussians[task].distances(features).amin(1).square().clamp_min(MIN_SQUARED_DISTANCE)

    def foreign_distance(self, features: Tensor, task: int) -> Tensor:
        """Return the distance to the fifth nearest of the memory's images of other tasks, on features of length 1."""
        kept, own = self.by_task(self.memory.encoded)[task], self.own_in_memory()[task]
        distances = plain_distances(F.normalize(features, dim=1), F.normalize(kept, dim=1)).masked_fill(
            own, torch.inf
        )
        nearest = distances.topk(min(self.config.neighbour, len(kept)), largest=False).values
        return nearest.masked_fill(nearest.isinf(), 0).amax(1)  # the farthest there is, 0 where none is foreign

    # -- promise -------------------------------------------------------------------------------------------

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised, scale = super().promised(images, task), self.scales[task]
        return {
            **promised,
            "logits": self.own_logits(promised["features"], task),
            "training_means": torch.stack([scale.mean_logit, scale.mean_nearness]),
        }


class TrainAmongAll(TrainFeatures):
    """Train features and head of the task; the memory's images keep their classes, behind the task's."""

    def labels_of_memory(self) -> Tensor:
        own, labels = super().labels_of_memory(), self.method.memory.labels
        return torch.where(own < self.task.classes, own, labels + self.task.classes)


class TakeStatistics(Phase):
    """Take the Gaussians of the task's classes and the training means of its scores, and fill the memory."""

    name = "statistics"

    def __init__(self, tpl: Tpl, task: TaskData) -> None:
        self.tpl, self.task = tpl, task

    @torch.no_grad()
    def start(self) -> None:
        tpl, k = self.tpl, self.task.index
        tpl.fit_gaussians(self.task)
        features, scale = tpl.own_features(self.task)[:, -1], tpl.scales[k]
        if tpl.heads[k].out_features > 1:  # a single output is never trained, so its mean says nothing: it stays 1
            scale.mean_logit.copy_(tpl.own_logits(features, k).amax(1).mean().clamp_min(MIN_MEAN_LOGIT))
        scale.mean_nearness.copy_(tpl.nearness(features, k).mean())
        tpl.remember(self.task)


class Calibrate(Optimisation):
    """Fit an affine map of every task's score, on the memory: which task does an image come from?"""

    name = "calibration"

    def __init__(self, tpl: Tpl, task: TaskData) -> None:
        self.tpl, self.config = tpl, tpl.config
        # Nothing is foreign to a single task.
        self.epochs = 1 if task.index and tpl.config.calibration_steps else 0

    @torch.no_grad()
    def start(self) -> None:
        for scale in self.tpl.scales:
            scale.a.fill_(1)
            scale.b.fill_(0)

    @torch.no_grad()
    def prepare(self) -> None:
        memory = self.tpl.memory
        self.scores = self.tpl.raw_scores(memory.encoded)
        self.tasks = self.tpl.tasks_of(memory.labels)

    def optimiser(self) -> Optimizer:
        return SGD(self.tpl.scales.parameters(), self.config.calibration_lr, self.config.calibration_momentum)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [()] * self.config.calibration_steps  # the whole memory every time

    def loss(self, step: Step) -> Loss:
        logits = self.tpl.calibrated(self.scores)
        return Loss(F.cross_entropy(logits, self.tasks), accuracy(logits, self.tasks))
