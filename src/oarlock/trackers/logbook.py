"""What is logged about a run, and under which names, whoever keeps it."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oarlock.errors import OarlockError
from oarlock.experiments import metrics
from oarlock.experiments.config import full_config, saved_config
from oarlock.experiments.result import FILE, RunResult
from oarlock.schema import from_json, integer, list_of, number, one_of, record, text
from oarlock.trackers import Tracker, find_trackers

EPOCH = record(
    {"event": one_of("epoch"), "position": list_of(integer(0), 3, 3), "phase": text(100), "loss": number()}
)


class Logbook:
    """Tell trackers everything once. One that fails when a run is under way is left alone; the run goes on.

    >>> from oarlock.trackers import Tracker
    >>> class Printing(Tracker):
    ...     def __init__(self, *_): ...
    ...     def log(self, values, axis, step): print(dict(values), axis, step)
    ...     def attach(self, file): ...
    ...     def close(self, finished): ...
    >>> book = Logbook([Printing()])
    >>> book.epoch(task=0, phase="features", epoch=1, loss=0.5)
    {'loss/task-1/features': 0.5} epoch 1
    >>> book.epoch(task=0, phase="features", epoch=1, loss=0.5)
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)
        self.told: set[tuple[str, int]] = set()

    @classmethod
    def open(cls, names: Sequence[str], title: str, folder: Path, settings: Mapping[str, Any]) -> "Logbook":
        book = cls([])
        for kind in find_trackers(names):
            try:
                book.trackers.append(kind(title, folder, settings))
            except Exception as problem:  # whatever a tracker does not like: no account, no server, no room
                book.close(finished=False)
                raise OarlockError(f"--track {kind.name}: {_reason(problem)}") from problem
        return book

    @classmethod
    def of_run(cls, names: Sequence[str], directory: Path) -> "Logbook":
        """Open the book of a run, and tell what its events tell already."""
        config = saved_config(directory)
        stream = directory.name if config.protocol is None else f"{config.protocol} order {config.order}"
        book = cls.open(names, f"{stream} {config.method}", directory, full_config(config))
        for event in _epochs(directory):
            task, _, epoch = event["position"]
            book.epoch(task, event["phase"], epoch, event["loss"])
        return book

    def epoch(self, task: int, phase: str, epoch: int, loss: float) -> None:
        self.log({f"loss/task-{task + 1}/{phase}": loss}, "epoch", epoch)

    def tasks(self, accuracy: metrics.Matrix, til_accuracy: metrics.Matrix, free: Sequence[Any] | None) -> None:
        """Log the rows of all tasks so far, and what follows from them; `free` is the capacity left after each."""
        for count in range(1, len(accuracy) + 1):
            values = _row("accuracy", accuracy[count - 1]) | _row("til_accuracy", til_accuracy[count - 1])
            values |= {name: getattr(metrics, name)(accuracy[:count]) for name in ("aca", "aia", "forgetting")}
            left = None if free is None else free[count - 1]
            values["free_capacity"] = None if left is None else float(np.mean(left))
            self.log(values, "tasks", count)

    def conclude(self, directory: Path, page: Path) -> None:
        """Log what a finished run comes to, with its files, and close the book."""
        result = RunResult.read(directory)
        self.tasks(result.accuracy, result.til_accuracy, result.free_capacity)
        names = ("task_id_accuracy", "ood_auroc", "ood_fpr95", "entries")
        values = {name: getattr(result, name) for name in names}
        values |= {f"seconds/{name}": value for name, value in result.seconds.items()}
        self.log(values, "tasks", len(result.tasks))
        for file in (directory / FILE, page):
            self._each(lambda tracker, file=file: tracker.attach(file))  # type: ignore[misc]
        self.close(finished=True)

    def log(self, values: Mapping[str, float | None], axis: str, step: int) -> None:
        """Log numbers by name, those that nobody was told yet."""
        known = {name: float(value) for name, value in values.items() if value is not None}
        new = {name: value for name, value in known.items() if (name, step) not in self.told}
        self.told.update((name, step) for name in new)
        if new:
            self._each(lambda tracker: tracker.log(new, axis, step))

    def close(self, finished: bool) -> None:
        self._each(lambda tracker: tracker.close(finished))
        self.trackers = []

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                tell(tracker)
            except Exception as problem:
                self.trackers.remove(tracker)
                warnings.warn(f"{tracker.name} hears no more of this run: {_reason(problem)}", stacklevel=2)


def _row(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {f"{name}/task-{task}": value for task, value in enumerate(values, 1)}


def _reason(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]


def _epochs(directory: Path) -> Iterable[dict[str, Any]]:
    """The epochs among a run's events; of one that was done again after a kill the last."""
    try:
        lines = (directory / "events.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            event = EPOCH(from_json(line), "")
        except OarlockError:
            continue  # another event, or a line half written at a kill
        found[json.dumps(event["position"])] = event
    return found.values()
