"""Tasks and streams: which classes are learned together, and in which order."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from oarlock.data.benchmarks import in_parts, of_experience, of_task_set
from oarlock.data.sources import Labelled, Pictures, Source, hash_ranking
from oarlock.errors import OarlockError
from oarlock.markup import card, table

_ORDERS = Path(__file__).parent / "orders.json"
SHUFFLES = 5


@dataclass(frozen=True, eq=False)
class Task:
    """Hold classes that are learned together, with their images.

    >>> from oarlock.data.sources import open_source
    >>> task = Stream.from_source(open_source("sample"), increment=2)[0]
    >>> task.classes, len(task.train), len(task.test)
    (('airplane', 'automobile'), 400, 100)
    """

    classes: tuple[str, ...]
    train: Labelled
    test: Labelled


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """Hold a sequence of tasks: index it, iterate it; a slice of it is a stream.

    >>> from oarlock.data.sources import open_source
    >>> stream = Stream.from_source(open_source("sample"), increment=[4, 2, 2])
    >>> [len(task.classes) for task in stream]
    [4, 2, 2]
    >>> stream[1:].classes
    ('deer', 'dog', 'frog', 'horse')
    """

    name: str
    order: int | tuple[str, ...]
    tasks: tuple[Task, ...]
    unknown: Pictures | None = None
    wnids: Mapping[str, str] = field(default_factory=dict)  # as the source has them
    partial: bool = False  # as the source is

    @classmethod
    def from_source(
        cls,
        source: Source,
        increment: int | Sequence[int],
        order: int | Sequence[str] = 0,
        validation: float = 0.0,
    ) -> "Stream":
        """Return the classes of a source, dealt into tasks.

        increment: classes per task (the last task may be smaller), or a list with the size of each task;
        classes that the list does not reach are left out.
        order: 0 as the source lists its classes, 1 to 5 a shuffle that is the same everywhere, or the class
        names themselves; classes that are not named are left out.
        validation: a share of each class's train images that replaces the test images, to choose
        hyper-parameters by. Neither test images nor unknown inputs can then be reached from the stream.
        """
        classes = _ordered(source.classes, order)
        sizes = _task_sizes(increment, len(classes))
        if not 0 <= validation < 1:
            raise OarlockError(f"validation {validation}: choose a share from 0 (none) to below 1")
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        tasks = tuple(
            _task(source, classes[start : start + size], validation)
            for start, size in zip(starts, sizes, strict=True)
        )
        return cls(
            name=source.name,
            order=tuple(order) if isinstance(order, Sequence) else order,
            tasks=tasks,
            unknown=None if validation else source.unknown,
            wnids=source.wnids,
            partial=source.partial,
        )

    @classmethod
    def from_avalanche(cls, benchmark: Any, name: str = "avalanche") -> "Stream":
        """Return an Avalanche benchmark's experiences as tasks; a class is called by its number.

        Every experience of `test_stream` is the test of that of `train_stream` beside it.
        """
        parts = in_parts(benchmark.train_stream, benchmark.test_stream)
        return cls.of_parts(name, [(of_experience(train), of_experience(test)) for train, test in parts])

    @classmethod
    def from_continuum(cls, train: Any, test: Any, name: str = "continuum") -> "Stream":
        """Return the task sets of two Continuum scenarios as tasks, one to train and one to test on; a class is
        called by its number."""
        return cls.of_parts(name, [(of_task_set(a), of_task_set(b)) for a, b in in_parts(train, test)])

    @classmethod
    def of_parts(cls, name: str, parts: Sequence[tuple[Labelled, Labelled]]) -> "Stream":
        """Return a stream of tasks that are cut already: what each is trained and tested on."""
        seen: set[str] = set()
        for index, (train, test) in enumerate(parts, 1):
            own = set(train.labels.tolist())
            if own & seen:
                raise OarlockError(
                    f"{name}: class {min(own & seen)!r} is in task {index} and in one before; "
                    "a class belongs to one task"
                )
            if own != set(test.labels.tolist()):
                raise OarlockError(f"{name}: task {index} is tested on other classes than those it is trained on")
            seen |= own
        return cls(name, 0, tuple(Task(_in_order(train.labels), train, test) for train, test in parts))

    @property
    def classes(self) -> tuple[str, ...]:
        """Return all classes, in the order they are learned."""
        return tuple(name for task in self.tasks for name in task.classes)

    def images_per_class(self) -> dict[str, list[int]]:
        """Return the fewest and the most images of a class, to train and to test on."""
        parts = {"train": [task.train for task in self], "test": [task.test for task in self]}
        counts = {part: Counter(n for images in all_ for n in images.labels.tolist()) for part, all_ in parts.items()}
        return {part: [min(count.values()), max(count.values())] for part, count in counts.items()}

    def _repr_html_(self) -> str:
        """Return a card for notebooks."""
        facts = {"order": self.order, "tasks": len(self), "classes": len(self.classes)}
        rows = ((k, ", ".join(task.classes), len(task.train), len(task.test)) for k, task in enumerate(self, 1))
        return card(f"Stream of {self.name}", facts, table(rows, ("task", "classes", "train", "test")))

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> "Stream": ...
    def __getitem__(self, index: int | slice) -> "Task | Stream":
        if isinstance(index, slice):
            return replace(self, tasks=self.tasks[index])
        return self.tasks[index]


def shuffled(count: int, order: int) -> list[int]:
    """Return the class indices 0 … count-1 in shuffle number `order`; orders.json holds those of the usual counts.

    >>> shuffled(10, order=1)
    [6, 2, 9, 0, 3, 1, 4, 8, 7, 5]
    """
    return hash_ranking(f"order {order}, class {index} of {count}" for index in range(count))


def _in_order(labels: np.ndarray) -> tuple[str, ...]:
    """Numbers by their value: 2 comes before 10."""
    return tuple(sorted(np.unique(labels).tolist(), key=lambda name: (len(name), name)))


def _ordered(classes: tuple[str, ...], order: int | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(order, Sequence):
        if isinstance(order, bool) or order not in range(SHUFFLES + 1):
            raise OarlockError(f"order {order!r}: choose 0 to {SHUFFLES}, or pass a list of class names")
        if order == 0:
            return classes
        shuffles = json.loads(_ORDERS.read_text(encoding="utf-8")).get(str(len(classes)))
        indices = shuffles[order - 1] if shuffles else shuffled(len(classes), order)
        return tuple(classes[index] for index in indices)
    strangers = [name for name in order if name not in classes]
    if strangers:
        raise OarlockError(f"order: {strangers[0]!r} is not a class here; the classes are {', '.join(classes)}")
    if len(set(order)) != len(order):
        twice = next(name for name in order if list(order).count(name) > 1)
        raise OarlockError(f"order: {twice!r} is named twice; name each class once")
    return tuple(order)


def _task_sizes(increment: int | Sequence[int], classes: int) -> list[int]:
    sizes = list(increment) if isinstance(increment, Sequence) else [increment]
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise OarlockError(
            f"increment {increment!r}: give a number of classes per task, or a list like [4, 2, 2]; "
            "every task needs at least one class"
        )
    if sum(sizes) > classes:
        raise OarlockError(f"increment {increment!r}: asks for {sum(sizes)} classes, but there are {classes}")
    if not isinstance(increment, Sequence):
        return [min(increment, classes - start) for start in range(0, classes, increment)]
    return sizes


def _task(source: Source, classes: tuple[str, ...], validation: float) -> Task:
    train, test = source.train.of(classes), source.test.of(classes)
    if validation:
        train, test = train.split(validation)
    for part, images in (("train", train), ("validation" if validation else "test", test)):
        for name in classes:
            if name not in images.labels:
                raise OarlockError(
                    f"{source.name}: class {name!r} has no {part} image; add some, or leave the class out"
                )
    return Task(classes, train, test)
