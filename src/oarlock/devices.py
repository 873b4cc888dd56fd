"""One run on several processes: each computes the gradients of its share of every batch, and all take the same step.

Everything else (caches, memories, heads, thresholds) every process does by itself, with the same seeds and so with
the same outcome; the first one alone looks at test images and writes. Lightning Fabric starts the processes, or finds
those that `torchrun` has started.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.errors import OarlockError

LONGEST = timedelta(days=30)  # that processes wait for the first one, which evaluates meanwhile
OBSERVER = "child-process-observer"


class Lost(OarlockError):
    """Say that another process of the run is gone."""


class Devices:
    """Do everything in this process: several are the exception.

    >>> Devices().share((torch.arange(5), torch.arange(5, 10)))
    ((tensor([0, 1, 2, 3, 4]), tensor([5, 6, 7, 8, 9])), 1.0)
    """

    rank, count = 0, 1

    def share(self, batch: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], float]:
        """Return this process's rows of a batch, and which share of all rows they are."""
        mine = tuple(rows.tensor_split(self.count)[self.rank] for rows in batch)
        return mine, len(mine[0]) / len(batch[0])

    def add_up(self, parameters: Sequence[nn.Parameter], share: float, told: Tensor) -> Tensor:
        """Make gradients of the whole batch of those of its shares; return the mean of what else is told."""
        return told

    def agree(self, value: Any = None) -> Any:
        """Return the first process's value, in all of them; nobody goes on before everybody is here."""
        return value


class Fabric(Devices):
    """Do it in all processes that Lightning Fabric started."""

    def __init__(self, fabric: Any) -> None:
        self.fabric = fabric
        self.rank, self.count = fabric.global_rank, fabric.world_size

    def add_up(self, parameters: Sequence[nn.Parameter], share: float, told: Tensor) -> Tensor:
        """Leave what has no gradient anywhere without one, so that optimisers do not touch it."""
        grads = [p.grad if share and p.grad is not None else torch.zeros_like(p) for p in parameters]
        seen = torch.tensor([float(share > 0 and p.grad is not None) for p in parameters])
        sizes = [len(seen), len(told), *(grad.numel() for grad in grads)]
        flat = [share * part.flatten().to(told) for part in (told, *grads)]
        has, mean, *parts = self._sum(torch.cat([seen.to(told), *flat])).split(sizes)
        for parameter, any_, part in zip(parameters, has, parts, strict=True):
            parameter.grad = part.view_as(parameter) if any_ else None
        return mean

    def agree(self, value: Any = None) -> Any:
        with _company():
            return self.fabric.broadcast(value)

    def _sum(self, values: Tensor) -> Tensor:
        with _company():
            return self.fabric.all_reduce(values, reduce_op="sum")


@contextmanager
def _company() -> Iterator[None]:
    """A process that is gone is found by those that wait for it."""
    try:
        yield
    except RuntimeError as problem:
        raise Lost("another process of this run ended; what is done is kept: go on with --resume") from problem


def launch(count: int) -> Devices:
    """Start so many processes, each of which runs this program from its beginning, and be the first of them; or be
    one of those that `torchrun` has started."""
    if count < 1:
        raise OarlockError(f"{count} devices: choose 1 or more")
    if count == 1:
        return Devices()
    try:
        import lightning_fabric
        from lightning_fabric.strategies import DDPStrategy
    except ImportError:
        raise OarlockError("several devices need Lightning Fabric: pip install 'oarlock[fabric]'") from None
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)  # it tells who started, on every terminal
    strategy = DDPStrategy(process_group_backend="gloo", timeout=LONGEST)
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=count, strategy=strategy)
    fabric.launch()
    _no_sudden_end()
    return Fabric(fabric)


def _no_sudden_end() -> None:
    """Fabric kills this process when one that it started has died; it is found anyway, and said, at the next step."""
    for thread in threading.enumerate():
        if thread.name == OBSERVER:
            thread._finished = True  # type: ignore[attr-defined]
