"""Cases in processes of their own: one that crashes, hangs or takes all memory is a finding, and the next goes on."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from fuzz.cases import SECONDS, Outcome

PATIENCE = 300.0  # seconds by the clock for what sleeps, and for starting: on a busy machine it takes a minute
HERE = Path(__file__).parents[1]


def outcomes(first: int, last: int) -> Iterator[Outcome]:
    """Yield what came of the cases from one number up to another."""
    while first < last:
        with tempfile.TemporaryDirectory(prefix="oarlock-fuzz-") as folder:
            began = first - 1
            for said in _lines([sys.executable, "-m", "fuzz.worker", folder, str(first), str(last)]):
                if isinstance(said, str):
                    yield Outcome(max(began, first), "", "", "", said, 0)
                    break
                if "began" in said:
                    began = said["began"]
                else:
                    yield Outcome(**said)
            first = max(began, first) + 1


def _lines(command: list[str]) -> Iterator[dict[str, object] | str]:
    """What a worker prints; in the end how it died, if it did not get to its end."""
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=errors, text=True)
        lines: queue.Queue[str] = queue.Queue()
        assert worker.stdout is not None
        threading.Thread(target=_pass_on, args=(worker.stdout, lines), daemon=True).start()
        try:
            while line := lines.get(timeout=SECONDS + PATIENCE):
                yield json.loads(line)
        except queue.Empty:
            yield f"no answer for {SECONDS + PATIENCE:g} s"
        finally:
            worker.kill()
            worker.wait()
        if worker.returncode not in (0, -9):
            errors.seek(0)
            yield f"the process ended with {worker.returncode}: {errors.read()[-2000:]}"


def _pass_on(stream: Iterator[str], lines: "queue.Queue[str]") -> None:
    for line in stream:
        lines.put(line)
    lines.put("")
