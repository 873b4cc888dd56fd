"""What users hold: a classifier that is taught one task after the other."""

import copy
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.caches import keep_rows
from oarlock.columns import Columns
from oarlock.corrections import forget, merge, rename
from oarlock.data.copies import kept_together
from oarlock.data.images import Label, checked_labels
from oarlock.edits import Edit, as_date
from oarlock.errors import NotFittedError, OarlockError, check_device, check_number
from oarlock.files import fingerprint, write_tensors
from oarlock.loading import read_model, restored, trunk_state
from oarlock.markup import card, table
from oarlock.memory import EncodedImages, PackedImages, at_random
from oarlock.methods import Method, check_detector, configure, methods
from oarlock.nets.adapters import CHUNK
from oarlock.nets.trunks import DEFAULT, VECTORS, Trunk, load_trunk
from oarlock.options import describe
from oarlock.prediction import Prediction, Predictor, Shortlist, Speed, Twice, build_predictor, check_speed
from oarlock.schema import of_file
from oarlock.session import Session
from oarlock.tasks import (
    LABEL,
    FinishedTask,
    PreparedTask,
    Promise,
    calibration_limit,
    hold_out,
    spared_none,
    sure_rank,
)
from oarlock.training import Callback, NoCallback, TaskData

PACKED_FROM = 64  # pixels on a side, from which calibration images are kept as JPEG
NOT_NUMBERS = "not numbers (NaN), for training went astray: learn afresh, with a smaller learning rate"


class Learner:
    """Learn class-incrementally, with replay, no forgetting of finished tasks' networks, and rejection.

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
        method: str = "oar",
        *,
        trunk: str | Trunk | None = DEFAULT,
        weights: str | Path | None = None,
        size: int | None = None,
        memory: int = 200,
        calibration: float = 0.1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> None:
        cls = methods.find(method)
        config = configure(cls, options)
        check_number("memory", memory, int, least=0)
        if not memory and cls.needs_memory:
            without = ", ".join(sorted(name for name, one in methods.all().items() if not one.needs_memory))
            raise OarlockError(f"memory=0: {cls.name} learns with images of earlier tasks; without are {without}")
        check_number("calibration", calibration, float, least=0, most=0.9)
        check_number("seed", seed, int, least=-(2**63), most=2**63 - 1)
        check_device(device)
        trunk = VECTORS if trunk is None else trunk
        self._any_size = isinstance(trunk, str) and size is None
        trunk = load_trunk(trunk, weights, size) if isinstance(trunk, str) else trunk
        if not isinstance(trunk, Trunk):
            raise OarlockError(f"trunk={trunk!r} is neither a name nor a Trunk")
        self._build(trunk.to(device) if size is None else trunk.resized(size).to(device), cls, int(memory), config)
        self.seed = int(seed)
        self.calibration_share = float(calibration)
        self._tasks: list[FinishedTask] = []
        self._edits: list[Edit] = []
        self._known_scores = torch.zeros(0)  # of calibration images, ascending
        self._speed: Speed | None = None
        self._twice = False
        self._predictor: Predictor | None = None

    def _build(self, trunk: Trunk, cls: type[Method], memory: int, config: Any) -> None:
        """Make all that has the trunk's shapes."""
        self.trunk, device = trunk, trunk.mean.device
        self.method: Method = cls(trunk, memory, config).to(device)
        check_detector(config.detector, f"{cls.name} with these options", self.method.at_hand())
        kind = PackedImages if trunk.pictures and trunk.size >= PACKED_FROM else EncodedImages
        self.calibration: EncodedImages = kind(trunk.blank(0), trunk.dim).to(device)

    def __repr__(self) -> str:
        tasks, classes = len(self._tasks), len(self.classes_)
        return f"Learner({self.method.name!r}, trunk={self.trunk.card.name!r}): {tasks} tasks, {classes} classes"

    def _repr_html_(self) -> str:
        """Return a card for notebooks."""
        facts: dict[str, object] = {"classes": len(self.classes_), "tasks": len(self._tasks)}
        if self.method.needs_memory:
            facts["memory"] = f"{len(self.method.memory)} of {self.method.budget} images"
        if capacity := self.method.capacity():
            facts["free capacity"] = f"{100 * float(np.mean(capacity.free)):.1f} %"
        rows = (
            (k, ", ".join(map(str, task.classes)), sum(task.images), (task.learned or "")[:10])
            for k, task in enumerate(self._tasks, 1)
        )
        shown = table(rows, ("task", "classes", "images", "learned")) if self._tasks else ""
        return card(f"{self.method.name} on {self.trunk.card.name}", facts, shown)

    # -- learning ------------------------------------------------------------------------------------------

    def learn(
        self,
        images: Any,
        labels: Sequence[Label] | None = None,
        *,
        groups: Sequence[object] | None = None,
        more: bool = False,
        when: datetime | None = None,
        callback: Callback | None = None,
    ) -> "Learner":
        """Learn one task: images with a label each, a folder of class folders, or a dataset of pairs.

        Images of one of the `groups`, named by one name for each image (a scene, a burst, a camera), are all trained
        on or all kept for thresholds. With `more`, classes may be known already: what is learned of them now is added
        to what they were, which stays. When it fails or is interrupted, the learner is as it was. `when` is kept as
        the date of the task; without it there is none, so that the same calls make the same file on any day.
        """
        self.choose_size(images)
        prepared = self.prepare_task(images, labels, when=when, groups=groups, more=more)
        self._predictor = None
        draft = copy.deepcopy(self)
        Session(draft).learn(prepared, callback or NoCallback())
        self.__dict__.update(draft.__dict__)
        return self

    def choose_size(self, images: Any) -> None:
        """Have the trunk take the input size that suits these images, before the first task, if no size was given."""
        if self._tasks or not self._any_size:
            return
        trunk, method = self.trunk.suited_to(images), self.method
        if trunk is not self.trunk:
            self._build(trunk, type(method), method.budget, method.config)

    def prepare_task(
        self,
        images: Any,
        labels: Sequence[Label] | None = None,
        classes: Sequence[Label] | None = None,
        when: datetime | None = None,
        groups: Sequence[object] | None = None,
        more: bool = False,
    ) -> PreparedTask:
        """Return a task, checked and with its calibration images split off, copies and groups on one side; change
        nothing. Classes are numbered as they first appear, or in the order given."""
        pixels, names = self.trunk.read_labelled(images, labels)
        classes = list(dict.fromkeys(names if classes is None else classes))
        again = self._check_new(classes, more)
        numbers = torch.tensor([classes.index(name) for name in names])
        counts = numbers.bincount(minlength=len(classes))
        if counts.min() == 1:
            alone = classes[int(counts.argmin())]
            warnings.warn(f"class {alone!r} has a single image: expect little of it", stacklevel=3)
        index = len(self._tasks)
        before = self.calibration.labels.cpu().bincount()
        sides, copies = kept_together(pixels, numbers, groups) if self.calibration_share else (None, 0)
        held = hold_out(numbers, self.calibration_share, self.seed, index, before, sides)
        for name in spared_none(classes, numbers, held) if self.calibration_share else ():
            warnings.warn(f"class {name!r} is one group or copies, so none is kept for thresholds", stacklevel=3)
        calibration, kept = pixels[held], torch.nonzero(~held).flatten()
        task = TaskData(index, keep_rows(pixels, kept), numbers[kept], len(classes), self.seed)
        photos = fingerprint({"images": pixels, "labels": numbers}) if again else None
        return PreparedTask(classes, counts.tolist(), task, calibration, numbers[held], as_date(when), copies, photos)

    def finish_task(self, prepared: PreparedTask) -> None:
        """Make a trained task one that is known: calibrate, and note what is promised from now on."""
        self._calibrate(prepared)
        probes = prepared.calibration if len(prepared.calibration) else prepared.task.images
        promise = Promise.about(probes, self.method, prepared.task.index)
        if again := [name for name in prepared.classes if name in self.columns.of]:
            note = Edit("more", again, len(self._tasks) + 1, prepared.learned, prepared.photos)
            self._edits = [*self._edits, note]
        self._tasks.append(FinishedTask(prepared.classes, prepared.images, prepared.learned, promise))
        self._predictor = None

    def enlarge_memory(self, images: int) -> None:
        """Keep more images for replay from the next task on; those that were given up do not come back."""
        check_number("memory", images, int, least=1)
        if not self.method.needs_memory:
            raise OarlockError(f"memory={images}: {self.method.name} keeps no images for replay")
        if images < self.method.budget:
            raise OarlockError(
                f"memory={images}: a memory can only grow, and this one has room for {self.method.budget}"
            )
        self.method.enlarge_memory(int(images))

    def set_epochs(self, epochs: int) -> None:
        """Set another number of epochs from the next task on."""
        config = {**describe(self.method.config), "epochs": epochs}
        self.method.config = configure(type(self.method), config)

    def check_memory(self, classes: int, way_out: str) -> None:
        """Refuse to learn so many classes in all with a memory that cannot hold one image of each."""
        if self.method.needs_memory and self.method.budget < classes:
            raise OarlockError(
                f"a memory of {self.method.budget} images cannot hold one image of each of {classes} classes; "
                f"{way_out}"
            )

    def _check_new(self, classes: list[Label], more: bool) -> list[Label]:
        """Refuse what cannot be learned; return the classes that are known already."""
        known = [label for task in self._tasks for label in task.classes]
        for name in classes:
            LABEL(name, "the name of a class")
        again = [name for name in classes if name in known]
        if again and not more:
            raise OarlockError(
                f"class {again[0]!r} was already learned; to teach it more images, ask for more"
                + (f" (also: {', '.join(map(repr, again[1:]))})" if again[1:] else "")
            )
        if known and type(known[0]) is not type(classes[0]):
            raise OarlockError(
                f"label {classes[0]!r} is of another kind than the labels learned before, such as {known[0]!r}"
            )
        total = len(known) + len(classes)
        self.check_memory(total, f"create the learner with memory={total} or more, or use enlarge_memory({total})")
        return again

    def _calibrate(self, prepared: PreparedTask) -> None:
        """Score the known images that nothing was trained on; thresholds are quantiles of these scores. There is a
        limit to them, earlier classes making room, so that late tasks cost no more than others."""
        k, store, images = prepared.task.index, self.calibration, prepared.calibration
        labels = prepared.calibration_labels + self.method.class_slice(k).start
        limit = calibration_limit(sum(prepared.images))
        store.make_room(labels, limit, at_random(prepared.task.generator("calibration")))
        store.refresh(self.method, k + 1)
        if len(images):
            store.take_in(images, labels, lambda seen: self.method.encode(seen, self.method.feature_sets(k + 1)))
        self.score_known()

    @torch.no_grad()
    def score_known(self) -> None:
        """Take the scores of calibration images as they are now."""
        known = self.calibration.encoded
        self._known_scores = self.method.in_distribution(known).sort().values.cpu() if len(known) else torch.zeros(0)
        if self._known_scores.isnan().any():
            warnings.warn(f"the scores of known images are {NOT_NUMBERS}", stacklevel=3)

    # -- correcting ----------------------------------------------------------------------------------------

    def rename(self, old: Label, new: Label, *, when: datetime | None = None) -> "Learner":
        """Call a class by another name from now on. Nothing else changes; `when` is kept as the date of it."""
        return self.take(*rename(self, old, new, as_date(when)))

    def merge(self, kept: Label, other: Label, *, when: datetime | None = None) -> "Learner":
        """Make one class of two: both are answered by the name that is `kept`, with their probabilities added up."""
        return self.take(*merge(self, kept, other, as_date(when)))

    def forget(self, label: Label, *, when: datetime | None = None, callback: Callback | None = None) -> "Learner":
        """Remove a class: its images, its statistics, its part of every head, its answers and its name; what other
        tasks promised holds. The heads that say "not mine" are tuned again without it. What cannot be taken out of
        weights and covariances that classes share is in docs/how-to/correct-a-model.md.

        A method that cannot forget refuses, and the learner stays as it was.
        """
        self._predictor = None
        draft = copy.deepcopy(self)
        forget(draft, label, as_date(when), callback or NoCallback())
        self.__dict__.update(draft.__dict__)
        return self

    def take(self, tasks: list[FinishedTask], edits: list[Edit]) -> "Learner":
        """Have these tasks, and notes of corrections to them, from now on."""
        self._predictor = None
        self._tasks, self._edits = tasks, edits
        self.tell_columns()
        return self

    @property
    def columns(self) -> Columns:
        """Return which columns of the method's scores are of which class."""
        return Columns([label for task in self._tasks for label in task.classes])

    def tell_columns(self, coming: Sequence[Label] = ()) -> None:
        """Have the method know which of its columns are of one class, those of a coming task included."""
        labels = [label for task in self._tasks for label in task.classes]
        self.method.same_class = Columns([*labels, *coming]).first

    # -- predicting ----------------------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """Return all classes in the order they were first learned."""
        return np.array(self.columns.labels)

    @property
    def tasks_(self) -> list[list[Label]]:
        """Return the classes of every task; one of which more images came later is in several."""
        return [list(dict.fromkeys(task.classes)) for task in self._tasks]

    @property
    def history_(self) -> list[FinishedTask]:
        """Return what is known about every task: its classes, images seen, date, and what was promised."""
        return list(self._tasks)

    @property
    def edits_(self) -> list[Edit]:
        """Return notes of what was corrected, the latest last."""
        return list(self._edits)

    def predict(self, images: Any, accept: float | None = None) -> np.ndarray:
        """Return the label of each image; with `accept`, None for inputs less known than that share of known ones."""
        threshold = None if accept is None else self.threshold(accept)
        predicted = self.predict_scores(images)
        answers = self.classes_[predicted.scores.argmax(1).numpy()]
        if threshold is not None:
            answers = answers.astype(object)
            answers[~predicted.known(threshold).numpy()] = None
        return answers

    def predict_proba(self, images: Any) -> np.ndarray:
        """Return probabilities: one column per class of `classes_`; rows sum to 1."""
        return self.predict_scores(images).scores.double().softmax(1).numpy()

    def in_distribution(self, images: Any) -> np.ndarray:
        """Return how much every image looks like something learned: higher is more."""
        return self.predict_scores(images).in_distribution.numpy()

    @torch.no_grad()
    def predict_scores(self, images: Any) -> Prediction:
        """Return what all answers are read from. Images are decoded, encoded and forgotten a chunk at a time."""
        self._check_fitted()
        predictor = self.predictor()
        chunks = self.trunk.read_in_chunks(images, CHUNK)
        said = [predictor.predict_scores(chunk)[:2] for chunk in chunks]
        predicted = self.by_class(Prediction(*map(torch.cat, zip(*said, strict=True))))
        if strange := int((~predicted.are_numbers()).sum()):
            warnings.warn(
                f"the scores of {strange} of {len(predicted.scores)} images are {NOT_NUMBERS}", stacklevel=2
            )
        return predicted

    def by_class(self, predicted: Prediction) -> Prediction:
        """Return what is said of classes, from what the method says of columns."""
        columns, scores = self.columns, predicted.scores
        tasks = self.method.tasks_of(columns.strongest(scores).to(self.method.device)).cpu()
        return Prediction(columns.joined(scores), predicted.in_distribution, tasks)

    def accelerate(self, shortlist: Shortlist = None, compile: bool = False) -> "Learner":
        """Predict faster from now on, with the same answers to rounding: closed gates are cut out, and a few images
        pass all tasks at once. With a `shortlist` only so many tasks are asked, those nearest under the bare trunk;
        with "auto" as many as calibration images need. This may change answers. Files do not keep any of it."""
        speed = Speed(shortlist, compile)
        check_speed(speed, self.method, self.calibration)
        self._speed, self._predictor = speed, None
        return self

    def look_twice(self, twice: bool = True) -> "Learner":
        """Look at every image and at its mirror image from now on, and answer by the mean of both: for twice the
        price. Files do not keep it, and thresholds are those of one look."""
        if twice and not self.trunk.pictures:
            raise OarlockError("there is no mirror image of features: look once")
        self._twice, self._predictor = twice, None
        return self

    def predictor(self) -> Predictor:
        """Return what answers, built when it is first asked for after a task was learned."""
        if self._predictor is None:
            once = build_predictor(self.method, len(self._tasks), self._speed, self.calibration)
            self._predictor = Twice(once) if self._twice else once
        return self._predictor

    def score(self, images: Any, labels: Sequence[Label]) -> float:
        """Return the share of right answers."""
        answers = self.predict(images)
        if len(answers) != len(labels):
            raise OarlockError(f"{len(answers)} images but {len(labels)} labels: give one label per image")
        names = np.array(checked_labels(labels))
        if (answers.dtype.kind == "U") != (names.dtype.kind == "U"):
            raise OarlockError(f"labels such as {names[0]!r} are of another kind than {answers[0]!r}, as learned")
        return float(np.mean(answers == names))

    def threshold(self, accept: float) -> float:
        """Return the in-distribution score that a share `accept` of known images like those learned reaches, or a
        larger one: of nine in ten sets of calibration images this is true, however few they are (`sure_rank`)."""
        self._check_fitted()
        check_number("accept", accept, float, least=1e-6, most=1)
        if not len(self._known_scores):
            raise OarlockError(
                "no calibration images were kept: raise calibration=, or give classes more images, to use accept="
            )
        scores = self._known_scores
        if self._speed is not None and self._speed.shortlist is not None:  # tasks that are not asked claim nothing
            scores = self.predictor().read(self.calibration.encoded).in_distribution.sort().values
        if scores.isnan().any():
            raise OarlockError(f"the scores of known images are {NOT_NUMBERS}")
        return float(scores[sure_rank(len(scores), accept)])

    def _check_fitted(self) -> None:
        if not self._tasks:
            raise NotFittedError("nothing was learned yet: call learn(images, labels) first")

    def entries(self) -> int:
        """Return how many numbers are in the trunk and the method, without the images they keep."""
        return self.method.entries() + sum(value.numel() for value in self.trunk.tensors().values())

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the whole learner to one file that holds no code."""
        self._check_fitted()
        write_tensors(Path(path), "model", *self.state())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all tensors, and the JSON description that rebuilds what they fit into."""
        of_trunk, trunk = trunk_state(self.trunk)
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        tensors |= {f"calibration.{name}": value for name, value in self.calibration.state_dict().items()}
        tensors["known_scores"] = self._known_scores
        for index, task in enumerate(self._tasks):
            tensors |= {f"tasks.{index}.{name}": value for name, value in task.tensors().items()}
        tensors |= {f"trunk.{name}": value for name, value in of_trunk.items()}
        description = {
            "method": self.method.name,
            "config": describe(self.method.config),
            "memory": self.method.budget,
            "seed": self.seed,
            "calibration_share": self.calibration_share,
            "tasks": [task.describe() for task in self._tasks],
            "edits": [edit.describe() for edit in self._edits],
            "shapes": self.method.describe(),
            "calibration": self.calibration.describe(),
            "known_scores": len(self._known_scores),
            "trunk": trunk,
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
        """Return the learner that `state` told of; its tensors become the learner's own. What no learner could have
        told is refused before anything is built."""
        check_device(device)
        found = restored(cls, tensors, description, weights)
        learner = found.learner
        learner._tasks, learner._edits, learner._known_scores = found.tasks, found.edits, found.known_scores
        learner.tell_columns()
        for module in (learner.trunk, learner.method, learner.calibration):
            module.to(device)
        return learner


def load(path: str | Path, *, weights: str | Path | None = None, device: str | torch.device = "cpu") -> Learner:
    """Return a learner from its file. `weights` is needed only for a large trunk with weights from a local file."""
    tensors, description = read_model(Path(path))
    with of_file(path):
        return Learner.from_state(tensors, description, weights=weights, device=device)
