"""Does a grid of runs, several at a time, so that it can be stopped in any way and called again."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Protocol

from oarlock.errors import OarlockError
from oarlock.experiments import series as several
from oarlock.experiments.config import check_same
from oarlock.experiments.eta import AtWork, Eta, Left, Progress
from oarlock.experiments.plan import FILE, Plan, PlannedRun, Request
from oarlock.experiments.processes import ERROR, Pool, RunUnderWay
from oarlock.experiments.protocols import find
from oarlock.experiments.result import RunResult
from oarlock.experiments.run import check_unused
from oarlock.experiments.series import WriteReport, rename_runs, write_missing
from oarlock.files import make_directory
from oarlock.locks import alone_in

LOOK = 0.2  # seconds between two looks at the processes
TELL = 1.0  # seconds between two looks at how far they are


class Broken(NamedTuple):
    run: PlannedRun
    error: str
    file: Path


class Display(Protocol):
    """Show how the grid goes."""

    def on_start(self, runs: int, finished: int) -> None: ...

    def on_run(self, run: PlannedRun, tasks: int) -> None: ...

    def on_progress(self, run: PlannedRun, progress: Progress) -> None: ...

    def on_finished(self, run: PlannedRun, aca: float, seconds: float) -> None: ...

    def on_broken(self, run: PlannedRun, error: str) -> None: ...

    def on_left(self, left: Left | None) -> None: ...


def work(
    requests: Sequence[Request], out: Path, *, pool: Pool, display: Display, report: WriteReport
) -> list[Broken]:
    """Do the runs that are asked for and those planned in `out` before, or what is left of them, with a report each.

    Finished runs are kept, stopped ones go on, and broken ones, which are returned, are tried again by the next call.
    """
    if not (out / FILE).exists():
        check_unused(out)
    for stream in out.glob("*/order-*/"):
        rename_runs(stream)
    _check(_extended(requests, out), out)
    make_directory(out)
    with alone_in(out):
        plan = _extended(requests, out)  # another grid may have ended in the meantime
        plan.save(out)
        with _terminated_like_interrupted():
            return _Grid(plan, out, pool, display, report).finish()


def _extended(requests: Sequence[Request], out: Path) -> Plan:
    plan = Plan.load(out)
    for request in requests:
        plan = plan.extended(request)
    if not plan.columns:
        raise OarlockError(f"there is no grid of runs in {out} to go on with: say --protocol and --methods")
    return plan


def _check(plan: Plan, out: Path) -> None:
    """Find a mistake in any of the configurations before the first run."""
    first: dict[str, dict[str, PlannedRun]] = {}
    for run in plan.runs():
        if (out / run.directory / "config.json").exists():
            check_same(run.config(), out / run.directory)
        if not finished(out / run.directory):
            first.setdefault(run.settings.column, {}).setdefault(run.method, run)
    for methods in first.values():
        several.check([run.config() for run in methods.values()])


def finished(directory: Path) -> bool:
    return (directory / "result.json").exists() and not (directory / ERROR).exists()


class _Grid:
    def __init__(self, plan: Plan, out: Path, pool: Pool, display: Display, report: WriteReport) -> None:
        self.out, self.pool, self.display, self.report = out, pool, display, report
        self.eta = Eta(pool.jobs)
        self.waiting: list[PlannedRun] = []
        self.at_work: dict[PlannedRun, tuple[RunUnderWay, AtWork]] = {}
        self.broken: list[Broken] = []
        runs = list(plan.runs())
        for run in runs:
            if finished(out / run.directory):
                self._measure(run)
            else:
                self.waiting.append(run)
        display.on_start(len(runs), len(runs) - len(self.waiting))

    def finish(self) -> list[Broken]:
        told = 0.0
        try:
            while self.waiting or self.at_work:
                self._start()
                if time.monotonic() - told >= TELL:
                    self._tell()
                    told = time.monotonic()
                time.sleep(LOOK)
                self._collect()
        finally:
            begun = [run for run, _ in self.at_work.values()]
            for one in begun:
                one.ask_to_stop()
            for one in begun:
                one.wait_for_stop()
        return self.broken

    def _start(self) -> None:
        while self.waiting and len(self.at_work) < self.pool.jobs:
            run = self.waiting.pop(0)
            directory, tasks = self.out / run.directory, find(run.settings.protocol).tasks
            self.display.on_run(run, tasks)
            before = Progress.of(directory).finished
            self.at_work[run] = self.pool.start(run.config(), directory), AtWork(run, tasks, before)

    def _collect(self) -> None:
        for run, (begun, _) in list(self.at_work.items()):
            if not begun.ended():
                continue
            del self.at_work[run]
            error = begun.conclude()
            if error is None:
                self.display.on_finished(run, *self._measure(run))
            else:
                self.broken.append(Broken(run, error, self.out / run.directory / ERROR))
                self.display.on_broken(run, error)

    def _measure(self, run: PlannedRun) -> tuple[float, float]:
        directory = self.out / run.directory
        write_missing(self.report, directory)
        result = RunResult.read(directory)
        seconds = sum(result.seconds.values())
        self.eta.learn(run, seconds)
        return result.aca, seconds

    def _tell(self) -> None:
        for run, (_, state) in self.at_work.items():
            progress = Progress.of(self.out / run.directory)
            state.update(progress.finished)
            self.display.on_progress(run, progress)
        self.display.on_left(self.eta.left(self.waiting, [state for _, state in self.at_work.values()]))


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A SIGTERM ends the grid as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
