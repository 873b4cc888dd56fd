"""Answers of finished tasks, arranged for speed: closed gates cut out, tasks folded into one pass, and on request
only the tasks that an image may belong to."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from oarlock.errors import OarlockError, check_number
from oarlock.memory import EncodedImages
from oarlock.methods import Method
from oarlock.nets.protectors import Protector

KEPT = 0.99  # share of calibration images whose answers a shortlist must not change to be chosen by "auto"

Shortlist = int | Literal["auto"] | None


class Speed(NamedTuple):
    """Hold what is done for speed in prediction; files do not keep it."""

    shortlist: Shortlist = None  # tasks that are asked, of those nearest under the bare trunk; None: all
    compile: bool = False  # torch.compile: a minute at the start, for many images of one size
    folded: bool | None = None  # all tasks in one pass; None: where that is faster


class Prediction(NamedTuple):
    """Hold scores of images, one column per class, log-probability up to a constant of the row; and how much each
    image looks like something learned."""

    scores: Tensor
    in_distribution: Tensor
    tasks: Tensor | None = None  # where asked for: which task says most for every class

    def known(self, threshold: float | None) -> Tensor:
        """Return which images are accepted: those whose score reaches the threshold; without one, all. What is not a
        number reaches nothing.

        >>> answers = Prediction(torch.zeros(3, 2), torch.tensor([0.5, 0.2, torch.nan]))
        >>> answers.known(0.5).tolist(), answers.known(None).tolist()
        ([True, False, False], [True, True, False])
        """
        numbers = self.are_numbers()
        return numbers if threshold is None else numbers & (self.in_distribution >= threshold)

    def are_numbers(self) -> Tensor:
        """Return for which images all scores are numbers, as they are unless training went astray."""
        return self.scores.logsumexp(1).isfinite() & ~self.in_distribution.isnan()  # an infinite one is no answer


class Predictor:
    """Answer as a method does, in the plain way: one pass per task, as when it was evaluated."""

    def __init__(self, method: Method, tasks: int) -> None:
        self.method, self.tasks = method, tasks

    @torch.no_grad()
    def predict_scores(self, images: Tensor) -> Prediction:
        """Return what is said of as many uint8 images as fit into one pass."""
        return self.read(self.encode(images.to(self.method.device)))

    def encode(self, images: Tensor) -> Tensor:
        """Return features in all feature sets."""
        return self.method.encode_chunk(images, self.method.feature_sets(self.tasks))

    @torch.no_grad()
    def read(self, encoded: Tensor) -> Prediction:
        """Return what is said of images whose features in all feature sets are at hand."""
        return Prediction(self.method.scores(encoded).cpu(), self.method.in_distribution(encoded).cpu())


class FastPredictor(Predictor):
    """Answer the same to rounding, for a method with a protector, in fewer and smaller passes."""

    def __init__(
        self,
        method: Method,
        protector: Protector,
        tasks: int,
        compile: bool = False,
        folded: bool | None = None,
    ) -> None:
        super().__init__(method, tasks)
        self.folded, self.below = folded, protector.below
        self.asked_by_pass = [index for index in method.feature_sets(tasks) if index >= 0]
        compact = protector.compact()
        self.pairs = compact.pairs
        self.compact: Callable[..., Tensor] = compact
        self.below_and_bare: Callable[..., tuple[Tensor, Tensor]] = protector.below_and_bare
        if compile:  # not `pairs`, whose tasks are others every time
            self.compact, self.below_and_bare = torch.compile(self.compact), torch.compile(self.below_and_bare)

    def encode(self, images: Tensor) -> Tensor:
        tasks = self.asked_by_pass
        if not self.method.feature_sets(0):
            return self.compact(self.below(images), tasks, self.folded)
        activations, bare = self.below_and_bare(images)
        return torch.cat([bare, self.compact(activations, tasks, self.folded)], 1) if tasks else bare


class ShortlistPredictor(FastPredictor):
    """Ask only the tasks whose classes are nearest under the bare trunk, which every image passes anyway: the cost
    of an image does not grow with the number of tasks. An answer whose task is on the shortlist stays the same."""

    def __init__(
        self, method: Method, protector: Protector, tasks: int, shortlist: int, compile: bool = False
    ) -> None:
        super().__init__(method, protector, tasks, compile)
        self.shortlist = min(shortlist, tasks)

    def encode(self, images: Tensor) -> Tensor:
        """Return features in all feature sets, with zeros where a task was not asked."""
        activations, bare = self.below_and_bare(images)
        encoded = torch.cat([bare, bare.new_zeros(len(bare), len(self.asked_by_pass), bare.shape[2])], 1)
        tasks = torch.tensor(self.asked_by_pass, dtype=torch.long, device=bare.device)
        rows, places = self.asked(encoded)[:, tasks].nonzero(as_tuple=True)
        if len(rows):
            encoded[rows, bare.shape[1] + places] = self.pairs(activations[rows], tasks[places])
        return encoded

    @torch.no_grad()
    def read(self, encoded: Tensor) -> Prediction:
        asked = self.asked(encoded)
        sizes = torch.tensor(self.method.classes_per_task, device=asked.device)
        scores = self.method.scores(encoded).masked_fill(~asked.repeat_interleave(sizes, 1), -torch.inf)
        known = self.method.known_to_tasks(encoded).masked_fill(~asked, -torch.inf).amax(1)
        return Prediction(scores.cpu(), known.cpu())

    def asked(self, encoded: Tensor) -> Tensor:
        """Return which tasks are on the shortlist of every image, [B, tasks]."""
        nearness = self.method.task_nearness(encoded)
        best = nearness.topk(self.shortlist).indices
        return torch.zeros_like(nearness, dtype=torch.bool).scatter(1, best, True)


class Twice(Predictor):
    """Look at every image and at its mirror image, and answer by the mean of both: for twice the price."""

    def __init__(self, once: Predictor) -> None:
        super().__init__(once.method, once.tasks)
        self.once = once

    def predict_scores(self, images: Tensor) -> Prediction:
        seen, mirrored = self.once.predict_scores(images), self.once.predict_scores(images.flip(-1))
        scores = torch.logaddexp(seen.scores.log_softmax(1), mirrored.scores.log_softmax(1)) - math.log(2)
        return Prediction(scores, (seen.in_distribution + mirrored.in_distribution) / 2)

    def read(self, encoded: Tensor) -> Prediction:
        return self.once.read(encoded)


def smallest_shortlist(method: Method, known: EncodedImages) -> int:
    """Return the fewest tasks with which almost all calibration images get the answer that all tasks would give."""
    nearness = method.task_nearness(known.encoded)
    answered = method.tasks_of(method.scores(known.encoded).argmax(1))
    nearer = (nearness > nearness.gather(1, answered[:, None])).sum(1)  # tasks before the one that answers
    return int(nearer.sort().values[math.ceil(KEPT * len(nearer)) - 1]) + 1


@torch.no_grad()
def build_predictor(method: Method, tasks: int, speed: Speed | None, known: EncodedImages) -> Predictor:
    """Return the plain predictor without `speed`, else the fastest that the method has."""
    if speed is None or method.protector is None:
        return Predictor(method, tasks)
    if speed.shortlist is None:
        return FastPredictor(method, method.protector, tasks, speed.compile, speed.folded)
    shortlist = smallest_shortlist(method, known) if speed.shortlist == "auto" else speed.shortlist
    return ShortlistPredictor(method, method.protector, tasks, shortlist, speed.compile)


def check_speed(speed: Speed, method: Method, known: EncodedImages) -> None:
    """Refuse a shortlist that cannot be made."""
    if speed.shortlist is None:
        return
    if speed.shortlist != "auto":
        check_number("shortlist", speed.shortlist, int, least=1)
    if not method.can_shortlist:
        raise OarlockError(
            f"shortlist={speed.shortlist}: tasks are shortlisted by distances under the bare trunk, and "
            f"{method.name} keeps none with these options (docs/how-to/fast.md says what does); leave it out"
        )
    if speed.shortlist == "auto" and not len(known):
        raise OarlockError("shortlist='auto' is found on calibration images, and none were kept: give a number")
