"""A task before it is learned, what is kept of it afterwards, and what it promised."""

import math
import os
import platform
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from oarlock.data.images import Label
from oarlock.files import fingerprint
from oarlock.memory import fair_quota
from oarlock.methods._base import Method
from oarlock.schema import either, integer, list_of, mapping, matching, maybe, record, text
from oarlock.training import TaskData, generator

MOST_TASKS = 10_000
MOST_THREADS = 64  # that a promise is checked on, unless the machine has more processors
LABEL = either(integer(-(2**63), 2**63 - 1), text())
MACHINE = record(
    {"threads": integer(1), **dict.fromkeys(("cpu", "instructions", "torch", "device"), text())},
    {"limits": mapping(text(), most=100)},
)
PROMISE = record({"constants": mapping(matching("[0-9a-f]{64}"), most=100), "machine": MACHINE})
DATE = matching(r"[0-9T:+.-]{1,40}")  # and time
TASK = record(
    {
        "classes": list_of(LABEL, least=1),
        "images": list_of(integer(0)),
        "learned": maybe(DATE),
        "promise": maybe(PROMISE),
    }
)

PROBES = 8  # images kept of a task, or fewer
PROBE_BYTES = 300_000  # that they take together, unless two take more
TOLERANCE = 1e-4  # on another machine, of the largest value


class Check(NamedTuple):
    """Tell how a promise compares with what the model answers now.

    >>> moved = Check(1536, 3, ["features"], 2e-7, same_machine=True)
    >>> moved.holds, moved._replace(same_machine=False).holds, moved._replace(tolerance=1e-6).holds
    (False, True, True)
    """

    compared: int  # values
    changed_values: int
    changed: list[str]  # what is not bit for bit what it was
    difference: float  # the largest, as a share of the largest value; infinite where only equality is known to fail
    same_machine: bool
    tolerance: float = 0.0  # that was promised, of the largest value; 0: bit for bit

    @property
    def allowed(self) -> float:
        """Return what may differ: on another machine, what rounding does as well."""
        return self.tolerance if self.same_machine else max(self.tolerance, TOLERANCE)

    @property
    def holds(self) -> bool:
        return not self.changed or 0 < self.difference <= self.allowed


@dataclass(frozen=True, eq=False)
class Promise:
    """Keep the answers of one finished task as they are; of what is the same for all images (class means, a
    covariance), which is large and read from the file rather than computed, keep a sha256."""

    images: Tensor
    answers: dict[str, Tensor]
    constants: dict[str, str]
    machine: dict[str, Any]

    @classmethod
    def about(cls, images: Tensor, method: Method, task: int) -> "Promise | None":
        """Return what a method promises for some of these images."""
        return cls.record(method, spread(spread(images, max(PROBE_BYTES // images[0].numel(), 2)), PROBES), task)

    @classmethod
    @torch.no_grad()
    def record(cls, method: Method, images: Tensor, task: int) -> "Promise | None":
        """Return what a method promises for these images; None where it promises nothing."""
        promised = method.promised(images, task)
        if not promised:
            return None
        answers = {name: _plain(value) for name, value in promised.items() if name not in method.constants}
        hashes = {name: _sha256(value) for name, value in promised.items() if name in method.constants}
        return cls(images.cpu(), answers, hashes, machine(method.device))

    @torch.no_grad()
    def check(self, method: Method, task: int) -> Check:
        """Ask the task again, on as many threads as it answered with, and return what changed."""
        before = torch.get_num_threads()
        torch.set_num_threads(min(self.machine["threads"], max(MOST_THREADS, os.cpu_count() or 1)))
        try:
            promised, here = method.promised(self.images, task), machine(method.device)
        finally:
            torch.set_num_threads(before)
        now = {name: _plain(value) for name, value in promised.items()}
        differences = {name: _difference(value, now.get(name)) for name, value in self.answers.items()}
        changed = {name: _changed(value, now.get(name)) for name, value in self.answers.items()}
        for name, written in self.constants.items():
            same = name in now and _sha256(now[name]) == written
            changed[name] = 0 if same else now[name].numel() if name in now else 1
            differences[name] = 0.0 if same else float("inf")
        return Check(
            compared=sum(value.numel() for value in now.values()),
            changed_values=sum(changed.values()),
            changed=[name for name, count in changed.items() if count],
            difference=max(differences.values(), default=0.0),
            same_machine=here == self.machine,
            tolerance=method.tolerance,
        )

    def tensors(self) -> dict[str, Tensor]:
        return {"images": self.images, **{f"answers.{name}": value for name, value in self.answers.items()}}

    def describe(self) -> dict[str, Any]:
        return {"constants": self.constants, "machine": self.machine}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], description: dict[str, Any]) -> "Promise":
        answers = {name.removeprefix("answers."): value for name, value in tensors.items() if name != "images"}
        return cls(tensors["images"], answers, description["constants"], description["machine"])


def spread(images: Tensor, most: int) -> Tensor:
    """Return at most so many of the images, spread evenly."""
    return images[torch.linspace(0, len(images) - 1, min(most, len(images))).round().long()]


LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")  # on instructions used


def machine(device: torch.device) -> dict[str, Any]:
    """Return what rounding depends on; limits on instructions only where the environment sets some."""
    limits = {name: os.environ[name] for name in LIMITS if name in os.environ}
    return {
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        **({"limits": limits} if limits else {}),
    }


@cache
def _cpu() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().clone()


def _sha256(value: Tensor) -> str:
    return fingerprint({"": _plain(value)})


def _changed(before: Tensor, now: Tensor | None) -> int:
    """Return how many values are not bit for bit what they were."""
    if now is None or now.shape != before.shape:
        return before.numel()
    return int((now != before).sum())


def _difference(before: Tensor, now: Tensor | None) -> float:
    if now is None or now.shape != before.shape or not now.isfinite().all():
        return float("inf")
    size = before.double().abs().max().clamp_min(torch.finfo(torch.double).tiny)
    return float((now.double() - before.double()).abs().max() / size)


CALIBRATE_FROM = 5  # images of a class; of fewer none can be spared
SURE = 0.9  # how often a threshold is to keep what it says
MOST_CALIBRATION, LEAST_CALIBRATION = (
    1000,
    400,
)  # images that all tasks together may keep, of large tasks and of small


class PreparedTask(NamedTuple):
    """Hold a task that was found good: what it trains on, and known images kept out of training for calibration."""

    classes: list[Label]
    images: list[int]  # of each class, both parts together
    task: TaskData
    calibration: Tensor
    calibration_labels: Tensor
    learned: str | None  # date and time, if they are to be kept
    copies: int = 0  # images that show what another one shows
    photos: str | None = None  # sha256 of all of its images, if some are of classes known before


class FinishedTask(NamedTuple):
    """Hold what a learner knows about a task it has learned.

    >>> FinishedTask(["ant", "bee"], [12, 9], learned=None, promise=None).describe()
    {'classes': ['ant', 'bee'], 'images': [12, 9], 'learned': None, 'promise': None}
    """

    classes: list[Label]
    images: list[int]
    learned: str | None
    promise: Promise | None

    def describe(self) -> dict[str, Any]:
        return {**self._asdict(), "promise": None if self.promise is None else self.promise.describe()}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.promise is None else self.promise.tensors()

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], description: dict[str, Any]) -> "FinishedTask":
        promise = description["promise"] and Promise.from_state(tensors, description["promise"])
        return cls(list(description["classes"]), list(description["images"]), description["learned"], promise)


def hold_out(
    labels: Tensor,
    share: float,
    seed: int,
    task: int,
    before: Tensor | None = None,
    groups: np.ndarray | None = None,
) -> Tensor:
    """Return which images calibration gets: a share of each class, drawn at random; where that would be more than
    the limit together with what it has `before` of earlier classes, as many of each class as fit.

    Of `groups` (a number for each image) all images go to the same side. A class none of whose groups is as small as
    its share gives its smallest one, where that leaves half of its images to train on.

    >>> hold_out(torch.tensor([0] * 10 + [1] * 4), 0.2, seed=0, task=0).nonzero().flatten().tolist()
    [2, 6]
    >>> hold_out(torch.zeros(10).long(), 0.2, seed=0, task=0, groups=np.arange(10) // 2).nonzero().flatten().tolist()
    [2, 3]
    """
    counts = labels.bincount().tolist()
    wanted = torch.tensor([max(int(share * n + 1e-9), int(share > 0 and n >= CALIBRATE_FROM)) for n in counts])
    quota = fair_quota(wanted if before is None else torch.cat([before, wanted]), calibration_limit(len(labels)))
    left = wanted.clamp_max(quota).tolist()
    groups = np.arange(len(labels)) if groups is None else groups
    shares: dict[int, Counter[int]] = {}  # of each group its images of each class
    for group, label in zip(groups.tolist(), labels.tolist(), strict=True):
        shares.setdefault(group, Counter())[label] += 1
    held: set[int] = set()
    for label in labels.unique().tolist():
        if left[label] <= 0:
            continue
        rows = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(rows), generator=generator(seed, task, "calibration", label))
        drawn = list(dict.fromkeys(groups[rows[order].numpy()].tolist()))
        for group in drawn:
            if group not in held and all(images <= left[of] for of, images in shares[group].items()):
                held.add(group)
                left = [images - shares[group][of] for of, images in enumerate(left)]
        if held.isdisjoint(drawn):
            least = min(drawn, key=lambda group: shares[group].total())
            if all(2 * images <= counts[of] for of, images in shares[least].items()):
                held.add(least)
                left = [images - shares[least][of] for of, images in enumerate(left)]
    return torch.from_numpy(np.isin(groups, list(held)))


def calibration_limit(images: int) -> int:
    """Return how many calibration images there may be of all tasks together once a task of so many images is learned:
    each of them passes its network, which should not cost a late task more than learning.

    >>> [calibration_limit(images) for images in (100, 300, 5000)]
    [400, 600, 1000]
    """
    return min(max(2 * images, LEAST_CALIBRATION), MOST_CALIBRATION)


def spared_none(classes: list[Label], labels: Tensor, held: Tensor) -> list[Label]:
    """Return the classes that have images to spare for calibration and gave none.

    >>> spared_none(["ant", "bee", "cow"], torch.tensor([0, 1, 1, 1, 1, 1, 2]), torch.zeros(7, dtype=torch.bool))
    ['bee']
    """
    counts, given = (some.bincount(minlength=len(classes)).tolist() for some in (labels, labels[held]))
    return [name for at, name in enumerate(classes) if counts[at] >= CALIBRATE_FROM and not given[at]]


def sure_rank(images: int, accept: float) -> int:
    """Return which of so many calibration scores, ascending from 0, is a threshold that a share `accept` of inputs
    like them reaches in nine of ten sets of calibration images; the least, where even that one is too few to be sure.

    The share that reaches the n-th smallest is at least `accept` as often as n or more of the images would be
    rejected if each were with probability 1 − accept (order statistics; Wilks, 1941).

    >>> [sure_rank(images, 0.95) for images in (10, 100, 1000)]
    [0, 1, 40]
    """
    at_most, rank = 0.0, 0
    while rank < images:
        rejected = math.comb(images, rank) * (1 - accept) ** rank * accept ** (images - rank)
        at_most += rejected  # the probability that no more than `rank` are rejected
        if at_most > 1 - SURE:
            break
        rank += 1
    return max(rank - 1, 0)
