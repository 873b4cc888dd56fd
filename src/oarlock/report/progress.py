"""How work looks in a terminal or a notebook while it goes on: bars that move, and lines that stay."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from torch.optim import Optimizer

from oarlock.experiments.eta import Left
from oarlock.experiments.eta import Progress as RunProgress
from oarlock.experiments.evaluation import Record
from oarlock.experiments.plan import PlannedRun
from oarlock.printing import console as standard
from oarlock.printing import say
from oarlock.report.wording import duration
from oarlock.training import Loss, Phase, Position


def shows_bars(console: Console) -> bool:
    """Return whether what is printed there can be printed over."""
    return console.is_terminal or console.is_jupyter


class ProgressBar:
    """Show a bar with task, phase, epoch, loss, accuracy and time left, in a terminal or a notebook; elsewhere none.

    >>> import numpy
    >>> from oarlock import Learner
    >>> with ProgressBar() as bar:
    ...     learner = Learner("slda").learn(numpy.zeros((4, 32, 32, 3), "uint8"), ["dark"] * 4, callback=bar)
    """

    def __init__(self, console: Console = standard) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.fields[where]}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[what]}", markup=False),
            console=console,
            transient=True,
            disable=not shows_bars(console),
        )
        self.row = self.bar.add_task("", where="starting", what="", total=1)
        self.tasks = self.finished = self.first = 0  # how many tasks there will be is known of runs only
        self.started = self.task_started = time.perf_counter()

    def __enter__(self) -> "ProgressBar":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def on_method(self, name: str, number: int, count: int) -> None:
        self.bar.update(self.row, where="starting", what="", completed=0)
        say(f"method {number}/{count}: {name}", to=self.console)

    def on_start(self, tasks: int, finished: int) -> None:
        self.tasks, self.finished, self.first = tasks, finished, finished
        self.started = self.task_started = time.perf_counter()

    def on_phase(self, task: int, phase: Phase) -> None:
        self.phase, self.phase_started = phase, time.perf_counter()
        of_all = f"/{self.tasks}" if self.tasks else ""
        where = f"task {task + 1}{of_all} · {phase.name}"
        self.bar.update(self.row, where=where, what="", completed=0, total=max(phase.epochs, 1))

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        if self.bar.disable:
            return  # formatting a loss would wait for the device
        accuracy = "" if loss.accuracy is None else f" · {100 * loss.accuracy:3.0f} % right"
        what = f"epoch {epoch + 1}/{self.phase.epochs} · loss {loss.value.item():.3f}{accuracy}"
        self.bar.update(self.row, completed=epoch + fraction, what=what + self._left(epoch, fraction))

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        pass

    def on_evaluated(self, record: Record) -> None:
        self.finished, self.task_started = len(record.accuracy), time.perf_counter()
        row = record.accuracy[-1]
        each = "  ".join(f"{value:5.1f}" for value in row)
        accuracy = f"accuracy {sum(row) / len(row):5.1f} %"
        say(f"after task {self.finished}/{self.tasks}: {accuracy}   by task: {each}", to=self.console)

    def _left(self, epoch: int, fraction: float) -> str:
        """At least the rest of this phase; and as long as a task took so far for every task to come."""
        now, share = time.perf_counter(), (epoch + fraction) / self.phase.epochs
        if epoch == 0:
            return ""  # the first batches tell little
        phase = (now - self.phase_started) / share
        done = self.finished - self.first
        task = (self.task_started - self.started) / done if done else phase
        rest_of_task = max(phase * (1 - share), task - (now - self.task_started) if done else 0)
        left = rest_of_task + task * max(0, self.tasks - self.finished - 1)
        return f" · {int(left // 60)}:{int(left % 60):02d} left"


class GridDisplay:
    """Show runs done of all, each run at work with its task, and the time left; without a terminal, no bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[what]}", markup=False),
            console=console,
            transient=True,
            disable=not shows_bars(console),
        )
        self.rows: dict[PlannedRun, TaskID] = {}
        self.left = ""

    def __enter__(self) -> "GridDisplay":
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def on_start(self, runs: int, finished: int) -> None:
        self.runs, self.finished = runs, finished
        self.whole = self.bars.add_task("", total=runs, what="")
        self._show()
        kept = f", {finished} of them finished before" if finished else ""
        self._say(f"{runs} runs{kept}")

    def on_run(self, run: PlannedRun, tasks: int) -> None:
        self.rows[run] = self.bars.add_task(f"  {run}", total=tasks, what="starting")

    def on_progress(self, run: PlannedRun, progress: RunProgress) -> None:
        total = self.bars.tasks[self.bars.task_ids.index(self.rows[run])].total or 0
        task = min(progress.finished + 1, int(total))
        what = f"task {task}/{total:.0f} · {progress.phase}"
        self.bars.update(self.rows[run], completed=progress.finished, what=what)

    def on_finished(self, run: PlannedRun, aca: float, seconds: float) -> None:
        self._end(run)
        self.finished += 1
        self._show()
        left = f" · {self.left}" if self.left and self.bars.disable and self.finished < self.runs else ""
        self._say(f"{self.finished}/{self.runs}  {run}: ACA {aca:.1f} % in {duration(seconds)}{left}")

    def on_broken(self, run: PlannedRun, error: str) -> None:
        self._end(run)
        self._say(f"broken  {run}: {error}")

    def on_left(self, left: Left | None) -> None:
        self.left = "" if left is None else str(left)
        self._show()

    def _show(self) -> None:
        done = f"{self.finished}/{self.runs} runs"
        self.bars.update(self.whole, description=done, completed=self.finished, what=self.left)

    def _end(self, run: PlannedRun) -> None:
        self.bars.remove_task(self.rows.pop(run))

    def _say(self, text: str) -> None:
        say(text, to=self.console)
