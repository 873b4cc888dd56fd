"""Test images against a learner after every task. Each (test image, task) pair passes the trunk once in a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from oarlock.caches import joined
from oarlock.data.images import prepare
from oarlock.data.streams import Stream
from oarlock.errors import OarlockError
from oarlock.experiments import metrics
from oarlock.learner import Learner
from oarlock.nets.adapters import CachedActivations
from oarlock.prediction import Predictor
from oarlock.schema import list_of, mapping, maybe, number, record

TEST_PROBES = 256  # test images of a task on which the bit-identical promise is checked
UNKNOWN = -1  # in place of a class, or of a task: what was never learned
ACCEPT = 0.95  # share of known images that a report's threshold accepts
EXAMPLES = 30  # known images shown in a report, and a third as many unknown ones

Rows = list[list[float]]


PERCENT = number(-1e4, 1e4)
ROWS = list_of(list_of(PERCENT))
RECORD = record(
    {
        "accuracy": ROWS,
        "til_accuracy": ROWS,
        "variants": mapping(ROWS, most=100),
        "task_id_accuracy": list_of(PERCENT),
        "free_capacity": list_of(maybe(list_of(number(-1, 2)))),
        "seconds": record({"train": number(0, 1e12), "evaluate": number(0, 1e12)}),
    }
)


@dataclass
class Record:
    """Hold what a run has measured so far, for every checkpoint. Row t holds tasks 1..t after task t."""

    accuracy: Rows = field(default_factory=list)
    til_accuracy: Rows = field(default_factory=list)
    variants: dict[str, Rows] = field(default_factory=dict)
    task_id_accuracy: list[float] = field(default_factory=list)
    free_capacity: list[list[float] | None] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any, tasks: int) -> "Record":
        """Return the record that `to_json` gave after so many tasks; refuse any other."""
        found = RECORD(content, "record")
        triangle = list(range(1, tasks + 1))
        once = found["task_id_accuracy"], found["free_capacity"]
        # An earlier version may have begun a run without some of today's variants.
        whole = [rows for rows in found["variants"].values() if len(rows) >= tasks]
        by_row = [[len(row) for row in rows] for rows in (found["accuracy"], found["til_accuracy"], *whole)]
        if any(len(values) != tasks for values in once) or any(lengths != triangle for lengths in by_row):
            raise OarlockError(f"record does not hold the measurements after each of {tasks} tasks")
        return cls(**{one.name: found[one.name] for one in fields(cls)})


class Evaluator:
    """Keep features of the test images under the finished tasks as the run goes on, and measure on them."""

    def __init__(self, stream: Stream, learner: Learner) -> None:
        self.stream, self.learner = stream, learner
        self.encoded: list[Tensor] = []  # of task i's test images: [images, feature sets, features]
        self.encoded_unknown: dict[int, Tensor] = {}  # by the number of finished tasks; the last only
        self.prepared: dict[int, Tensor] = {}
        self.activations: dict[int, CachedActivations | None] = {}
        self.caught_up = 0  # with so many finished tasks
        self.passes = 0  # (image, feature set) pairs computed

    @torch.no_grad()
    def after_task(self, record: Record) -> None:
        """Add the row of the newest task."""
        method, finished = self.learner.method, len(self.learner.tasks_)
        self._catch_up(finished)
        rows: dict[str, list[float]] = {name: [] for name in method.variants}
        accuracy, within, right_task = [], [], []
        for i, encoded in enumerate(self.encoded):
            truth = self._numbers(i)
            accuracy.append(_percent(method.scores(encoded).argmax(1).cpu() == truth))
            own = truth - method.class_slice(i).start
            within.append(_percent(method.within_task(encoded, i).argmax(1).cpu() == own))
            right_task.append(method.task_scores(encoded).argmax(1).cpu() == i)
            for name, read in method.variants.items():
                rows[name].append(_percent(read(method, encoded).argmax(1).cpu() == truth))
        record.accuracy.append(accuracy)
        record.til_accuracy.append(within)
        record.task_id_accuracy.append(_percent(torch.cat(right_task)))
        capacity = method.capacity()
        record.free_capacity.append(None if capacity is None else capacity.free)
        for name, row in rows.items():
            record.variants.setdefault(name, []).append(row)

    def probes(self, task: int) -> Tensor:
        """Return the task's first test images."""
        return self._images(task)[:TEST_PROBES]

    @torch.no_grad()
    def known(self) -> tuple[Tensor, Tensor]:
        """Return features of the test images of all finished tasks, task after task, and their class numbers."""
        tasks = len(self.learner.tasks_)
        self._catch_up(tasks)
        return torch.cat(self.encoded), torch.cat([self._numbers(i) for i in range(tasks)])

    @torch.no_grad()
    def unknown(self) -> Tensor | None:
        """Return features of the images of no class learned; None where the stream has none."""
        method, tasks = self.learner.method, len(self.learner.tasks_)
        if self.stream.unknown is None or not len(self.stream.unknown):
            return None
        if tasks not in self.encoded_unknown:
            self.encoded_unknown = {tasks: method.encode(self._images(UNKNOWN), method.feature_sets(tasks))}
        return self.encoded_unknown[tasks]

    @torch.no_grad()
    def final(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return open-world numbers after the last task, and the tensors a report is drawn from."""
        method, learner, tasks = self.learner.method, self.learner, len(self.learner.tasks_)
        known, truth = self.known()
        true_task = torch.repeat_interleave(torch.tensor([len(encoded) for encoded in self.encoded]))
        answers, chosen_task = method.scores(known).argmax(1).cpu(), method.task_scores(known).argmax(1).cpu()
        tensors = {
            "known_scores": method.in_distribution(known).cpu(),
            "task_confusion": _confusion(true_task, chosen_task, tasks),
            "class_confusion": _confusion(truth, answers, len(learner.classes_)),
        }
        if len(learner.calibration):
            tensors["threshold"] = torch.tensor([learner.threshold(ACCEPT)])
        images = joined((self._images(i) for i in range(tasks)), len(truth))
        examples = [self._examples(images, truth, known, EXAMPLES)]
        numbers: dict[str, Any] = {"ood_auroc": None, "ood_fpr95": None}
        if (unknown := self.unknown()) is not None:
            images = self._images(UNKNOWN)
            examples.append(self._examples(images, torch.full((len(images),), UNKNOWN), unknown, EXAMPLES // 3))
            tensors["unknown_scores"] = method.in_distribution(unknown).cpu()
            pair = tensors["known_scores"].numpy(), tensors["unknown_scores"].numpy()
            numbers = {"ood_auroc": metrics.auroc(*pair), "ood_fpr95": metrics.fpr_at_95(*pair)}
        for name in examples[0]:
            tensors[f"example_{name}"] = torch.cat([part[name] for part in examples])
        return numbers, tensors

    def _examples(self, images: Tensor, truth: Tensor, encoded: Tensor, wanted: int) -> dict[str, Tensor]:
        """Some of the images, spread evenly, with the answer and its probability."""
        rows = torch.linspace(0, len(images) - 1, min(wanted, len(images))).round().long()
        predicted = Predictor(self.learner.method, len(self.learner.tasks_)).read(encoded[rows.to(encoded.device)])
        threshold = self.learner.threshold(ACCEPT) if len(self.learner.calibration) else None
        probability, answer = predicted.scores.softmax(1).max(1)
        return {
            "images": images[rows],
            "truth": truth[rows],
            "prediction": torch.where(predicted.known(threshold), answer, UNKNOWN),
            "probability": probability,
        }

    def _catch_up(self, finished: int) -> None:
        method = self.learner.method
        for i in range(finished if self.caught_up < finished else 0):
            if i == len(self.encoded):
                dim = self.learner.calibration.encoded.shape[2]
                self.encoded.append(torch.zeros(len(self.stream[i].test), 0, dim, device=method.device))
            known = self.encoded[i].shape[1] if method.features_frozen else 0
            missing = method.feature_sets(finished)[known:]
            if missing:
                new = self._encode(i, missing)
                self.passes += len(new) * len(missing)
                self.encoded[i] = torch.cat([self.encoded[i][:, :known], new], 1)
        self.caught_up = finished

    def _encode(self, task: int, sets: Sequence[int]) -> Tensor:
        method, images = self.learner.method, self._images(task)
        activations = self._activations(task)
        return method.encode(images, sets) if activations is None else method.encode_cached(activations, sets)

    def _activations(self, task: int) -> CachedActivations | None:
        if task not in self.activations:
            self.activations[task] = self.learner.method.activations(self._images(task))
        return self.activations[task]

    def _images(self, task: int) -> Tensor:
        if task not in self.prepared:  # every later task looks at them again
            pictures = self.stream.unknown if task == UNKNOWN else self.stream[task].test.images
            assert pictures is not None
            self.prepared[task] = prepare(pictures, self.learner.trunk.rule)
        return self.prepared[task]

    def _numbers(self, task: int) -> Tensor:
        position = {str(label): number for number, label in enumerate(self.learner.classes_.tolist())}
        return torch.tensor([position[str(label)] for label in self.stream[task].test.labels])


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def _confusion(truth: Tensor, answer: Tensor, size: int) -> Tensor:
    return torch.bincount(truth * size + answer, minlength=size * size).view(size, size)
