"""What runs will cost, from a short probe of each method on this machine: nothing is downloaded, no data is read.

A probe learns three tasks of a few made-up images, with one epoch and with two, and encodes them. What an epoch adds
is the price of an image in an epoch; what is left of a task that has a memory, the price of an image besides. A run
is then all of its images at these prices. What costs more the more tasks there are, such as heads tuned on the
memory, is counted as in the third task: next to the passes of a large trunk that is nothing, next to those of a small
one little. Time is the processor's, so that other work on the machine is not counted.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch

from oarlock.experiments.plan import PlannedRun
from oarlock.experiments.protocols import find
from oarlock.learner import Learner
from oarlock.methods import Method, configure, methods
from oarlock.nets.trunks import Trunk, families, load_trunk
from oarlock.nets.trunks._timm import TimmTrunk, create, timm_card
from oarlock.options import describe
from oarlock.session import Session
from oarlock.training import NoCallback

CLASSES, IMAGES = 2, 8  # of a probe's task, and of each class
TASKS = 3  # the first warms up, and has no memory
SHAPE = ("adapt_last", "width", "protector", "bf16")  # options that a pass costs more or less by


class Prices(NamedTuple):
    """Hold seconds for one image: learned, besides epochs; in an epoch; under one set of features; passing the bare
    trunk."""

    image: float
    epoch: float
    answer: float
    bare: float


class Cost(NamedTuple):
    """Hold what a run takes on this machine, and the passes of an image through the bare trunk that take as long."""

    seconds: float
    passes: int

    @classmethod
    def of(cls, run: PlannedRun, prices: Prices) -> "Cost":
        """Return the cost of all images of a run.

        >>> from oarlock.experiments.plan import Settings
        >>> run = PlannedRun(Settings("c10-5t-mini"), 1, "slda", {})
        >>> Cost.of(run, Prices(image=0.02, epoch=0.0, answer=0.01, bare=0.01))  # of 5000 images and 2000
        Cost(seconds=140.0, passes=14000)
        """
        protocol = find(run.settings.protocol)
        each = protocol.images or protocol.data
        epochs = _options(run).get("epochs", 0)
        learning = each.train * (prices.image + epochs * prices.epoch)
        answering = each.test * (prices.bare + _answers(methods.find(run.method), protocol.tasks) * prices.answer)
        seconds = protocol.classes * (learning + answering)
        return cls(round(seconds, 3), round(seconds / prices.bare))


def hours(costs: Sequence[Cost], machines: int) -> float:
    """Return how long runs take side by side: no less than the longest of them.

    >>> hours([Cost(3600, 0), Cost(1800, 0), Cost(1800, 0)], machines=2)
    1.0
    >>> hours([Cost(3600, 0), Cost(1800, 0), Cost(1800, 0)], machines=9)
    1.0
    """
    seconds = [cost.seconds for cost in costs]
    return max(sum(seconds) / machines, max(seconds)) / 3600


def cost_all(runs: Iterable[PlannedRun], told: Callable[[str], None]) -> list[tuple[PlannedRun, Cost]]:
    """Return what every run costs. What is alike but for its length is measured once, and told before."""
    known: dict[tuple[Any, ...], Prices] = {}
    costs = []
    for run in runs:
        config = run.config()
        alike = (run.method, config.trunk, run.settings.threads, *(_options(run).get(name) for name in SHAPE))
        if alike not in known:
            told(f"measuring {run.method} on {config.trunk}")
            known[alike] = measure(run, untrained(config.trunk))
        costs.append((run, Cost.of(run, known[alike])))
    return costs


def measure(run: PlannedRun, trunk: Trunk) -> Prices:
    """Return the prices of a run's method on a trunk; values do not matter to them."""
    torch.set_num_threads(run.settings.threads)
    once, learner = _probe(run, trunk, epochs=1)
    twice, _ = _probe(run, trunk, epochs=2) if "epochs" in _options(run) else (once, None)
    images = torch.from_numpy(_images(trunk, TASKS)).permute(0, 3, 1, 2).contiguous()
    epoch = max(twice - once, 0.0) / len(images)
    besides = max(once / len(images) - epoch, 0.0)
    return Prices(besides, epoch, _encoding(learner.method, images), _best(lambda: trunk(images)) / len(images))


def untrained(name: str) -> Trunk:
    """Return a trunk by name, one of timm's with weights that nobody trained."""
    for family in families.all().values():
        if name not in family.names and issubclass(family, TimmTrunk) and family.accepts(name):
            model = create(name).eval()
            return family(model, timm_card(model, name, source="none", family=family.name))
    return load_trunk(name)


def _probe(run: PlannedRun, trunk: Trunk, epochs: int) -> tuple[float, Learner]:
    """Seconds to learn a task that has tasks before it, and what has learned it."""
    options = _options(run)
    if "epochs" in options:
        options = options | {"epochs": epochs}
    learner = Learner(run.method, trunk=trunk, memory=CLASSES * IMAGES, calibration=0.0, **options)
    seconds = [_timed(partial(_learn, learner, task)) for task in range(TASKS)]
    return min(seconds[1:]), learner


def _learn(learner: Learner, task: int) -> None:
    labels = [f"{task}-{number % CLASSES}" for number in range(CLASSES * IMAGES)]
    Session(learner).learn(learner.prepare_task(_images(learner.trunk, task), labels), NoCallback())


def _images(trunk: Trunk, seed: int) -> numpy.ndarray:
    shape = (CLASSES * IMAGES, trunk.size, trunk.size, 3)
    return numpy.random.default_rng(seed).integers(0, 256, shape, dtype=numpy.uint8)


@torch.no_grad()
def _encoding(method: Method, images: torch.Tensor) -> float:
    """Seconds for an image under one set of features, once what lies below all of them is known."""
    sets, activations = method.feature_sets(TASKS), method.activations(images)
    if activations is None:
        return _best(lambda: method.encode(images, sets)) / len(images) / len(sets)
    return _best(lambda: method.encode_cached(activations, sets)) / len(images) / len(sets)


def _options(run: PlannedRun) -> dict[str, Any]:
    """All options of a run's method. Where its tasks have many images, a probe's do not have few."""
    protocol = find(run.settings.protocol)
    options = describe(configure(methods.find(run.method), run.config().all_options()))
    if "few" in options and (protocol.images or protocol.data).train > options["few"]:
        options["few"] = 0
    return options


def _answers(method: type[Method], tasks: int) -> float:
    """Under how many sets of features a test image is encoded in a whole run: that of every task, or, where features
    move, again after each task from its own on."""
    if method.protected:
        return tasks
    return 1.0 if method.features_frozen else (tasks + 1) / 2


def _best(work: Callable[[], object]) -> float:
    return min(_timed(work) for _ in range(2))


def _timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) / torch.get_num_threads()
