"""Answers of finished tasks, arranged for speed: closed gates cut out, tasks folded into one pass, and on request
only the tasks that an image may belong to."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from oarlock.checks import check_number
from oarlock.errors import OarlockError
from oarlock.memory import EncodedImages
from oarlock.methods.base import Method
from oarlock.methods.gated import GatedMethod
from oarlock.methods.row import Row
from oarlock.nets.compact import CompactAdapters

KEPT = 0.99  # share of calibration images whose answers a shortlist must not change to be chosen by "auto"

Shortlist = int | Literal["auto"] | None


class Speed(NamedTuple):
    """What is done for speed in prediction; files do not keep it."""

    shortlist: Shortlist = None  # tasks that are asked, of those nearest under the bare trunk; None: all
    compile: bool = False  # torch.compile: a minute at the start, for many images of one size


class Judgement(NamedTuple):
    """Of images: one column per class, log-probability up to a constant of the row; and how much each looks like
    something learned."""

    scores: Tensor
    in_distribution: Tensor


class Predictor:
    """What a method says, in the plain way: one pass per task, as when it was evaluated."""

    def __init__(self, method: Method, tasks: int) -> None:
        self.method, self.tasks = method, tasks

    @torch.no_grad()
    def judge(self, images: Tensor) -> Judgement:
        """Of as many uint8 images as fit into one pass."""
        return self.read(self.encode(images.to(self.method.device)))

    def encode(self, images: Tensor) -> Tensor:
        """Features in all views."""
        return self.method.encode_chunk(images, self.method.views(self.tasks))

    @torch.no_grad()
    def read(self, encoded: Tensor) -> Judgement:
        """What is said of images whose features in all views are at hand."""
        return Judgement(self.method.scores(encoded).cpu(), self.method.in_distribution(encoded).cpu())


class FastPredictor(Predictor):
    """The same to rounding, of a method with gates, in fewer and smaller passes."""

    method: GatedMethod

    def __init__(self, method: GatedMethod, tasks: int, compile: bool = False, folded: bool | None = None) -> None:
        super().__init__(method, tasks)
        self.folded = folded
        compact = CompactAdapters(method.adapters)
        self.pairs = compact.pairs
        self.compact: Callable[..., Tensor] = compact
        self.below_and_bare: Callable[..., tuple[Tensor, Tensor]] = method.adapters.below_and_bare
        if compile:  # not `pairs`, whose tasks are others every time
            self.compact, self.below_and_bare = torch.compile(self.compact), torch.compile(self.below_and_bare)

    def encode(self, images: Tensor) -> Tensor:
        tasks = range(self.tasks)
        if not self.method.views(0):
            return self.compact(self.method.adapters.below(images), tasks, self.folded)
        tokens, bare = self.below_and_bare(images)
        return torch.cat([bare, self.compact(tokens, tasks, self.folded)], 1)


class ShortlistPredictor(FastPredictor):
    """ROW among the tasks whose classes are nearest under the bare trunk, which every image passes anyway: the cost
    of an image does not grow with the number of tasks. Answers are the same whose task is on the shortlist."""

    method: Row

    def __init__(self, method: Row, tasks: int, shortlist: int, compile: bool = False) -> None:
        super().__init__(method, tasks, compile)
        self.shortlist = min(shortlist, tasks)

    def encode(self, images: Tensor) -> Tensor:
        """Zeros stand where a task was not asked."""
        tokens, bare = self.below_and_bare(images)
        encoded = torch.cat([bare, bare.new_zeros(len(bare), self.tasks, bare.shape[2])], 1)
        rows, tasks = self.asked(encoded).nonzero(as_tuple=True)
        encoded[rows, bare.shape[1] + tasks] = self.pairs(tokens[rows], tasks)
        return encoded

    @torch.no_grad()
    def read(self, encoded: Tensor) -> Judgement:
        asked = self.asked(encoded)
        sizes = torch.tensor(self.method.sizes, device=asked.device)
        scores = self.method.scores(encoded).masked_fill(~asked.repeat_interleave(sizes, 1), -torch.inf)
        known = self.method.known_to_tasks(encoded).masked_fill(~asked, -torch.inf).amax(1)
        return Judgement(scores.cpu(), known.cpu())

    def asked(self, encoded: Tensor) -> Tensor:
        """Which tasks are on the shortlist of every image, [B, tasks]."""
        nearness = self.method.log_trunk_factors(encoded)
        best = nearness.topk(self.shortlist).indices
        return torch.zeros_like(nearness, dtype=torch.bool).scatter(1, best, True)


def smallest_shortlist(method: Row, known: EncodedImages) -> int:
    """The fewest tasks with which almost all calibration images get the answer that all tasks would give."""
    nearness = method.log_trunk_factors(known.encoded)
    answered = method.tasks_of(method.scores(known.encoded).argmax(1))
    nearer = (nearness > nearness.gather(1, answered[:, None])).sum(1)  # tasks before the one that answers
    return int(nearer.sort().values[math.ceil(KEPT * len(nearer)) - 1]) + 1


@torch.no_grad()
def build_predictor(method: Method, tasks: int, speed: Speed | None, known: EncodedImages) -> Predictor:
    """The plain way without `speed`, else the fastest that the method has."""
    if speed is None or not isinstance(method, GatedMethod):
        return Predictor(method, tasks)
    if speed.shortlist is None:
        return FastPredictor(method, tasks, speed.compile)
    assert isinstance(method, Row)
    shortlist = smallest_shortlist(method, known) if speed.shortlist == "auto" else speed.shortlist
    return ShortlistPredictor(method, tasks, shortlist, speed.compile)


def check_speed(speed: Speed, method: Method, known: EncodedImages) -> None:
    """Refuse a shortlist that cannot be made."""
    if speed.shortlist is None:
        return
    if speed.shortlist != "auto":
        check_number("shortlist", speed.shortlist, int, least=1)
    if not isinstance(method, Row) or not method.config.beta:
        raise OarlockError(
            f"shortlist={speed.shortlist}: only row with beta above 0 keeps the bare trunk's distances, by which "
            "tasks are shortlisted; leave it out"
        )
    if speed.shortlist == "auto" and not len(known):
        raise OarlockError("shortlist='auto' is found on calibration images, and none were kept: give a number")
