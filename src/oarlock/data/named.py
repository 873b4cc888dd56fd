"""The public data sets that protocols are made of: what each has when it is whole, and how it is read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from oarlock.data.cifar import open_cifar
from oarlock.data.sources import Source, open_source
from oarlock.data.tiny_imagenet import open_tiny_imagenet
from oarlock.errors import OarlockError

_CONTENT = json.loads((Path(__file__).parent / "datasets.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    >>> tiny = DATA_SETS["tiny-imagenet"]
    >>> len(tiny.classes), tiny.train, tiny.test
    (200, 500, 50)
    """

    name: str
    title: str
    train: int  # images of a class
    test: int
    classes: tuple[str, ...]  # in the order that class orders number them in: names, or WordNet ids
    read: Callable[[Path | None, Sequence[str]], Source]  # from its own layout; without a path, downloaded

    def open(self, path: Path | None = None, wanted: Sequence[str] | None = None) -> Source:
        """The data set, or those of its classes that are wanted: downloaded, or from a path with its own layout or an
        .npz archive whose `classes` are named as here."""
        wanted = self.classes if wanted is None else wanted
        where = self.title if path is None else str(path)
        if path is not None and path.suffix.lower() == ".npz":
            source = open_source(path)
            if strangers := [name for name in source.classes if _short(name) not in self.classes]:
                raise OarlockError(
                    f"{where}: {strangers[0]!r} is not a class of {self.title}; "
                    f"its classes are {', '.join(self.classes[:3])}, …"
                )
            if not self.named:
                source = replace(source, wnids={name: name for name in source.classes})
        else:
            source = self.read(path, wanted)
        here = {_short(source.wnids.get(name, name)): name for name in source.classes}
        if missing := [key for key in wanted if key not in here]:
            raise OarlockError(
                f"{where}: has {len(wanted) - len(missing)} of the {len(wanted)} classes of {self.title} that are "
                f"needed; {missing[0]} is missing"
            )
        classes = tuple(here[key] for key in wanted)
        train, test = source.train, source.test
        if len(classes) < len(source.classes):
            train, test = train.of(classes), test.of(classes)
        return replace(source, name=self.name, classes=classes, train=train, test=test)

    @property
    def named(self) -> bool:
        """Whether classes are listed by name, and not by WordNet id."""
        return not self.classes[0][1:].isdecimal()


def _short(name: str) -> str:
    """CIFAR-100's trees go by two names."""
    return name.removesuffix("_tree")


def _cifar(name: str, path: Path | None, wanted: Sequence[str]) -> Source:
    return open_cifar(name, path, _CONTENT[name]["classes"])


DATA_SETS = {
    name: DataSet(
        name,
        content["title"],
        content["train"],
        content["test"],
        tuple(content["classes"]),
        open_tiny_imagenet if name == "tiny-imagenet" else partial(_cifar, name),
    )
    for name, content in _CONTENT.items()
}
