"""Displays that pass news on to another one, and log them as they come."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch.optim import Optimizer

from oarlock.trackers import find_trackers
from oarlock.trackers.logbook import Logbook
from oarlock.training import Loss, Phase, Position

if TYPE_CHECKING:
    from oarlock.experiments.evaluation import Record
    from oarlock.modelfile.learn import Outcome

WritePage = Callable[[Path], Path]  # of a finished run


class Tracking(ABC):
    """Log every epoch's last loss, as a run's events do; left before its book was closed, it was stopped."""

    def __init__(self, display: Any, names: Sequence[str]) -> None:
        find_trackers(names)  # before anything begins
        self.display, self.names = display, names
        self.book: Logbook | None = None

    @abstractmethod
    def open(self, finished: int) -> Logbook:
        """Return the book, when so many tasks are finished and the next one begins."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.book is not None:
            self.book.close(finished=False)

    def on_start(self, tasks: int, finished: int) -> None:
        self.book = self.open(finished)
        self.display.on_start(tasks, finished)

    def on_phase(self, task: int, phase: Phase) -> None:
        self.phase = phase.name
        self.display.on_phase(task, phase)

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self.last_loss = loss.value
        self.display.on_step(epoch, fraction, loss)

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        if optimiser is not None and self.names:
            assert self.book is not None
            self.book.epoch(position.task, self.phase, position.epoch, self.last_loss.item())
        self.display.on_checkpoint(position, optimiser)


class RunTracking(Tracking):
    """Log a run in its directory, or runs of several methods in one below it each."""

    def __init__(self, display: Any, names: Sequence[str], out: Path) -> None:
        super().__init__(display, names)
        self.out = self.directory = out

    def open(self, finished: int) -> Logbook:
        return Logbook.of_run(self.names, self.directory)

    def on_method(self, name: str, number: int, count: int) -> None:
        self.book, self.directory = None, self.out / name
        self.display.on_method(name, number, count)

    def on_evaluated(self, record: "Record") -> None:
        assert self.book is not None
        self.book.tasks(record.accuracy, record.til_accuracy, record.free_capacity)
        self.display.on_evaluated(record)

    def reporting(self, write: WritePage) -> WritePage:
        """Return what writes a finished run's page, and ends its book with it."""
        return logged(write, self.names, self._take_book)

    def _take_book(self) -> Logbook | None:
        book, self.book = self.book, None
        return book


def logged(write: WritePage, names: Sequence[str], begun: Callable[[], Logbook | None] = lambda: None) -> WritePage:
    """Return what writes a finished run's page and concludes the book that was begun; where none was, it logs the run
    from its files."""
    find_trackers(names)

    def report(directory: Path) -> Path:
        page = write(directory)
        (begun() or Logbook.of_run(names, directory)).conclude(directory, page)
        return page

    return report if names else write


class LessonTracking(Tracking):
    """Log what a model file learns, a book for each task."""

    def __init__(self, display: Any, names: Sequence[str], model: Path) -> None:
        super().__init__(display, names)
        self.model = model

    def open(self, finished: int) -> Logbook:
        task = finished + 1
        folder = self.model.with_name(f"{self.model.name}.tracked") / f"task-{task}"
        settings = {"model": self.model.name, "task": task}
        return Logbook.open(self.names, f"{self.model.name} task {task}", folder, settings)

    def conclude(self, outcome: "Outcome") -> None:
        """Log what learning came to; nothing where nothing was new."""
        if self.book is None:
            return
        values: dict[str, float | None] = {
            "classes": outcome.classes_in_all,
            "images": sum(outcome.classes.values()),
            "bytes": outcome.bytes,
            "free_capacity": _mean(outcome.free_capacity),
        }
        self.book.log(values, "tasks", outcome.tasks)
        self.book.close(finished=True)


def _mean(values: Sequence[float] | None) -> float | None:
    return sum(values) / len(values) if values else None
