"""Runs as processes of this machine; and what whoever does a grid's runs has to offer, here or on a cluster."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from oarlock.errors import OarlockError
from oarlock.experiments.config import RunConfig, full_config
from oarlock.experiments.worker import STOP
from oarlock.files import make_directory, write_json, write_text


class RunUnderWay(Protocol):
    """Watch a run that was started in its directory."""

    def ended(self) -> bool: ...

    def conclude(self) -> str | None:
        """Return, after the end, the last line of what went wrong, if anything; `error.txt` tells it in full."""

    def ask_to_stop(self) -> None: ...

    def wait_for_stop(self) -> None: ...


class Pool(Protocol):
    """Start runs, each in its directory; begun ones go on there."""

    @property
    def jobs(self) -> int:
        """Return how many runs there may be at a time."""

    def start(self, config: RunConfig, directory: Path) -> RunUnderWay: ...


class Processes:
    """Do runs as processes of this machine."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise OarlockError(f"{jobs} runs at a time: choose 1 or more")
        self.jobs = jobs

    def start(self, config: RunConfig, directory: Path) -> "Process":
        return Process(config, directory)


ERROR = "error.txt"
_OUTPUT = ".output"
GRACE = 15.0  # seconds that a run has to stop at the end of what it is computing
LONGEST_ERROR = 10_000  # characters


class Process:
    """Do a run in its directory, as a process of its own."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self.directory = directory
        make_directory(directory)
        if not (directory / "config.json").exists():
            write_json(directory / "config.json", full_config(config))
        (directory / _OUTPUT).unlink(missing_ok=True)  # also of a link that somebody put there
        with open(directory / _OUTPUT, "xb") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "oarlock.experiments.worker", str(directory)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": str(config.threads)},
                start_new_session=True,  # Ctrl-C is told to the grid alone, which then stops its runs
            )

    def ended(self) -> bool:
        return self.popen.poll() is not None

    def conclude(self) -> str | None:
        """Return, after the end, the last line of what went wrong, if anything; `error.txt` tells it in full."""
        self._close()
        code = self.popen.returncode
        if code == 0:
            (self.directory / ERROR).unlink(missing_ok=True)
            (self.directory / _OUTPUT).unlink(missing_ok=True)
            return None
        ending = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        said = (self.directory / _OUTPUT).read_text(encoding="utf-8", errors="replace").strip()[-LONGEST_ERROR:]
        write_text(self.directory / ERROR, f"{ending}\n{said}\n")
        (self.directory / _OUTPUT).unlink(missing_ok=True)
        return said.splitlines()[-1] if said else ending

    def ask_to_stop(self) -> None:
        with suppress(OSError):  # it may have ended by now
            os.write(self._pipe, STOP)

    def wait_for_stop(self) -> None:
        try:
            self.popen.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._close()
        (self.directory / _OUTPUT).unlink(missing_ok=True)

    @property
    def _pipe(self) -> int:
        assert self.popen.stdin is not None
        return self.popen.stdin.fileno()

    def _close(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
