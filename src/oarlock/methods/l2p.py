"""L2P: learning to prompt (Wang et al., CVPR 2022), without adapters and without exemplars.

The trunk stays as it is. A pool of prompts, each with a key, is trained beside a head: an image's query, the bare
trunk's feature, picks the prompts whose keys have the highest cosine with it; they are put in front of the image's
tokens, and the head sees the mean of what comes out in their places. Keys are pulled towards the queries that picked
them. A task trains the outputs of its own classes only: the others' logits are masked with −∞, that is, left out.

Choices: pool 10, length 5, top 5 and pull 0.5 from the paper (the authors' code has had 0.1 and 1; nothing else moves
the keys, so under Adam it hardly matters). From the authors' code: Adam (AdamW without decay) at 0.03 · batch / 256,
5 epochs, gradients clipped to length 1, prompts and keys uniform in [0, 0.01), prompts without positions. Ours: each
image has its own prompts, as in the paper, where the authors' code takes a vote in the batch, in training and in
testing, so that an answer depends on what is asked beside it; and a small random head instead of zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.errors import OarlockError
from oarlock.methods import method
from oarlock.methods._base import Method
from oarlock.methods._options import TrainConfig
from oarlock.nets.adapters import CHUNK
from oarlock.nets.heads import GrowingHead, uniform_
from oarlock.nets.trunks import Trunk
from oarlock.nets.trunks.vit import Transformer
from oarlock.options import option
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy, shuffled

INIT_MOST = 0.01


@dataclass(frozen=True)
class L2pConfig(TrainConfig):
    epochs: int = option(5, least=0)
    optimiser: Literal["sgd", "adamw"] = "adamw"
    lr: float = option(0.0075, least=0)
    clip: float = option(1.0, least=0)  # the longest gradient
    pool: int = option(10, least=1, most=2**12)  # prompts to choose from
    length: int = option(5, least=1, most=2**12)  # tokens of a prompt
    top: int = option(5, least=1)  # prompts an image gets
    pull: float = option(0.5, least=0)  # of chosen keys towards the query

    def __post_init__(self) -> None:
        if self.top > self.pool:
            raise OarlockError(f"option top={self.top} asks for more prompts than are in the pool of {self.pool}")


@method("l2p")
class L2p(Method):
    """Train a pool of prompts for the frozen trunk, picked by the image."""

    Config = L2pConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"optimiser": "adamw", "lr": 0.0075, "epochs": 5}}
    paper = "Wang et al., CVPR 2022"
    verified = "prompts picked by brute force; the prompted pass by timm's own blocks; what gets a gradient"
    needs_memory = False
    features_frozen = False
    config: L2pConfig
    _trunk: tuple[Transformer]

    def __init__(self, trunk: Trunk, memory: int, config: L2pConfig) -> None:
        if not isinstance(trunk, Transformer):
            raise OarlockError(
                f"l2p needs a transformer, since its prompts are tokens, and the trunk {trunk.card.name!r} is none: "
                "choose another method, or a trunk such as 'vit_pico'"
            )
        super().__init__(trunk, memory, config)
        self.keys = nn.Parameter(torch.zeros(config.pool, trunk.dim))
        self.prompts = nn.Parameter(torch.zeros(config.pool, config.length, trunk.dim))
        self.head = GrowingHead(trunk.dim)

    @property
    def trunk(self) -> Transformer:
        return self._trunk[0]

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        if task.index == 0:
            uniform_(self.keys, INIT_MOST, task.generator("keys"))
            uniform_(self.prompts, INIT_MOST, task.generator("prompts"))
        self.head.grow(task.classes, task.generator("head"))

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainPrompts(self, task)]

    @torch.no_grad()
    def queries(self, images: Tensor) -> Tensor:
        return torch.cat([self.trunk(chunk.to(self.device)) for chunk in images.split(CHUNK)])

    def match(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best keys of every query: their cosines with it and their numbers, [B, top] each."""
        cosines = F.normalize(queries, dim=1) @ F.normalize(self.keys, dim=1).T
        best = cosines.topk(self.config.top, dim=1)
        return best.values, best.indices

    def prompted(self, images: Tensor, chosen: Tensor) -> Tensor:
        """Return features [B, D]: the mean of what comes out in the places of the chosen prompts."""
        with torch.no_grad():
            tokens = self.trunk.embed(images.to(self.device))
        prompts = self.prompts[chosen].flatten(1, 2)
        x = self.trunk.walk(torch.cat([prompts, tokens], 1), self.trunk.stages)
        return self.trunk.average(x[:, : prompts.shape[1]], self.trunk.last_norm)

    def feature_sets(self, tasks: int) -> range:
        return range(1)

    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        return self.prompted(images, self.match(self.trunk(images))[1])[:, None]

    def scores(self, encoded: Tensor) -> Tensor:
        return self.head(encoded[:, 0])

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.head.grow(sum(self.classes_per_task), torch.Generator())


class TrainPrompts(Optimisation):
    """Train prompts, keys and head, on the task's own images and classes."""

    name = "training"

    def __init__(self, method: L2p, task: TaskData) -> None:
        self.method, self.task, self.config = method, task, method.config
        self.epochs = self.config.epochs

    def prepare(self) -> None:
        self.queries = self.method.queries(self.task.images)
        self.labels = self.task.labels.to(self.method.device)

    def optimiser(self) -> Optimizer:
        return self.config.new_optimiser(self.method.parameters(), self.config.lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in shuffled(len(self.labels), self.config.batch, random)]

    def loss(self, step: Step) -> Loss:
        (rows,) = step.batch
        images, rows = self.task.images[rows], rows.to(self.labels.device)
        labels = self.labels[rows]
        cosines, chosen = self.method.match(self.queries[rows])
        logits = self.method.head(self.method.prompted(images, chosen))[:, self.method.class_slice(self.task.index)]
        value = F.cross_entropy(logits, labels) - self.config.pull * cosines.sum(1).mean()
        return Loss(value, accuracy(logits, labels))

    def gradients(self, step: Step) -> Loss:
        loss = super().gradients(step)
        nn.utils.clip_grad_norm_(self.method.parameters(), self.config.clip)
        return loss
