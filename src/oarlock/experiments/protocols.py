"""Named streams with the settings of their runs: the paper's five, and small ones of the same shape for CPUs."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from oarlock.data.datasets import DataSet, datasets
from oarlock.data.sources import Source
from oarlock.errors import OarlockError
from oarlock.methods import config_class, methods
from oarlock.nets.trunks import BUNDLED
from oarlock.nets.trunks.cnn import NAME as LITE

HALF = "half"
DEIT = "deit_small_patch16_224"
_DATA = Path(__file__).parent


class PerClass(NamedTuple):
    """Count the images of a class."""

    train: int
    test: int

    def __str__(self) -> str:
        return f"{self.train:,} train and {self.test:,} test images"


@dataclass(frozen=True)
class Protocol:
    """Describe a data set cut into equal tasks, and how methods learn them.

    >>> protocol = find("c10-5t")
    >>> protocol.tasks, protocol.classes_per_task, protocol.memory
    (5, 2, 200)
    >>> protocol.options("row")["lr"]
    0.005
    """

    data: DataSet
    tasks: int
    classes_per_task: int
    memory: int
    trunk: str
    images: PerClass | None = None  # at most so many; None: all, and none may be missing
    chosen: Sequence[str] | None = None  # of the data set's classes; None: all
    common: Mapping[str, Any] = field(default_factory=dict)  # options of every method that has them
    settings: str = ""  # which of a method's own settings are taken

    @property
    def classes(self) -> int:
        return self.tasks * self.classes_per_task

    def options(self, method: str) -> dict[str, Any]:
        """Return what a method's options are here, where they are not its defaults."""
        cls = methods.find(method)
        known = {option.name for option in fields(config_class(cls))}
        return {k: v for k, v in self.common.items() if k in known} | dict(cls.settings.get(self.settings, {}))

    def source(self, where: str, partial: bool = False) -> Source:
        """Return its images: from the data set of that name, downloaded, or from a path. Classes must all be there;
        with `partial`, images may be missing."""
        source = self.data.open(None if where == self.data.name else Path(where), self.chosen)
        whole = self.images or PerClass(self.data.train, self.data.test)
        counts = [Counter(part.labels.tolist()) for part in (source.train, source.test)]
        found = [PerClass(*(count[name] for count in counts)) for name in source.classes]
        fewest, most = (PerClass(*map(pick, zip(*found, strict=True))) for pick in (min, max))
        short = any(have < want for have, want in zip(fewest, whole, strict=True))
        if 0 in fewest or (short and not partial):
            raise OarlockError(
                f"{where}: has {_between(fewest, most)} of a class, but {'at least ' if self.images else ''}{whole} "
                f"are expected{'' if 0 in fewest else '; accept fewer with --partial'}"
            )
        if self.images is None and any(have > want for have, want in zip(most, whole, strict=True)):
            raise OarlockError(f"{where}: has {_between(fewest, most)} of a class, but {self.data.title} has {whole}")
        train, test = source.train.at_most(whole.train), source.test.at_most(whole.test)
        return replace(source, train=train, test=test, partial=short)

    def check(self, increment: object, order: object) -> None:
        """Refuse tasks that are not the protocol's."""
        if increment != self.classes_per_task:
            raise OarlockError(
                f"increment {increment}: the protocol has {self.classes_per_task} classes in every task; leave it out"
            )
        if isinstance(order, Sequence) and len(order) != self.classes:
            raise OarlockError(f"order: names {len(order)} classes, but the protocol has {self.classes}; name all")


PAPER_SETTINGS = "paper"


def has_paper_settings(name: str | None) -> bool:
    """Return whether methods have the paper's settings in a protocol, if it is one that is known."""
    return name in PROTOCOLS and PROTOCOLS[name].settings == PAPER_SETTINGS


def find(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise OarlockError(f"there is no protocol {name!r}; known protocols: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def run_settings(
    name: str,
    *,
    data: str | Path | None = None,
    partial: bool = False,
    memory: int | str | None = None,
    trunk: str | None = None,
) -> dict[str, Any]:
    """Return what a `RunConfig` takes from a protocol. `memory` may be "half".

    >>> settings = run_settings("c100-10t-mini", memory="half")
    >>> settings["source"], settings["increment"], settings["memory"], settings["trunk"]
    ('cifar100', 10, 1000, 'vit_pico')
    """
    protocol = find(name)
    if memory == HALF:
        memory = protocol.memory // 2
    return {
        "protocol": name,
        "partial": partial,
        "source": protocol.data.name if data is None else str(Path(data).resolve()),
        "increment": protocol.classes_per_task,
        "memory": protocol.memory if memory is None else memory,
        "trunk": trunk or protocol.trunk,
        "calibration": 0.0,  # no thresholds are asked for, so all images are trained on
    }


def _between(fewest: PerClass, most: PerClass) -> str:
    return str(fewest) if fewest == most else f"from {fewest} to {most}"


def _paper(data: str, tasks: int, per_task: int, *, memory: int, width: int, lr: float, epochs: int) -> Protocol:
    """As the paper's text and its released code have it; where they differ, docs/protocols.md says which is taken."""
    common = {
        "width": width,
        "adapt_last": None,
        "grow_below": 0.0,
        "s_max": 500.0,
        "epochs": epochs,
        "wp_epochs": 5,
        "ood_epochs": 10,
        "batch": 64,
        "head_batch": 32,
        "lr": lr,
        "gate_lr": lr,
        "head_lr": lr,
        "balanced_lr": lr / 10,  # as in our defaults
    }
    return Protocol(datasets.find(data), tasks, per_task, memory, DEIT, common=common, settings=PAPER_SETTINGS)


def _small(
    like: str,
    images: PerClass,
    settings: str,
    *,
    trunk: str = BUNDLED,
    per_task: int | None = None,
    chosen: Sequence[str] | None = None,
) -> Protocol:
    """A small one: methods' defaults, but for what a search on validation images has found."""
    big = PAPER[like]
    per_task = per_task or big.classes_per_task
    return Protocol(big.data, big.tasks, per_task, big.memory, trunk, images, chosen, settings=settings)


PAPER = {
    "c10-5t": _paper("cifar10", 5, 2, memory=200, width=64, lr=0.005, epochs=20),
    "c100-10t": _paper("cifar100", 10, 10, memory=2000, width=128, lr=0.001, epochs=40),
    "c100-20t": _paper("cifar100", 20, 5, memory=2000, width=128, lr=0.005, epochs=40),
    "t-5t": _paper("tiny-imagenet", 5, 40, memory=2000, width=128, lr=0.005, epochs=15),
    "t-10t": _paper("tiny-imagenet", 10, 20, memory=2000, width=128, lr=0.005, epochs=10),
}
# Of the 93 Tiny-ImageNet classes that vit_pico's pre-training never saw: the first 90 by WordNet id among those whose
# names share no noun with one that it saw (a slug's does, with a sea slug's).
UNSEEN = tuple(json.loads((_DATA / "unseen.json").read_text(encoding="utf-8")))
_PICO, _LITE = "c10-5t-mini", "c10-5t-lite"  # settings go by the protocol that was searched on
PROTOCOLS = PAPER | {
    "c10-5t-mini": _small("c10-5t", PerClass(500, 200), _PICO),
    "c100-10t-mini": _small("c100-10t", PerClass(200, 50), _PICO),
    "c100-20t-mini": _small("c100-20t", PerClass(200, 50), _PICO),
    "t-5t-mini": _small("t-5t", PerClass(80, 20), _PICO, per_task=18, chosen=UNSEEN),
    "t-10t-mini": _small("t-10t", PerClass(80, 20), _PICO, per_task=9, chosen=UNSEEN),
    "c10-5t-lite": _small("c10-5t", PerClass(500, 200), _LITE, trunk=LITE),
}
