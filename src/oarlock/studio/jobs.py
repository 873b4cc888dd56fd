"""Long work in the background: one of each kind at a time, with progress to be watched, and an end on request."""

import itertools
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oarlock.errors import OarlockError
from oarlock.studio.refusals import Refusal


class Stopped(Exception):
    """Somebody asked a job to stop."""


class Job:
    """Hold how some work goes: `running`, then `done`, `stopped` or `failed`."""

    def __init__(self, number: int, kind: str, title: str) -> None:
        self.number, self.kind, self.title = number, kind, title
        self.state, self.text, self.share = "running", "starting", 0.0
        self.notes: list[str] = []
        self.result: Any = None
        self.stopping = threading.Event()
        self.finished = threading.Event()

    def report(self, share: float, text: str) -> None:
        """Say how far it is; this is where a job that was asked to stop does so."""
        self.share, self.text = min(max(share, 0.0), 1.0), text
        if self.stopping.is_set():
            raise Stopped

    def note(self, text: str) -> None:
        self.notes.append(text)

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "kind": self.kind,
            "title": self.title,
            "state": self.state,
            "text": self.text,
            "share": round(self.share, 4),
            "notes": list(self.notes),
            "stopping": self.stopping.is_set(),
            "result": self.result if self.state == "done" else None,
        }


class Jobs:
    """Run jobs in threads, one of each kind at a time.

    >>> jobs = Jobs()
    >>> job = jobs.start("count", "Counting", lambda job: job.report(1, "three") or 3)
    >>> job.finished.wait(9), job.state, job.result
    (True, 'done', 3)
    """

    def __init__(self) -> None:
        self.latest: dict[str, Job] = {}
        self._lock, self._numbers = threading.Lock(), itertools.count(1)

    def start(self, kind: str, title: str, work: Callable[[Job], Any]) -> Job:
        """Begin a job; refuse while one of its kind is running."""
        with self._lock:
            before = self.latest.get(kind)
            if before is not None and before.state == "running":
                raise Refusal(409, f"“{before.title}” is still going on: wait until it has finished, or stop it")
            job = self.latest[kind] = Job(next(self._numbers), kind, title)
        threading.Thread(target=self._run, args=(job, work), name=kind, daemon=True).start()
        return job

    def stop(self, number: int) -> None:
        for job in self.latest.values():
            if job.number == number:
                job.stopping.set()
                return
        raise Refusal(404, f"there is no job {number}")

    def running(self, kind: str) -> bool:
        job = self.latest.get(kind)
        return job is not None and job.state == "running"

    def to_json(self) -> list[dict[str, Any]]:
        return [job.to_json() for job in sorted(self.latest.values(), key=lambda job: job.number)]

    def _run(self, job: Job, work: Callable[[Job], Any]) -> None:
        state, text = "done", "done"
        try:
            job.result = work(job)
        except Stopped:
            state, text = "stopped", "stopped"
        except OarlockError as problem:
            state, text = "failed", str(problem)
        except Exception as problem:  # a page has nobody else to tell
            traceback.print_exc()
            state, text = "failed", f"something went wrong that should not have ({type(problem).__name__}: {problem})"
        job.text, job.share, job.state = text, 1.0 if state == "done" else job.share, state
        job.finished.set()


@contextmanager
def warnings_of_this_thread(note: Callable[[str], None]) -> Iterator[None]:
    """Make what would warn a programmer a note on the page; warnings of other threads go where they went."""
    mine = threading.get_ident()
    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.filterwarnings("always", category=UserWarning, module="oarlock")

        def show(message: Any, *others: Any, **named: Any) -> None:
            if threading.get_ident() == mine:
                note(str(message))
            else:
                before(message, *others, **named)

        warnings.showwarning = show
        yield
