"""A grid of runs in a terminal: a line that stays for every finished run, and bars that move for the others."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from oarlock.bench.outlook import Left
from oarlock.bench.outlook import Progress as RunProgress
from oarlock.bench.plan import PlannedRun
from oarlock.report.wording import duration


class GridDisplay:
    """Runs done of all, each run at work with its task, and the time left; without a terminal, no bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[what]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
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
        self.console.print(text, markup=False, highlight=False)
