"""Caches in RAM, and beyond a limit in files that nobody sees: same values, nothing left behind."""

import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Command, make_task
from contract.conftest import assert_same, small_options, snapshot
from oarlock import Learner, OarlockError, caches
from oarlock.nets.adapters import CHUNK, AdapterConfig, Adapters, CachedActivations
from oarlock.nets.trunks import Trunk


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go during a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """A system that lets no file grow beyond 64 KB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_ram_is_taken_up_to_the_limit_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = caches.in_ram()
    monkeypatch.setenv(caches.VARIABLE, str((before + 1000.5) / 1e9))  # no byte lost to rounding
    first = caches.allocate([10, 15], torch.float32)
    assert caches.in_ram() == before + 600
    second = caches.allocate([401], torch.uint8)  # one byte too many: in a file
    third = caches.allocate([400], torch.uint8)
    assert caches.in_ram() == before + 1000
    part = first[3:5]
    del first, second
    assert caches.in_ram() == before + 1000  # a part holds the whole
    del part, third
    assert caches.in_ram() == before


def test_a_tensor_in_a_file_keeps_what_is_put_into_it(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.VARIABLE, "0")
    values = torch.randn(300, 7, 5, generator=torch.Generator().manual_seed(0))
    for reserve in (True, False):  # where there is no posix_fallocate, as on a Mac
        if not reserve:
            monkeypatch.delattr(os, "posix_fallocate", raising=False)
            monkeypatch.setattr(caches, "BLOCK", 4096)
        before = caches.in_ram()
        mapped = caches.joined(values.split(64), 300)
        assert torch.equal(mapped, values)
        assert caches.in_ram() == before
        assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("limit", ["0", "inf"])
def test_rows_are_kept_in_place(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.VARIABLE, limit)
    monkeypatch.setattr(caches, "BLOCK", 100)  # a few rows at a time
    values = torch.arange(600, dtype=torch.int32).view(100, 6)
    for rows in (torch.arange(100), torch.arange(1, 100, 3), torch.tensor([99]), torch.tensor([], dtype=torch.long)):
        whole = caches.joined([values], 100)
        kept = caches.keep_rows(whole, rows)
        assert torch.equal(kept, values[rows])
        assert kept.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, signal, torch\nfrom oarlock.caches import in_ram, allocate\n"
        "kept = allocate([1000], torch.float32).fill_(1)\nassert in_ram() == 0\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {caches.VARIABLE: "0", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["4GB", "-1", "nan", "much"])
def test_a_wrong_limit_is_refused_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.VARIABLE, text)
    with pytest.raises(OarlockError, match=rf"OARLOCK_CACHE_RAM='{text}'.*gigabytes"):
        caches.allocate([1], torch.uint8)


def test_the_command_says_which_limit_is_wrong(
    oarlock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(caches.VARIABLE, "4GB")
    assert oarlock("run", "sample", "--method", "slda", "--increment", "2", "--out", tmp_path / "run") == 2
    assert "OARLOCK_CACHE_RAM='4GB'" in capsys.readouterr().err.replace("\n", "")


def test_the_limit_is_a_quarter_of_the_memory_of_machine_or_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(caches.VARIABLE, raising=False)
    container = tmp_path / "memory.max"
    monkeypatch.setattr(caches, "_CONTAINER", container)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert caches.ram_limit() == machine / 4
    for text, limit in (("max\n", machine / 4), ("4000000\n", 1e6), (f"{2 * machine}\n", machine / 4)):
        container.write_text(text)
        assert caches.ram_limit() == limit
    monkeypatch.setenv(caches.VARIABLE, "inf")
    assert caches.ram_limit() == math.inf
    monkeypatch.delenv(caches.VARIABLE)
    monkeypatch.delattr(os, "sysconf")  # Windows
    container.unlink()
    assert caches.ram_limit() == 2e9


@pytest.mark.usefixtures("small_files_only")
@pytest.mark.parametrize("reserve", [True, False])
def test_a_full_disk_is_said_before_anything_is_written(
    reserve: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reserve:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.setenv(caches.VARIABLE, "0")
    caches.allocate([2**16], torch.uint8)
    with pytest.raises(OarlockError, match=r"0\.0671 GB .*TMPDIR.*OARLOCK_CACHE_RAM"):
        caches.allocate([2**26], torch.uint8)
    assert list(temporary.iterdir()) == []


# What is kept in them


@pytest.mark.parametrize("method", ["row", "gd"])
def test_learning_with_all_caches_in_files_is_learning_with_all_in_ram(
    method: str, tiny_trunk: Trunk, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations below the first adapter, prepared images, and what is split off them."""
    before, learners = caches.in_ram(), []
    for limit in ("inf", "0"):
        monkeypatch.setenv(caches.VARIABLE, limit)
        options = small_options(method) | {"adapt_last": 1}
        learner = Learner(method, trunk=tiny_trunk, memory=12, calibration=0.2, **options)
        for task in (["ant", "bee"], ["crow", "duck"]):
            images, labels = make_task(task, 15)
            shuffled = np.random.default_rng(0).permutation(30)
            learner.learn(images[shuffled], [labels[row] for row in shuffled])
            if limit == "0":
                assert list(temporary.iterdir()) == []
        learners.append(learner)
        assert caches.in_ram() == before
    assert_same(*map(snapshot, learners))
    assert learners[0].threshold(0.9) == learners[1].threshold(0.9)


@pytest.mark.parametrize("limit", ["0", "inf"])
def test_activations_are_those_of_their_chunks_wherever_they_lie(
    limit: str, tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(caches.VARIABLE, limit)
    adapters = Adapters(tiny_trunk, AdapterConfig(width=4, adapt_last=1))
    images = torch.randint(0, 256, (CHUNK + 44, 3, 16, 16), dtype=torch.uint8)
    before = caches.in_ram()
    activations = CachedActivations(adapters, images)
    made = torch.cat([adapters.below(chunk) for chunk in images.split(CHUNK)])
    rows = torch.randperm(len(images))
    assert torch.equal(activations[rows], made[rows])
    assert caches.in_ram() - before == (0 if limit == "0" else made.nbytes)


def test_a_task_has_one_copy_of_its_images(tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.VARIABLE, "inf")
    before = caches.in_ram()
    images, labels = make_task(["ant", "bee"], 20)
    prepared = Learner("oar", trunk=tiny_trunk, calibration=0.25).prepare_task(images, labels)
    assert caches.in_ram() - before == images.nbytes
    assert prepared.task.images.untyped_storage().nbytes() == images.nbytes
    assert len(prepared.task.images) == len(prepared.task.labels) == 30
