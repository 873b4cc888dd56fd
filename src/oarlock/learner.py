"""What users hold: a classifier that is taught one task after the other."""

import copy
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from oarlock import methods
from oarlock.data.images import prepare, read_labelled
from oarlock.errors import NotFittedError, OarlockError
from oarlock.files import read_tensors, write_tensors
from oarlock.memory import EncodedImages
from oarlock.methods.base import Method
from oarlock.nets.trunk import BUNDLED, LOCAL, Card, Trunk, build_trunk, load_trunk
from oarlock.rng import generator
from oarlock.training import Position, TaskData, Unwatched, Watcher, run_phases

EMBED_LIMIT = 20 * 2**20  # a larger trunk is stored by name and hash
CALIBRATE_FROM = 5  # images of a class; of fewer none can be spared
Label = str | int


class Lesson(NamedTuple):
    """A task that was found good: what it trains on, and known images kept out of training for calibration."""

    classes: list[Label]
    task: TaskData
    calibration: Tensor
    calibration_labels: Tensor


class Learner:
    """Class-incremental learning with replay, no forgetting of finished tasks' networks, and rejection.

    `learn` is one task; `predict` answers for all classes learned so far, or `None` for what looks like none of
    them when a share of known inputs to `accept` is given.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> dark, bright = rng.integers(0, 90, (8, 32, 32, 3)), rng.integers(160, 255, (8, 32, 32, 3))
    >>> learner = Learner("row", memory=4, epochs=1, adapt_last=1)
    >>> _ = learner.learn(dark.astype("uint8"), ["dark"] * 8)
    >>> _ = learner.learn(bright.astype("uint8"), ["bright"] * 8)
    >>> learner.classes_.tolist()
    ['dark', 'bright']
    >>> learner.predict_proba(bright.astype("uint8")).shape
    (8, 2)
    """

    def __init__(
        self,
        method: str = "row",
        *,
        trunk: str | Trunk = BUNDLED,
        weights: str | Path | None = None,
        memory: int = 200,
        calibration: float = 0.1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> None:
        cls = methods.find(method)
        config = methods.configure(cls, options)
        _check_number("memory", memory, int, least=1)
        _check_number("calibration", calibration, float, least=0, most=0.9)
        _check_number("seed", seed, int)
        _check_device(device)
        trunk = load_trunk(trunk, weights) if isinstance(trunk, str) else trunk
        if not isinstance(trunk, Trunk):
            raise OarlockError(f"trunk={trunk!r} is neither a name nor a Trunk")
        self.trunk = trunk.to(device)
        self.method: Method = cls(self.trunk, memory, config).to(device)
        self.seed = int(seed)
        self.calibration_share = calibration
        self.calibration = EncodedImages(trunk.card.preprocessing.size, trunk.dim).to(device)
        self._tasks: list[list[Label]] = []
        self._known_scores = torch.zeros(0)  # of calibration images, ascending

    def __repr__(self) -> str:
        tasks, classes = len(self._tasks), len(self.classes_)
        return f"Learner({self.method.name!r}, trunk={self.trunk.card.name!r}): {tasks} tasks, {classes} classes"

    # -- learning ------------------------------------------------------------------------------------------

    def learn(
        self, images: Any, labels: Sequence[Label] | None = None, *, watcher: Watcher | None = None
    ) -> "Learner":
        """Learn one task: images with a label each, a folder of class folders, or a dataset of pairs.

        When it fails or is interrupted, the learner is as it was.
        """
        lesson = self.lesson(images, labels)
        draft = copy.deepcopy(self)
        draft.begin(lesson)
        draft.train(lesson, Position(lesson.task.index, 0, 0), watcher or Unwatched())
        self.__dict__.update(draft.__dict__)
        return self

    def lesson(
        self, images: Any, labels: Sequence[Label] | None = None, classes: Sequence[Label] | None = None
    ) -> Lesson:
        """Check a task and split off its calibration images; changes nothing. Classes are numbered as they first
        appear, or in the order given."""
        pixels, names = read_labelled(images, labels, self.trunk.card.preprocessing)
        classes = list(dict.fromkeys(names if classes is None else classes))
        self._check_new(classes)
        numbers = torch.tensor([classes.index(name) for name in names])
        counts = numbers.bincount(minlength=len(classes))
        if counts.min() == 1:
            alone = classes[int(counts.argmin())]
            warnings.warn(f"class {alone!r} has a single image: expect little of it", stacklevel=3)
        index = len(self._tasks)
        held = self._hold_out(numbers, index)
        task = TaskData(index, pixels[~held], numbers[~held], len(classes), self.seed)
        return Lesson(classes, task, pixels[held], numbers[held])

    def begin(self, lesson: Lesson) -> None:
        """First half of `learn`: make room for the task."""
        self.method.begin(lesson.task)

    def train(
        self,
        lesson: Lesson,
        position: Position,
        watcher: Watcher,
        optimiser_state: dict[str, Tensor] | None = None,
    ) -> None:
        """Second half of `learn`: run the method's phases from a position, then calibrate."""
        run_phases(self.method.phases(lesson.task), lesson.task, watcher, position, optimiser_state)
        self._calibrate(lesson)
        self._tasks.append(lesson.classes)

    def _check_new(self, classes: list[Label]) -> None:
        known = [label for task in self._tasks for label in task]
        if again := [name for name in classes if name in known]:
            raise OarlockError(
                f"class {again[0]!r} was already learned; a task brings new classes only"
                + (f" (also: {', '.join(map(repr, again[1:]))})" if again[1:] else "")
            )
        if known and type(known[0]) is not type(classes[0]):
            raise OarlockError(
                f"label {classes[0]!r} is of another kind than the labels learned before, such as {known[0]!r}"
            )
        total = len(known) + len(classes)
        if self.method.needs_memory and self.method.budget < total:
            raise OarlockError(
                f"a memory of {self.method.budget} images cannot hold one image of each of {total} classes; "
                f"create the learner with memory={total} or more"
            )

    def _hold_out(self, numbers: Tensor, index: int) -> Tensor:
        held = torch.zeros(len(numbers), dtype=torch.bool)
        for number in numbers.unique():
            rows = torch.nonzero(numbers == number).flatten()
            order = torch.randperm(len(rows), generator=generator(self.seed, index, "calibration", int(number)))
            wanted = int(self.calibration_share * len(rows) + 1e-9)
            if self.calibration_share and len(rows) >= CALIBRATE_FROM:
                wanted = max(wanted, 1)
            held[rows[order[:wanted]]] = True
        return held

    def _calibrate(self, lesson: Lesson) -> None:
        """Score the known images that nothing was trained on; thresholds are quantiles of these scores."""
        k, store = lesson.task.index, self.calibration
        store.refresh(self.method, k + 1)
        if len(lesson.calibration):
            encoded = self.method.encode(lesson.calibration, self.method.views(k + 1))
            store.add_images(lesson.calibration, lesson.calibration_labels + self.method.columns(k).start, encoded)
        if len(store):
            with torch.no_grad():
                self._known_scores = self.method.in_distribution(store.encoded).sort().values.cpu()

    # -- predicting ----------------------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """All classes in the order they were learned."""
        return np.array([label for task in self._tasks for label in task])

    @property
    def tasks_(self) -> list[list[Label]]:
        """The classes of every task."""
        return [list(task) for task in self._tasks]

    def predict(self, images: Any, accept: float | None = None) -> np.ndarray:
        """The label of every image; with `accept`, None for inputs less known than that share of known ones."""
        threshold = None if accept is None else self.threshold(accept)
        encoded = self._encode(images)
        with torch.no_grad():
            answers = self.classes_[self.method.scores(encoded).argmax(1).cpu().numpy()]
            if threshold is None:
                return answers
            answers = answers.astype(object)
            answers[(self.method.in_distribution(encoded).cpu() < threshold).numpy()] = None
            return answers

    @torch.no_grad()
    def predict_proba(self, images: Any) -> np.ndarray:
        """One column per class of `classes_`; rows sum to 1."""
        return self.method.scores(self._encode(images)).cpu().double().softmax(1).numpy()

    @torch.no_grad()
    def in_distribution(self, images: Any) -> np.ndarray:
        """How much every image looks like something learned: higher is more."""
        return self.method.in_distribution(self._encode(images)).cpu().numpy()

    def score(self, images: Any, labels: Sequence[Label]) -> float:
        """Share of right answers."""
        answers = self.predict(images)
        if len(answers) != len(labels):
            raise OarlockError(f"{len(answers)} images but {len(labels)} labels: give one label per image")
        if (answers.dtype.kind == "U") != (np.asarray(labels).dtype.kind == "U"):
            raise OarlockError(f"labels such as {labels[0]!r} are of another kind than {answers[0]!r}, as learned")
        return float(np.mean(answers == np.asarray(labels)))

    def threshold(self, accept: float) -> float:
        """The in-distribution score that a share `accept` of known, untrained images reaches."""
        self._check_fitted()
        _check_number("accept", accept, float, least=1e-6, most=1)
        if not len(self._known_scores):
            raise OarlockError(
                "no calibration images were kept: raise calibration=, or give classes more images, to use accept="
            )
        rejected = int((1 - accept) * len(self._known_scores) + 1e-9)
        return float(self._known_scores[min(rejected, len(self._known_scores) - 1)])

    def _encode(self, images: Any) -> Tensor:
        self._check_fitted()
        return self.method.encode(prepare(images, self.trunk.card.preprocessing), self.method.views(len(self._tasks)))

    def _check_fitted(self) -> None:
        if not self._tasks:
            raise NotFittedError("nothing was learned yet: call learn(images, labels) first")

    def entries(self) -> int:
        """Numbers in the trunk and the method, without the images they keep."""
        return self.method.entries() + sum(value.numel() for value in self.trunk.tensors().values())

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the whole learner to one file that holds no code."""
        self._check_fitted()
        write_tensors(Path(path), "model", *self.state())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All tensors, and the JSON description that rebuilds what they fit into."""
        embed = self.trunk.size_bytes <= EMBED_LIMIT
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        tensors |= {f"calibration.{name}": value for name, value in self.calibration.state_dict().items()}
        tensors["known_scores"] = self._known_scores
        if embed:
            tensors |= {f"trunk.{name}": _compact(value) for name, value in self.trunk.tensors().items()}
        description = {
            "method": self.method.name,
            "config": methods.describe_config(self.method.config),
            "memory": self.method.budget,
            "seed": self.seed,
            "calibration_share": self.calibration_share,
            "tasks": self._tasks,
            "shapes": self.method.describe(),
            "calibration": self.calibration.describe(),
            "known_scores": len(self._known_scores),
            "trunk": {"card": self.trunk.card.to_json(), "sha256": self.trunk.sha256, "embedded": embed},
        }
        return tensors, description

    @classmethod
    def from_state(
        cls,
        tensors: dict[str, Tensor],
        description: dict[str, Any],
        *,
        weights: str | Path | None = None,
        device: str | torch.device = "cpu",
    ) -> "Learner":
        _check_device(device)
        parts = {part: {} for part in ("method", "calibration", "trunk")}  # type: dict[str, dict[str, Tensor]]
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = value
        learner = cls(
            description["method"],
            trunk=_trunk_from(description["trunk"], parts["trunk"], weights),
            memory=description["memory"],
            calibration=description["calibration_share"],
            seed=description["seed"],
            **description["config"],
        )
        learner.method.rebuild(description["shapes"])
        learner.method.load_state_dict(parts["method"])
        learner.calibration.rebuild(description["calibration"])
        learner.calibration.load_state_dict(parts["calibration"])
        learner._known_scores = tensors["known_scores"]
        learner._tasks = [list(task) for task in description["tasks"]]
        for module in (learner.trunk, learner.method, learner.calibration):
            module.to(device)
        return learner


def load(path: str | Path, *, weights: str | Path | None = None, device: str | torch.device = "cpu") -> Learner:
    """A learner from its file. `weights` is needed only for a large trunk whose weights came from a local file."""
    return Learner.from_state(*read_tensors(Path(path), "model"), weights=weights, device=device)


def _trunk_from(description: dict[str, Any], tensors: dict[str, Tensor], weights: str | Path | None) -> Trunk:
    card = Card.from_json(description["card"])
    if not description["embedded"] and weights is None and card.source.startswith(LOCAL):
        raise OarlockError(f"the weights of its trunk {card.name!r} came from a {card.source}: pass it with weights=")
    trunk = build_trunk(card, tensors) if description["embedded"] else load_trunk(card.name, weights)
    if trunk.sha256 != description["sha256"]:
        raise OarlockError(
            f"the weights of the trunk {card.name!r} are not those the model was trained on; "
            "pass the right file with weights="
        )
    return trunk


def _check_number(name: str, value: Any, kind: type, least: float = -math.inf, most: float = math.inf) -> None:
    numbers = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, numbers) or not least <= value <= most:
        what = "a whole number" if kind is int else "a number"
        limits = f" of at least {least:g}" if most == math.inf else f" between {least:g} and {most:g}"
        raise OarlockError(f"{name}={value!r} is not {what}{limits if least > -math.inf else ''}")


def _check_device(device: str | torch.device) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as problem:
        reason = str(problem).splitlines()[0].split(". ")[0][:120]
        raise OarlockError(f"device={str(device)!r} cannot be used here ({reason})") from problem


def _compact(tensor: Tensor) -> Tensor:
    """Half precision where that loses nothing, as with weights that were published so."""
    half = tensor.half() if tensor.dtype == torch.float32 else tensor
    return half if torch.equal(half.to(tensor.dtype), tensor) else tensor
