"""How far runs have come, and how long the rest of them will take."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from oarlock.errors import OarlockError
from oarlock.experiments.plan import PlannedRun
from oarlock.schema import from_json, integer, record, text

EVENT = record({"event": text(100)}, {"task": integer(0, 10**6), "phase": text(100)})


class Progress(NamedTuple):
    """Hold how far a run has come, as its events tell it."""

    finished: int  # tasks
    phase: str

    @classmethod
    def of(cls, directory: Path) -> "Progress":
        finished, phase = 0, "starting"
        try:
            lines = (directory / "events.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return cls(finished, phase)
        for line in lines:
            try:
                event = EVENT(from_json(line), "")
            except OarlockError:
                continue  # a line half written, now or at a kill
            if event["event"] == "task":
                finished = event.get("task", finished - 1) + 1
            elif event["event"] == "epoch":
                phase = event.get("phase", phase)
        return cls(finished, phase)


@dataclass
class AtWork:
    """Hold a run in progress, and when it came to where it is."""

    run: PlannedRun
    tasks: int
    first: int  # tasks that an earlier process had finished
    started: float = field(default_factory=time.monotonic)
    finished: int = 0
    came: float = 0.0

    def __post_init__(self) -> None:
        self.finished, self.came = self.first, self.started

    def update(self, finished: int) -> None:
        if finished > self.finished:
            self.finished, self.came = finished, time.monotonic()

    def left(self, like: float | None, others: float | None, now: float) -> float | None:
        """Return the seconds left, by the time that runs of the same method took, else by its own pace, else by other
        methods'."""
        whole = like
        if whole is None and self.finished > self.first:
            whole = (self.came - self.started) / (self.finished - self.first) * self.tasks
        if whole is None:
            whole = others
        if whole is None:
            return None
        return max(0.0, whole * (1 - self.finished / self.tasks) - (now - self.came))


class Left(NamedTuple):
    seconds: float
    at_least: bool  # there are runs about which nothing is known yet

    def __str__(self) -> str:
        """Return the time left in words.

        >>> str(Left(30.2, False)), str(Left(75.0, False)), str(Left(7400.0, True))
        ('about 31 s left', 'about 2 min left', 'more than 2 h 4 min left')
        """
        minutes = math.ceil(self.seconds / 60)
        words = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
        words = words if self.seconds > 60 else f"{max(1, math.ceil(self.seconds))} s"
        return f"{'more than' if self.at_least else 'about'} {words} left"


class Eta:
    """Estimate the time left: a run takes as long as its like, or as the average of its column."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def learn(self, run: PlannedRun, seconds: float) -> None:
        self.seconds.setdefault((run.settings.column, run.method), []).append(seconds)

    def like(self, run: PlannedRun) -> float | None:
        """Return how long the same method took on other orders."""
        known = self.seconds.get((run.settings.column, run.method))
        return fmean(known) if known else None

    def others(self, run: PlannedRun) -> float | None:
        """Return how long runs of the same column took."""
        column = run.settings.column
        known = [value for (name, _), values in self.seconds.items() if name == column for value in values]
        return fmean(known) if known else None

    def left(self, waiting: Iterable[PlannedRun], at_work: Iterable[AtWork]) -> Left | None:
        """Return the time left for all runs; None while nothing is known at all."""
        now = time.monotonic()
        times = [self.like(run) or self.others(run) for run in waiting]
        times += [one.left(self.like(one.run), self.others(one.run), now) for one in at_work]
        known = [seconds for seconds in times if seconds is not None]
        if not known:
            return None
        return Left(max(sum(known) / self.jobs, max(known)), len(known) < len(times))
