"""The contract of a method: a short list of phases, and functions from features to scores.

The loop, checkpoints, progress and evaluation are elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.memory import Memory
from oarlock.nets.tokens import CHUNK, Tokens
from oarlock.nets.trunk import Trunk
from oarlock.training import Phase, TaskData

Readings = dict[str, Callable[..., Tensor]]


class Method(nn.Module, ABC):
    """Base of all methods. Its tensors are its state; the trunk is shared and not among them."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""  # who described it, and where
    verified: ClassVar[str] = ""  # what it was checked against
    Config: ClassVar[type]
    gated: ClassVar[bool] = False
    needs_memory: ClassVar[bool] = True
    lasting: ClassVar[bool] = True  # features never change once their task is finished, so they are kept
    images: ClassVar[tuple[str, ...]] = ("memory",)  # what of its state are images, and not counted as the model's
    constants: ClassVar[tuple[str, ...]] = ()  # what of `promised` is the same for all images
    readings: ClassVar[Readings] = {}  # other scores read from the same training

    def __init__(self, trunk: Trunk, memory: int, config: Any) -> None:
        super().__init__()
        self._trunk = (trunk,)  # in a tuple, so that its tensors are not counted as ours
        self.budget = memory
        self.config = config
        self.sizes: list[int] = []  # classes of every task begun
        # It stays empty where a method does without replay.
        self.memory = Memory(memory, trunk.card.preprocessing.size, trunk.dim if self.lasting else 0)

    @property
    def trunk(self) -> Trunk:
        return self._trunk[0]

    @property
    def device(self) -> torch.device:
        return self.trunk.mean.device

    # -- learning ------------------------------------------------------------------------------------------

    def begin(self, task: TaskData) -> None:
        """Add what the task brings: norms, gates, heads. Afterwards all shapes are final until the next task."""
        self.sizes.append(task.classes)

    @abstractmethod
    def phases(self, task: TaskData) -> list[Phase]:
        """The optimisations that learn the task, in order."""

    def enlarge_memory(self, budget: int) -> None:
        """Room for more images from the next task on."""
        self.budget = budget
        self.memory.enlarge(budget)

    # -- predicting ----------------------------------------------------------------------------------------

    def views(self, tasks: int) -> range:
        """What `encode` is asked for when a number of tasks is finished: their features, one view each, and before
        them, as negative numbers, the bare trunk's where the method looks at these too."""
        return range(tasks)

    @torch.no_grad()
    def encode(self, images: Tensor, views: Sequence[int]) -> Tensor:
        """uint8 images → features [B, len(views), F]."""
        return torch.cat([self.encode_chunk(chunk.to(self.device), views) for chunk in images.split(CHUNK)])

    @abstractmethod
    def encode_chunk(self, images: Tensor, views: Sequence[int]) -> Tensor:
        """The same for as many images as fit into one pass, which are on the device already."""

    def tokens(self, images: Tensor) -> Tokens | None:
        """What lies below all that is learned, for images that are encoded again after every task; None where the
        method has no such thing."""
        return None

    def encode_kept(self, tokens: Tokens, views: Sequence[int]) -> Tensor:
        """What `encode` makes of the images that have these tokens, bit for bit."""
        return self.encode(tokens.images, views)

    @abstractmethod
    def scores(self, encoded: Tensor) -> Tensor:
        """One column per class seen: log-probability up to a constant of the row."""

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        """Scores of one task's classes when the task is known."""
        return self.scores(encoded)[:, self.columns(task)]

    def task_scores(self, encoded: Tensor) -> Tensor:
        """One column per task: how much the input belongs to it."""
        scores = self.scores(encoded)
        return torch.stack([scores[:, self.columns(t)].logsumexp(1) for t in range(len(self.sizes))], 1)

    def in_distribution(self, encoded: Tensor) -> Tensor:
        """Higher: more like something learned."""
        return self.known_to_tasks(encoded).amax(1)

    def known_to_tasks(self, encoded: Tensor) -> Tensor:
        """One column per task: how much the input looks like what was learned with it."""
        scores = self.scores(encoded)
        return torch.stack([scores[:, self.columns(t)].amax(1) for t in range(len(self.sizes))], 1)

    def columns(self, task: int) -> slice:
        """Where a task's classes stand among all."""
        first = sum(self.sizes[:task])
        return slice(first, first + self.sizes[task])

    def tasks_of(self, classes: Tensor) -> Tensor:
        """The tasks that class numbers belong to."""
        ends = torch.tensor(self.sizes, device=classes.device).cumsum(0)
        return torch.bucketize(classes, ends, right=True)

    # -- what is promised and reported ----------------------------------------------------------------------

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        """What a finished task answers for these images and will answer for ever, bit for bit."""
        return {}

    def free_capacity(self) -> list[float] | None:
        """The share of units still free in every layer; None when the method has no gates."""
        return None

    def wings(self) -> list[int] | None:
        """How many wings every layer has grown; None when the method has no gates."""
        return None

    def entries(self) -> int:
        """Numbers the method keeps besides the trunk and images."""
        kept = self.state_dict()
        return sum(kept[name].numel() for name in kept if name.partition(".")[0] not in self.images)

    def describe(self) -> dict[str, Any]:
        """JSON: enough to rebuild all shapes before tensors are loaded."""
        return {"sizes": self.sizes, "memory": self.memory.describe()}

    def rebuild(self, description: dict[str, Any]) -> None:
        self.sizes = list(description["sizes"])
        self.memory.rebuild(description["memory"])
