"""One case: a mutant of a file, by a number that makes it again, and what came of using it.

There are two good ends: the file is refused in a sentence (`OarlockError`), or it is taken for good and then answers.
Anything else is a finding: another exception, a crash, a connection, too much time, too much memory.
"""

import contextlib
import io
import random
import signal
import socket
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.mutations import mutated
from fuzz.subjects import Subject
from oarlock import OarlockError

SECONDS = 5.0  # of the processor: by the clock, a busy machine would decide. What sleeps is the runner's to notice.
SPARE = 256 * 2**20  # bytes a case may take besides three times the file
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Outcome(NamedTuple):
    """What came of a case; `finding` is empty where all is well."""

    number: int
    subject: str
    change: str
    end: str  # "refused" or "loaded"
    finding: str
    bytes: int  # of memory, at most, beyond what the process had before


class TooLong(BaseException):
    """Raised where it was, when its time was up."""


class Connected(BaseException):
    """Raised by an attempt to reach anything."""


def play(number: int, subjects: list[Subject]) -> Outcome:
    """Do the case of this number."""
    chance = random.Random(number)
    subject = chance.choices(subjects, [one.weight for one in subjects])[0]
    original = subject.file.read_bytes()
    content, change = mutated(subject.file, chance)
    before, end, finding = _begin_to_measure(), "loaded", ""
    subject.file.write_bytes(content)
    try:
        with _alone(), _limited(SECONDS), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject.use(subject.file, chance)
    except OarlockError as refusal:
        end = "refused"
        if "\n" in str(refusal) or len(str(refusal)) > 2000:
            finding = f"refused in more than a sentence: {str(refusal)[:500]}"
    except (Exception, TooLong, Connected):
        finding = traceback.format_exc(limit=-6)
    finally:
        subject.file.write_bytes(original)
    taken = max(0, _most_memory() - before)
    if not finding and taken > 3 * max(len(content), len(original)) + SPARE:
        finding = f"{taken / 2**20:.0f} MB of memory for a file of {len(content) / 2**20:.2f} MB"
    return Outcome(number, subject.name, change[:300], end, finding, taken)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong(f"more than {seconds:g} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No connection is opened and no name is looked up; whoever tries has this raised, which nobody catches."""

    def refuse(*arguments: Any, **_: Any) -> Any:
        raise Connected(f"a connection to {arguments[-1:]}")

    kept = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex", "sendto")}
    lookup = socket.getaddrinfo
    for name in kept:
        setattr(socket.socket, name, refuse)
    socket.getaddrinfo = refuse
    try:
        yield
    finally:
        socket.getaddrinfo = lookup
        for name, method in kept.items():
            setattr(socket.socket, name, method)


def _begin_to_measure() -> int:
    with contextlib.suppress(OSError):
        CLEAR.write_text("5")  # the most that was taken is measured from now on
    return status("VmRSS")


def _most_memory() -> int:
    return status("VmHWM")


def status(name: str) -> int:
    """Return a line of what Linux says of the process, in bytes; 0 elsewhere."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
