"""Step 1 of ROW's second task, with memory, trained our way and in reference style: what step1*.py compare."""

import argparse
import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from measuring import Clock, Times, alternate, cpu_bf16, report
from reference import ReferenceRow
from torch import Tensor
from workloads import any_trunk, learn, row_of, shortened, small_stream, test_sets

from oarlock import Learner
from oarlock.methods.oar import Oar
from oarlock.nets.trunks import BUNDLED, Trunk
from oarlock.training import Loss, NoCallback, Position, run_phases

DEIT = "deit_small_patch16_224"


@dataclass(frozen=True)
class Size:
    """Of one training: images of each of two classes, current images in a batch (joined by as many from memory)."""

    images: int
    batch: int
    memory: int
    epochs: int
    test: int = 0  # held-out images of a class to compare answers on


class Comparison(NamedTuple):
    """How the two sides fared, and how far apart they ended."""

    times: Times
    loss_difference: float  # the largest of any step
    gradient_difference: float  # of the last step, as a share of the gradient's length
    accuracy_difference: float | None  # in percent

    def details(self) -> dict[str, object]:
        differences = {name: value for name, value in self._asdict().items() if name != "times"}
        return {"ratio": round(self.times.ratio, 2), **self.times.details(), **differences}


class Trained(NamedTuple):
    row: Oar
    losses: "Losses"


class Losses(NoCallback):
    """Of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self.values.append(loss.value.item())


class Sides:
    """Two trainings that begin with the same values and see the same batches."""

    def __init__(self, trunk: Trunk, adapt_last: int, size: Size, bf16: bool) -> None:
        self.bf16 = bf16  # products of our side
        stream = small_stream("sample", 2, 2, size.images, size.test or 1)
        options: dict[str, Any] = {"adapt_last": adapt_last, "epochs": size.epochs, "batch": size.batch}
        options["beta"] = 0.0  # or our step 1 would also see the images under the bare trunk, for what follows it
        learner = Learner("oar", trunk=trunk, memory=size.memory, calibration=0.0, **options)
        learn(learner, shortened(stream[0], size.memory // 2, 1))
        self.row, second = row_of(learner), stream[1]
        self.task = learner.prepare_task(second.train.images, second.train.labels.tolist(), second.classes).task
        self.held_out = test_sets(stream, trunk)[1] if size.test else None
        self.trained: dict[str, Trained] = {}

    def ours(self, clock: Clock) -> None:
        row = copy.deepcopy(self.row)
        row.protector.bf16 = self.bf16
        self.trained["ours"] = self._train(row, clock)

    def theirs(self, clock: Clock) -> None:
        self.trained["theirs"] = self._train(ReferenceRow.like(self.row), clock)

    def _train(self, row: Oar, clock: Clock) -> Trained:
        row.begin(self.task)
        step1, losses = row.phases(self.task)[:1], Losses()
        with clock:
            run_phases(step1, self.task, losses, Position(self.task.index, 0, 0))
        return Trained(row, losses)

    def compare(self, repeats: int) -> Comparison:
        times = alternate(self.ours, self.theirs, repeats)
        ours, theirs = self.trained["ours"], self.trained["theirs"]
        losses = zip(ours.losses.values, theirs.losses.values, strict=True)
        gradient, other = self._gradient(ours.row), self._gradient(theirs.row)
        return Comparison(
            times,
            max(abs(a - b) for a, b in losses),
            float((gradient - other).norm() / gradient.norm()),
            abs(self._accuracy(ours.row) - self._accuracy(theirs.row)) if self.held_out else None,
        )

    def _gradient(self, row: Oar) -> Tensor:
        """Of the last step, which nothing has cleared."""
        parameters = [parameter for group in row.protector.parameter_groups() for parameter in group["params"]]
        parameters += row.ood_heads[self.task.index].parameters()
        return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])

    @torch.no_grad()
    def _accuracy(self, row: Oar) -> float:
        assert self.held_out is not None
        (images, numbers), k = self.held_out, self.task.index
        logits = row.ood_heads[k](row.encode(images, [k])[:, 0])[:, :-1]
        return 100 * float((logits.argmax(1) == numbers - row.class_slice(k).start).double().mean())


def add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trunk", action="append", help=f"may be given twice; {BUNDLED} and {DEIT} if left out")
    parser.add_argument("--images", type=int, help="of a class")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--bf16",
        action=argparse.BooleanOptionalAction,
        default=cpu_bf16(),
        help="products of our side in bfloat16; if left out, where the processor has it",
    )


def compare_trunks(given: argparse.Namespace, share: float, bundled: Size, large: Size) -> dict[str, Comparison]:
    """Adapters in a share of the stages of every trunk; what the command line gives goes before our sizes."""
    wanted = {name: getattr(given, name) for name in ("images", "batch", "memory", "epochs")}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    found = {}
    for name in given.trunk or [BUNDLED, DEIT]:
        size = replace(bundled if name == BUNDLED else large, **wanted)
        trunk = any_trunk(name)
        found[name] = Sides(trunk, round(share * len(trunk.stages)), size, given.bf16).compare(given.repeats)
    return found


def report_trunks(name: str, goal: float, bf16: bool, found: dict[str, Comparison]) -> None:
    """The ratio is that of the trunk that gains least."""
    seen = [one.accuracy_difference for one in found.values() if one.accuracy_difference is not None]
    report(
        name,
        min(one.times.ratio for one in found.values()),
        goal,
        max(seen, default=None),
        bf16=bf16,
        trunks={trunk: one.details() for trunk, one in found.items()},
    )
