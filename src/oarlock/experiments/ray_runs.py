"""Runs on the machines of a Ray cluster. A machine works in a folder of its own and copies it to and from a store, so
that another one goes on from the last checkpoint where a machine, or a process on it, is lost."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from oarlock.clusters import connected, mistake_in
from oarlock.errors import OarlockError
from oarlock.experiments.config import RunConfig
from oarlock.experiments.processes import ERROR, GRACE, Process, RunUnderWay
from oarlock.experiments.result import FILE
from oarlock.files import make_directory, write_text
from oarlock.stores import Store

RETRIES = 10  # times that a run goes on after a process or a machine was lost, before it counts as broken
LOOK = 0.2  # seconds between two looks at a run
TELL = 5.0  # seconds between two looks at how far a run elsewhere is
EVENTS = "events.jsonl"
CHECKPOINT = "checkpoint/state.safetensors"
_LAST = (EVENTS, CHECKPOINT, FILE)  # each says that what comes before it is there


class Copied:
    """Hold a run's directory on this machine, and its copy in a store."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.directory, self.store = directory, store
        self.sent: tuple[int, int] | None = None

    def fetch(self) -> None:
        """Have here what is in the store."""
        for name in self.store.names():
            if _is_ours(name):
                make_directory((self.directory / name).parent)
                self.store.fetch(name, self.directory / name)
        self.sent = self._checkpoint()

    def send_checkpoint(self) -> None:
        """Copy the checkpoint, and the events before it, if there is a new one."""
        if (now := self._checkpoint()) != self.sent:
            for name in ("config.json", EVENTS, CHECKPOINT):
                if (self.directory / name).exists():  # a first phase without epochs ends before there is an event
                    self.store.send(self.directory / name, name)
            self.sent = now

    def send(self) -> None:
        """Copy everything; an error that is no longer one is gone there, too."""
        found = [path.relative_to(self.directory).as_posix() for path in self.directory.rglob("*") if path.is_file()]
        for name in sorted(filter(_is_ours, found), key=lambda name: (name in _LAST, _order(name), name)):
            self.store.send(self.directory / name, name)
        if ERROR not in found:
            self.store.remove(ERROR)

    def _checkpoint(self) -> tuple[int, int] | None:
        try:
            found = (self.directory / CHECKPOINT).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


def _order(name: str) -> int:
    return _LAST.index(name) if name in _LAST else 0


def _is_ours(name: str) -> bool:
    """Locks and what is half written have names that begin with a dot, or end as the store's do."""
    return not any(part.startswith(".") for part in PurePosixPath(name).parts) and not name.endswith(".tmp")


def do_run(config: RunConfig, url: str) -> str | None:
    """Do a run, or what is left of it, in a folder of this machine; return what went wrong."""
    with tempfile.TemporaryDirectory(prefix="oarlock-") as folder:
        copied = Copied(Path(folder) / "run", Store(url))
        copied.fetch()
        process = Process(config, copied.directory)
        try:
            while not process.ended():
                time.sleep(LOOK)
                copied.send_checkpoint()
        except BaseException:  # it is to stop
            process.ask_to_stop()
            process.wait_for_stop()
            copied.send_checkpoint()
            raise
        error = process.conclude()
        copied.send()
        return error


class RayRun:
    """Watch a run that was given to Ray."""

    def __init__(self, ray: Any, task: Any, directory: Path, copied: Copied | None) -> None:
        self.ray, self.task, self.directory, self.copied = ray, task, directory, copied
        self.looked = time.monotonic()

    def ended(self) -> bool:
        if self.copied is not None and time.monotonic() - self.looked > TELL:
            self.looked = time.monotonic()
            with suppress(OarlockError):  # it only tells how far the run is
                if self.copied.store.exists(EVENTS):
                    self.copied.store.fetch(EVENTS, self.directory / EVENTS)
        return bool(self.ray.wait([self.task], timeout=0)[0])

    def conclude(self) -> str | None:
        try:
            with mistake_in(self.ray):
                error: str | None = self.ray.get(self.task)
        except OarlockError as problem:
            write_text(self.directory / ERROR, f"{problem}\n")
            return str(problem)
        if self.copied is not None:
            self.copied.fetch()
            if error is None:
                (self.directory / ERROR).unlink(missing_ok=True)
        return error

    def ask_to_stop(self) -> None:
        self.ray.cancel(self.task)

    def wait_for_stop(self) -> None:
        if not self.ray.wait([self.task], timeout=GRACE)[0]:
            self.ray.cancel(self.task, force=True)


class RayPool:
    """Do runs on a cluster. Without a store the grid's own directory is one, which all machines have to see."""

    def __init__(self, ray: Any, out: Path, store: str | None) -> None:
        self.ray, self.out, self.store = ray, out.resolve(), store
        self.task = ray.remote(max_retries=RETRIES, max_calls=1)(do_run)

    @property
    def jobs(self) -> int:
        """Return how many runs of one thread there is room for; Ray has larger ones wait."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def start(self, config: RunConfig, directory: Path) -> RunUnderWay:
        make_directory(directory)
        name = directory.resolve().relative_to(self.out).as_posix()
        url = f"{self.store or f'file://{self.out}'}/{name}"  # no as_uri: fsspec takes a path as it is
        copied = None if self.store is None else Copied(directory, Store(url))
        if copied is not None and not copied.store.exists(CHECKPOINT):
            copied.send()  # what was begun without the store goes on in it
        gpus = 0 if config.device == "cpu" else 1
        task = self.task.options(num_cpus=config.threads, num_gpus=gpus).remote(config, url)
        return RayRun(self.ray, task, directory, copied)


@contextmanager
def pool_on(on: str, out: Path, store: str | None) -> Iterator[RayPool]:
    """Yield what does a grid's runs on a cluster: the one at an address, or a local one."""
    with connected(on) as ray:
        yield RayPool(ray, out, store)
