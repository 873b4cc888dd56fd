"""Training shared by several processes: the same gradients, the same runs, and what happens when one of them dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conftest import Command, make_task
from contract.conftest import small_options
from oarlock import Learner, OarlockError, training
from oarlock.devices import Devices, launch
from oarlock.experiments.result import RunResult
from oarlock.files import read_tensors
from oarlock.methods import methods
from oarlock.nets.trunks import Trunk
from oarlock.training import Loss, Optimisation, Step

FOUR = Path(__file__).parent / "fixtures" / "format-1" / "four.npz"
COMMAND = [str(Path(sys.executable).parent / "oarlock")]  # a file, which Fabric starts again
SMALL = ["--memory", 8, "--threads", 1, "--set", "epochs=3", "--set", "adapt_last=1", "--set", "batch=7"]
TOLERANCE = 1e-4  # of the largest value: sums in another order, and two short trainings


def split(count: int, rank: int) -> Devices:
    devices = Devices()
    devices.count, devices.rank = count, rank
    return devices


@pytest.mark.parametrize("count", [2, 3, 7])
def test_shares_are_the_whole_batch_however_few_its_rows(count: int) -> None:
    for rows in (1, 5, 8):
        batch = torch.arange(rows), torch.arange(rows) + 100
        parts = [split(count, rank).share(batch) for rank in range(count)]
        for column, whole in enumerate(batch):
            assert torch.equal(torch.cat([mine[column] for mine, _ in parts]), whole)
        assert [share for _, share in parts] == [len(mine[0]) / rows for mine, _ in parts]
        assert sum(share for _, share in parts) == pytest.approx(1)


class Halves:
    """Stands in for `training._gradients`: compares the gradients of a batch with those of its three shares."""

    def __init__(self) -> None:
        self.shared: set[str] = set()

    def __call__(self, phase: Optimisation, optimiser: torch.optim.Optimizer, step: Step, _: Devices) -> Loss:
        if phase.mean_over_rows and phase.name not in self.shared:
            self.shared.add(phase.name)
            self.compare(phase, optimiser, step)
        optimiser.zero_grad(set_to_none=True)
        return phase.gradients(step)

    def compare(self, phase: Optimisation, optimiser: torch.optim.Optimizer, step: Step) -> None:
        weights = [weight for group in optimiser.param_groups for weight in group["params"]]

        def gradients(batch: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
            optimiser.zero_grad(set_to_none=True)
            phase.gradients(step._replace(batch=batch))
            return [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights]

        drawn = step.generator.get_state()
        whole, sums = gradients(step.batch), [torch.zeros_like(weight) for weight in weights]
        for rank in range(3):
            mine, share = split(3, rank).share(step.batch)
            sums = [total + share * own for total, own in zip(sums, gradients(mine), strict=True)]
        for one, other in zip(whole, sums, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6 + 1e-4 * float(one.abs().max()))
        assert torch.equal(step.generator.get_state(), drawn), "what is drawn would depend on the share"


@pytest.mark.parametrize("name", sorted(methods.all()))
def test_shares_of_a_batch_have_the_gradients_of_the_whole(
    name: str, tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = Halves()
    monkeypatch.setattr(training, "_gradients", halves)
    options = small_options(name) | ({"batch": 7} if "batch" in small_options(name) else {})
    learner = Learner(name, trunk=tiny_trunk, memory=8, **options)
    learner.learn(*make_task(["ant", "bee"])).learn(*make_task(["cow", "dog"]))
    if methods.find(name).protected and name not in ("supsup",):
        assert "features" in halves.shared or not learner.method.config.epochs


# Real processes


def start(*arguments: object, devices: int, out: str) -> subprocess.Popen:
    words = ["run", FOUR, "--method", "row", *SMALL, *arguments, "--devices", devices, "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finished(*arguments: object, devices: int, out: str) -> RunResult:
    process = start(*arguments, devices=devices, out=out)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert said == ""
    return RunResult.read(Path(out))


def test_two_processes_do_what_one_does_and_a_dead_one_ends_the_run(here: Path) -> None:
    """What was promised holds bit for bit, and another number of processes goes on where these stopped."""
    one, process = finished(devices=1, out="one"), start(devices=2, out="two")
    wait_for(lambda: "epoch" in events("two"))
    (other,) = children(process)
    os.kill(other, signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (
        2,
        "oarlock: another process of this run ended; what is done is kept: go on with --resume\n",
    )
    two = finished_again("two", devices=2)
    assert two.unchanged is not None and two.unchanged["changed"] == 0
    assert two.accuracy == one.accuracy
    assert_same_model(Path("one"), Path("two"))


@pytest.mark.slow
def test_three_processes_do_what_one_does_and_none_outlives_the_first(here: Path) -> None:
    for method in ("row", "icarl"):
        one, three = (finished("--method", method, devices=n, out=f"{method}-{n}") for n in (1, 3))
        assert three.accuracy == one.accuracy
        assert_same_model(Path(f"{method}-1"), Path(f"{method}-3"))
    process = start(devices=3, out="killed")
    wait_for(lambda: "epoch" in events("killed"))
    others = children(process)
    assert len(others) == 2
    process.kill()
    wait_for(lambda: not any(map(is_alive, others)))


@pytest.mark.slow
def test_torchrun_starts_the_processes_as_well(here: Path) -> None:
    words = [*COMMAND, "run", FOUR, "--method", "row", *SMALL, "--devices", 2, "--out", "two"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", 29611]
    done = subprocess.run([*map(str, (*torchrun, *words))], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert RunResult.read(Path("two")).tasks == [["a", "b"], ["c", "d"]]


def finished_again(out: str, devices: int) -> RunResult:
    words = ["run", "--resume", "--out", out, "--devices", str(devices)]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return RunResult.read(Path(out))


def events(out: str) -> str:
    file = Path(out) / "events.jsonl"
    return file.read_text() if file.exists() else ""


def children(process: subprocess.Popen) -> list[int]:
    """Linux tells them."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def wait_for(what: Callable[[], bool], seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def assert_same_model(one: Path, other: Path) -> None:
    """To rounding, which a short training amplifies little."""
    ours, theirs = (read_tensors(place / "model.oar", "model")[0] for place in (one, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if value.is_floating_point() and value.numel():
            limit = TOLERANCE * float(value.double().abs().max() + 1)
            torch.testing.assert_close(value.double(), theirs[name].double(), rtol=0, atol=limit, msg=name)


# What is refused


def test_more_processes_are_for_one_method_on_cpus(
    here: Path, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--method", "row,slda"], ["--device", "meta"], ["--devices", "0"]):
        assert oarlock("run", FOUR, "--devices", 2, "--out", "out", *wrong) == 2
        assert "devices" in capsys.readouterr().err
    assert not Path("out").exists()


def test_without_fabric_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(OarlockError, match=r"pip install 'oarlock\[fabric\]'"):
        launch(2)
    assert launch(1).count == 1
