"""Memory that is freed stays with the process."""

import os
import platform
import subprocess
import sys

import pytest

from oarlock.allocation import OF_THE_USER

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")

FAULTS = """
import resource, sys, torch
import oarlock.cli  # all of it, as the command line has when it asks
from oarlock.allocation import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
for _ in range(20):  # until the heap has a place for it that nothing small has split
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**24)  # 64 MB, freed at once
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def ask(what: str, **environment: str) -> tuple[int, int]:
    own = {name: value for name, value in os.environ.items() if name not in OF_THE_USER}
    command = [sys.executable, "-c", FAULTS, what]
    done = subprocess.run(command, env=own | environment, capture_output=True, text=True, check=True)
    kept, faults = map(int, done.stdout.split())
    return kept, faults


@pytest.fixture(scope="module")
def usual() -> int:
    """Page faults without us; how many depends on the size of a page."""
    return ask("leave")[1]


@glibc
def test_what_was_freed_does_not_come_from_the_system_again(usual: int) -> None:
    kept, faults = ask("keep")
    assert kept and 10 * faults < usual


@glibc
def test_settings_of_the_environment_stay(usual: int) -> None:
    kept, faults = ask("keep", MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept and 2 * faults > usual


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from oarlock import allocation

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(allocation.ctypes, "CDLL", None)
    assert not allocation.keep_freed_memory()
