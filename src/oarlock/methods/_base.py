"""The contract of a method: a short list of phases, and functions from features to scores.

The loop, checkpoints, progress and evaluation are elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.detectors import EvidenceOf, detectors
from oarlock.errors import OarlockError
from oarlock.memory import Memory
from oarlock.methods._options import MethodConfig
from oarlock.nets.adapters import CHUNK, CachedActivations
from oarlock.nets.protectors import Capacity, Protector
from oarlock.nets.trunks import Trunk
from oarlock.schema import Check, integer, list_of
from oarlock.training import Phase, TaskData


def probabilities(method: "Method", encoded: Tensor) -> list[Tensor]:
    """Return those of all classes in the final answer, the same for all tasks."""
    return [method.scores(encoded).softmax(1)]


def without(evidence: Mapping[str, EvidenceOf], *names: str) -> dict[str, EvidenceOf]:
    """Return the rest."""
    return {name: read for name, read in evidence.items() if name not in names}


Variants = dict[str, Callable[..., Tensor]]


class Method(nn.Module, ABC):
    """Learn tasks one after the other and score inputs. Its tensors are its state; the trunk is shared and not among
    them."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""  # who described it, and where
    verified: ClassVar[str] = ""  # what it was checked against
    Config: ClassVar[type] = MethodConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # options by a name that protocols ask for
    needs_memory: ClassVar[bool] = True
    needs_pictures: ClassVar[bool] = False  # it turns them, or makes some; features would do for others
    suggested: ClassVar[bool] = False  # whether `oarlock recommend` tries it; what trains nothing it always tries
    protected: ClassVar[bool] = False  # whether finished tasks keep their features, as a protector promises
    features_frozen: bool = True  # features never change once their task is finished, so they are kept
    images: ClassVar[tuple[str, ...]] = ("memory",)  # what of its state are images, and not counted as the model's
    constants: ClassVar[tuple[str, ...]] = ()  # what of `promised` is the same for all images
    described: ClassVar[Mapping[str, Check]] = {
        "classes_per_task": list_of(integer(1)),
        "memory": list_of(integer(0), 2, 3),
    }  # what `describe` returns, as a file has to have it
    variants: ClassVar[Variants] = {}  # other scores read from the same training
    size_note: ClassVar[str] = ""  # why its size differs from the paper's
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        "own": lambda method, encoded: [method.scores(encoded).amax(1)],
        "scores": lambda method, encoded: [method.scores(encoded)],
        "probabilities": probabilities,
        "features": lambda method, encoded: [encoded[:, 0]],
        "logits": lambda method, encoded: [method.scores(encoded)],
    }  # what detectors may look at: of every task, or of the whole where tasks share one network

    def __init__(self, trunk: Trunk, memory: int, config: Any) -> None:
        if self.needs_pictures and not trunk.pictures:
            raise OarlockError(f"{self.name} learns from what pictures look like, not from features: choose another")
        super().__init__()
        self._trunk = (trunk,)  # in a tuple, so that its tensors are not counted as ours
        self.budget = memory
        self.config = config
        self.protector: Protector | None = None  # what keeps finished tasks as they are, where something does
        self.classes_per_task: list[int] = []  # classes of every task begun
        self.same_class: dict[int, int] = {}  # of a class with several numbers, to the first from each of the others
        # It stays empty where a method does without replay.
        self.memory = Memory(memory, trunk.blank(0), trunk.dim if self.features_frozen else 0)

    @property
    def trunk(self) -> Trunk:
        return self._trunk[0]

    @property
    def device(self) -> torch.device:
        return self.trunk.mean.device

    # -- learning ------------------------------------------------------------------------------------------

    def begin(self, task: TaskData) -> None:
        """Add what the task brings: norms, gates, heads. Afterwards all shapes are final until the next task."""
        self.classes_per_task.append(task.classes)

    @abstractmethod
    def phases(self, task: TaskData) -> list[Phase]:
        """Return the optimisations that learn the task, in order."""

    def enlarge_memory(self, budget: int) -> None:
        """Make room for more images from the next task on."""
        self.budget = budget
        self.memory.enlarge(budget)

    def forget(self, column: int, random: torch.Generator) -> int | None:
        """Remove all that is kept of one class of one task; if it was the only one, the task goes as well. Return
        which row of encoded images went with that."""
        raise OarlockError(
            f"{self.name} cannot forget a class: what it learned of it is in weights that all classes share. "
            "Teach a new model the classes that are to stay"
        )

    def tune_again(self, task: TaskData) -> list[Phase]:
        """Return what is to be trained anew when a class was forgotten, on what is left in the memory."""
        return []

    # -- predicting ----------------------------------------------------------------------------------------

    def feature_sets(self, tasks: int) -> Sequence[int]:
        """Return what `encode` is asked for when a number of tasks is finished: their features, one set each, and
        before them, as negative numbers, the bare trunk's where the method looks at these too."""
        return range(tasks)

    @torch.no_grad()
    def encode(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        """Return features [B, len(sets), F] of uint8 images."""
        return torch.cat([self.encode_chunk(chunk.to(self.device), sets) for chunk in images.split(CHUNK)])

    @abstractmethod
    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        """Return the same for as many images as fit into one pass, which are on the device already."""

    def activations(self, images: Tensor) -> CachedActivations | None:
        """Return what lies below all that is learned, for images that are encoded again after every task; None where
        the method has no such thing."""
        return None

    def encode_cached(self, activations: CachedActivations, sets: Sequence[int]) -> Tensor:
        """Return what `encode` makes of the images that have these activations, bit for bit."""
        return self.encode(activations.images, sets)

    @abstractmethod
    def scores(self, encoded: Tensor) -> Tensor:
        """Return one column per class seen: log-probability up to a constant of the row."""

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        """Return scores of one task's classes when the task is known."""
        return self.scores(encoded)[:, self.class_slice(task)]

    def task_scores(self, encoded: Tensor) -> Tensor:
        """Return one column per task: how much the input belongs to it."""
        scores = self.scores(encoded)
        return torch.stack(
            [scores[:, self.class_slice(t)].logsumexp(1) for t in range(len(self.classes_per_task))], 1
        )

    def at_hand(self) -> Mapping[str, EvidenceOf]:
        """Return the evidence that there is with these options: all, but for what they leave out."""
        return self.evidence

    def in_distribution(self, encoded: Tensor) -> Tensor:
        """Return how much inputs look like something learned, by the detector that was chosen; higher is more."""
        return self.known_to_tasks(encoded).amax(1)

    def known_to_tasks(self, encoded: Tensor) -> Tensor:
        """Return how much inputs look like what was learned with each task, a column each; one column where tasks
        share one network."""
        return detectors.find(self.config.detector).scores(self, encoded)

    @property
    def can_compact(self) -> bool:
        """Return whether a protector's compact form has all that is asked of images."""
        return self.protector is not None

    @property
    def can_shortlist(self) -> bool:
        """Return whether tasks can be ranked by the bare trunk's features alone, as `task_nearness` does."""
        return False

    def task_nearness(self, encoded: Tensor) -> Tensor:
        """Return how near every task is under the bare trunk, a column each, for a method that can shortlist."""
        raise TypeError(f"{self.name} cannot shortlist tasks")

    def class_slice(self, task: int) -> slice:
        """Return where a task's classes stand among all."""
        first = sum(self.classes_per_task[:task])
        return slice(first, first + self.classes_per_task[task])

    def tasks_of(self, classes: Tensor) -> Tensor:
        """Return the tasks that class numbers belong to."""
        ends = torch.tensor(self.classes_per_task, device=classes.device).cumsum(0)
        return torch.bucketize(classes, ends, right=True)

    def as_own(self, classes: Tensor, task: int) -> Tensor:
        """Return where class numbers stand among a task's classes: by themselves, or by another number of the same
        class; the number of these classes for all that are not among them.

        >>> from oarlock import Learner
        >>> method = Learner("slda", trunk="vit_pico").method
        >>> method.classes_per_task, method.same_class = [2, 2], {3: 0}
        >>> method.as_own(torch.arange(4), 0), method.as_own(torch.arange(4), 1)
        (tensor([0, 1, 2, 0]), tensor([1, 2, 0, 1]))
        """
        own = self.class_slice(task)
        size = own.stop - own.start
        first = [self.same_class.get(number, number) for number in range(sum(self.classes_per_task))]
        place = {first[number]: number - own.start for number in reversed(range(own.start, own.stop))}
        among = torch.tensor([place.get(number, size) for number in first])
        among[own] = torch.arange(size)
        return among.to(classes.device)[classes]

    # -- what is promised and reported ----------------------------------------------------------------------

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        """Return what a finished task answers for these images and will answer for ever, to `tolerance`."""
        return {}

    @property
    def tolerance(self) -> float:
        """Return by how much of the largest value what is promised may move; 0: it stays bit for bit."""
        return 0.0 if self.protector is None else self.protector.tolerance

    def capacity(self) -> Capacity | None:
        """Return how much room is left for tasks to come; None where room does not run out."""
        return None if self.protector is None else self.protector.capacity()

    def entries(self) -> int:
        """Return how many numbers the method keeps besides the trunk and images."""
        kept = self.state_dict()
        return sum(kept[name].numel() for name in kept if name.partition(".")[0] not in self.images)

    def entries_while_training(self) -> int:
        """Return how many more numbers are held while a task is learned, where the paper counts them as the
        model's."""
        return 0

    def describe(self) -> dict[str, Any]:
        """Return JSON: enough to rebuild all shapes before tensors are loaded."""
        return {"classes_per_task": self.classes_per_task, "memory": self.memory.describe()}

    def rebuild(self, description: dict[str, Any]) -> None:
        """Take described shapes; the tensors come afterwards."""
        self.classes_per_task = list(description["classes_per_task"])
        self.memory.rebuild(description["memory"])
