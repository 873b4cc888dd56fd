"""Runs as processes: started, watched, stopped, and marked when they break."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from oarlock.bench.child import STOP
from oarlock.files import make_directory, write_json, write_text
from oarlock.runs import RunConfig, full_config

ERROR = "error.txt"
_OUTPUT = ".output"
GRACE = 15.0  # seconds that a run has to stop at the end of what it is computing
LONGEST_ERROR = 10_000  # characters


class Process:
    """A run at work in its directory."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self.directory = directory
        make_directory(directory)
        if not (directory / "config.json").exists():
            write_json(directory / "config.json", full_config(config))
        with open(directory / _OUTPUT, "wb") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "oarlock.bench.child", str(directory)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": str(config.threads)},
                start_new_session=True,  # Ctrl-C is told to the grid alone, which then stops its runs
            )

    def ended(self) -> bool:
        return self.popen.poll() is not None

    def conclude(self) -> str | None:
        """After the end: the last line of what went wrong, which `error.txt` tells in full."""
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
