"""What a finished task promised: a few images, its answers for them, and on what machine these were computed.

The promise is bit for bit on the same execution path: the same images in one batch, threads, library and processor.
Elsewhere sums are rounded differently, and answers are held to a tolerance instead.
"""

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.files import fingerprint
from oarlock.methods.base import Method

PROBES = 8  # images kept of a task
TOLERANCE = 1e-4  # on another machine, of the largest value


class Check(NamedTuple):
    """A promise held against what the model answers now.

    >>> Check(1536, ["features"], 2e-7, same_machine=True).holds, Check(1536, ["features"], 2e-7, False).holds
    (False, True)
    """

    compared: int  # values
    changed: list[str]  # what is not bit for bit what it was
    difference: float  # the largest, as a share of the largest value; infinite where only equality is known to fail
    same_machine: bool

    @property
    def holds(self) -> bool:
        return not self.changed or (not self.same_machine and self.difference <= TOLERANCE)


@dataclass(frozen=True, eq=False)
class Promise:
    """The answers of one finished task, kept as they are; of what is the same for all images (class means, a
    covariance), which is large and read from the file rather than computed, a sha256."""

    images: Tensor
    answers: dict[str, Tensor]
    constants: dict[str, str]
    machine: dict[str, Any]

    @classmethod
    @torch.no_grad()
    def record(cls, method: Method, images: Tensor, task: int) -> "Promise | None":
        """What a method promises for some of these images, spread evenly; None where it promises nothing."""
        rows = torch.linspace(0, len(images) - 1, min(PROBES, len(images))).round().long()
        promised = method.promised(images[rows], task)
        if not promised:
            return None
        answers = {name: _plain(value) for name, value in promised.items() if name not in method.constants}
        hashes = {name: _sha256(value) for name, value in promised.items() if name in method.constants}
        return cls(images[rows].cpu(), answers, hashes, machine(method.device))

    @torch.no_grad()
    def check(self, method: Method, task: int) -> Check:
        """Ask the task again, on as many threads as it answered with."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.machine["threads"])
        try:
            promised, here = method.promised(self.images, task), machine(method.device)
        finally:
            torch.set_num_threads(before)
        now = {name: _plain(value) for name, value in promised.items()}
        differences = {name: _difference(value, now.get(name)) for name, value in self.answers.items()}
        changed = [name for name, value in self.answers.items() if not _equal(value, now.get(name))]
        for name, written in self.constants.items():
            if name not in now or _sha256(now[name]) != written:
                changed.append(name)
                differences[name] = float("inf")
        compared = sum(value.numel() for value in now.values())
        return Check(compared, changed, max(differences.values(), default=0.0), here == self.machine)

    def tensors(self) -> dict[str, Tensor]:
        return {"images": self.images, **{f"answers.{name}": value for name, value in self.answers.items()}}

    def describe(self) -> dict[str, Any]:
        return {"constants": self.constants, "machine": self.machine}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], description: dict[str, Any]) -> "Promise":
        answers = {name.removeprefix("answers."): value for name, value in tensors.items() if name != "images"}
        return cls(tensors["images"], answers, description["constants"], description["machine"])


def machine(device: torch.device) -> dict[str, Any]:
    """What rounding depends on."""
    return {
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
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


def _equal(before: Tensor, now: Tensor | None) -> bool:
    return now is not None and torch.equal(before, now)


def _difference(before: Tensor, now: Tensor | None) -> float:
    if now is None or now.shape != before.shape or not now.isfinite().all():
        return float("inf")
    size = before.double().abs().max().clamp_min(torch.finfo(torch.double).tiny)
    return float((now.double() - before.double()).abs().max() / size)
