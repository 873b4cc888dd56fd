"""One run: a stream learned task by task by one method, resumable at any moment, with its result on disk."""

import json
import math
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy
import timm
import torch
from torch.optim import Optimizer

import oarlock
from oarlock.data.streams import Stream
from oarlock.devices import Devices
from oarlock.errors import OarlockError
from oarlock.experiments import metrics
from oarlock.experiments.config import RunConfig, check_same, full_config
from oarlock.experiments.evaluation import Evaluator, Record
from oarlock.experiments.result import FILE, RunResult, Variant
from oarlock.files import append_line, by_part, make_directory, write_json, write_tensors
from oarlock.learner import Learner
from oarlock.locks import alone_in
from oarlock.options import describe
from oarlock.schema import list_of, matching, maybe, of_file, plain, record
from oarlock.session import Checkpoint, Kept, Session, read_checkpoint
from oarlock.tasks import PROMISE, PreparedTask, Promise
from oarlock.theory.certificate import certify, has_ood_heads, write_certificate
from oarlock.training import ALONE, Callback, Loss, NoCallback, Phase, Position

NOTHING, BEGIN, RESTORE = "nothing", "begin", "restore"  # what the first of several processes has the others do


class Display(Callback, Protocol):
    """Show how a run goes; the command line does so with a progress bar."""

    def on_start(self, tasks: int, finished: int) -> None: ...

    def on_evaluated(self, record: Record) -> None: ...


class NoDisplay(NoCallback):
    def on_start(self, tasks: int, finished: int) -> None:
        pass

    def on_evaluated(self, record: Record) -> None:
        pass


def run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    display: Display | None = None,
    stream: Stream | None = None,
    devices: Devices = ALONE,
) -> RunResult:
    """Do the run, or what is left of it, in the directory `out`; return what `result.json` holds. A `stream` that is
    at hand takes the place of what the configuration would open (`RunConfig.on_stream`). Of several processes this
    is the first; the others `follow`."""
    finished = _finished(config, out, resume)
    if finished is not None:
        devices.agree(NOTHING)
        return finished
    torch.set_num_threads(config.threads)
    stream = config.stream() if stream is None else stream
    started = None if (out / _CHECKPOINT).exists() else _Progress.new(config, out, stream)
    make_directory(out)
    with alone_in(out):
        finished = _finished(config, out, resume)  # another process may have been at work here since
        if finished is not None:
            devices.agree(NOTHING)
            return finished
        begun = (out / _CHECKPOINT).exists()
        if begun:
            progress = _Progress.restore(config, out, stream)
        else:
            progress = started or _Progress.new(config, out, stream)
            write_json(out / "config.json", full_config(config))
            make_directory((out / _CHECKPOINT).parent)
        devices.agree(RESTORE if begun else BEGIN)
        progress.share(devices)
        return progress.finish(display or NoDisplay())


def follow(config: RunConfig, out: Path, devices: Devices) -> None:
    """Learn all that the first process learns, write nothing, and look at no test image."""
    torch.set_num_threads(config.threads)
    wanted = devices.agree()
    if wanted == NOTHING:
        return
    stream = config.stream()
    progress = (_Progress.restore if wanted == RESTORE else _Progress.new)(config, out, stream)
    progress.session.file = None
    progress.share(devices)
    for index in range(progress.session.position.task, len(progress.stream)):
        progress.session.learn(progress.prepare(index), NoCallback())


def _finished(config: RunConfig, out: Path, resume: bool) -> RunResult | None:
    """The result of a run that needs nothing more; a directory is refused in which this one cannot begin or go on."""
    if not (out / "config.json").exists():
        check_unused(out)
        return None
    if not resume:
        raise OarlockError(f"{out} holds a run: choose another directory, or continue it with --resume")
    check_same(config, out)
    return RunResult.read(out) if (out / FILE).exists() else None


def check_unused(out: Path) -> None:
    """Refuse to start anything in a directory that holds something else."""
    if out.exists() and not out.is_dir():
        raise OarlockError(f"{out} is a file: choose a directory for the run")
    if out.exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise OarlockError(f"{out} is not empty and holds no run: choose another directory")


def check_memory(learner: Learner, stream: Stream) -> None:
    """Refuse a memory that is smaller than the stream needs in the end."""
    classes = len(stream.classes)
    learner.check_memory(classes, f"use --memory {classes} or more")


def _used(data: list[list[str]], position: Position) -> list[list[str]]:
    """Of the hashes of every task's images those trained on and tested on so far: a file that stopped a run may be
    repaired or removed before it goes on."""
    begun = position.task + (position.phase > 0 or position.epoch > 0)
    return [[train for train, _ in data[:begun]], [test for _, test in data[: position.task]]]


_CHECKPOINT = Path("checkpoint") / "state.safetensors"
HASH = matching("[0-9a-f]{64}")
FACTS = record({"record": plain, "data": list_of(list_of(HASH, 2, 2)), "promises": list_of(maybe(PROMISE))})


class _Progress:
    """A run under way: the session that learns, what was measured, and what was promised."""

    def __init__(
        self, config: RunConfig, out: Path, learner: Learner, stream: Stream, saved: Checkpoint | None = None
    ) -> None:
        self.config, self.out, self.learner, self.stream = config, out, learner, stream
        self.session = Session(learner, out / _CHECKPOINT, saved, self._kept)
        self.evaluator = Evaluator(self.stream, learner)
        self.record = Record()
        self.data = [[task.train.sha256(), task.test.sha256()] for task in self.stream]
        self.promises: list[Promise | None] = []  # of every finished task, about its first test images

    @classmethod
    def new(cls, config: RunConfig, out: Path, stream: Stream) -> "_Progress":
        progress = cls(config, out, config.learner(), stream)
        check_memory(progress.learner, progress.stream)
        progress.learner.choose_size(progress.stream[0].train.images)
        return progress

    @classmethod
    def restore(cls, config: RunConfig, out: Path, stream: Stream) -> "_Progress":
        saved = read_checkpoint(out / _CHECKPOINT)
        learner = Learner.from_state(*saved.state, weights=config.weights, device=config.device)
        with of_file(out / _CHECKPOINT):
            facts = FACTS(dict(saved.kept.facts), "")
            measured = Record.from_json(facts["record"], saved.position.task)
            if len(facts["promises"]) != saved.position.task:
                raise OarlockError(f"it has not kept what each of {saved.position.task} finished tasks promised")
        progress = cls(config, out, learner, stream, saved)
        now, then = progress.data, facts["data"]
        if isinstance(progress.stream[0].train.images, tuple):  # files, which are read when their task begins
            now, then = _used(now, saved.position), _used(then, saved.position)
        if now != then:
            raise OarlockError(f"the images in {config.source} are not those the run in {out} was started with")
        progress.record = measured
        tensors = by_part(saved.kept.tensors)
        for index, description in enumerate(facts["promises"]):
            content = {**tensors.get(str(index), {}), "images": progress.evaluator.probes(index)}
            progress.promises.append(None if description is None else Promise.from_state(content, description))
        return progress

    def _kept(self) -> Kept:
        """What goes into every checkpoint besides the learner. A promise's images are the stream's."""
        described = [None if promise is None else promise.describe() for promise in self.promises]
        facts = {"record": self.record.to_json(), "data": self.data, "promises": described}
        tensors = {
            f"{index}.{name}": value
            for index, promise in enumerate(self.promises)
            for name, value in ({} if promise is None else promise.tensors()).items()
            if name != "images"
        }
        return Kept(facts, tensors)

    def finish(self, display: Display) -> RunResult:
        display.on_start(len(self.stream), self.session.position.task)
        for index in range(self.session.position.task, len(self.stream)):
            self._learn(index, display)
            self._evaluate(index, display)
        return self._conclude()

    def share(self, devices: Devices) -> None:
        """Wait until all processes are where this one is, since what they read is written again; then train with
        them."""
        devices.agree()
        self.session.devices = devices

    def prepare(self, index: int) -> PreparedTask:
        train = self.stream[index].train
        return self.learner.prepare_task(train.images, train.labels.tolist(), self.stream[index].classes)

    def _learn(self, index: int, display: Display) -> None:
        watch = _RunCallback(self, display)
        self.session.learn(self.prepare(index), watch)
        watch.count_training()

    def _evaluate(self, index: int, display: Display) -> None:
        started = time.perf_counter()
        self.promises.append(Promise.record(self.learner.method, self.evaluator.probes(index), index))
        self.evaluator.after_task(self.record)
        self.record.seconds["evaluate"] += time.perf_counter() - started
        self.session.save(self.session.position)
        self.log("task", task=index, accuracy=self.record.accuracy[-1], free=self.record.free_capacity[-1])
        display.on_evaluated(self.record)

    def _conclude(self) -> RunResult:
        started = time.perf_counter()
        numbers, tensors = self.evaluator.final()
        unchanged = self._check_promises()
        if has_ood_heads(type(self.learner.method)):
            write_certificate(certify(self.learner, *self.evaluator.known(), self.evaluator.unknown()), self.out)
        self.record.seconds["evaluate"] += time.perf_counter() - started
        write_tensors(self.out / "evaluation.safetensors", "evaluation", tensors, {})
        self.learner.save(self.out / "model.oar")
        result = self._result(numbers, unchanged)
        result.write(self.out)
        self.log("finished", aca=result.aca)
        return result

    def _check_promises(self) -> dict[str, Any] | None:
        """Ask every finished task again and count the values that are not bit for bit what they were; where that is
        not the promise, measure by how much."""
        method = self.learner.method
        checks = [promise.check(method, index) for index, promise in enumerate(self.promises) if promise is not None]
        if not checks:
            return None
        counted: dict[str, Any] = {
            "compared": sum(check.compared for check in checks),
            "changed": sum(check.changed_values for check in checks),
        }
        if method.tolerance:
            difference = max(check.difference for check in checks)
            counted |= {
                "tolerance": method.tolerance,
                "difference": difference if math.isfinite(difference) else None,
            }
        return counted

    def _result(self, numbers: dict[str, Any], unchanged: dict[str, Any] | None) -> RunResult:
        record, config, learner = self.record, self.config, self.learner
        free = [float(numpy.mean(layers)) for layers in record.free_capacity if layers is not None]
        return RunResult(
            method=config.method,
            protocol=config.protocol,
            partial=self.stream.partial,
            images_per_class=self.stream.images_per_class(),
            source=config.source_name(),
            increment=config.increment,
            order=config.order,
            validation=config.validation,
            seed=config.seed,
            memory=config.memory,
            trunk=config.trunk,
            config=describe(learner.method.config),
            threads=config.threads,
            tasks=learner.tasks_,
            accuracy=record.accuracy,
            til_accuracy=record.til_accuracy,
            task_id_accuracy=record.task_id_accuracy[-1],
            aca=metrics.aca(record.accuracy),
            aia=metrics.aia(record.accuracy),
            forgetting=metrics.forgetting(record.accuracy),
            **numbers,
            variants={
                name: Variant(rows, metrics.aca(rows), metrics.forgetting(rows))
                for name, rows in record.variants.items()
                if len(rows) == len(record.accuracy)  # an earlier version may have begun the run with others
            },
            unchanged=unchanged,
            entries=learner.entries(),
            seconds={name: round(value, 2) for name, value in record.seconds.items()},
            peak_mb=_peak_mb(),
            free_capacity=free or None,
            overlap=learner.trunk.card.overlap([str(name) for name in learner.classes_], self.stream.wnids),
            versions={
                "oarlock": oarlock.__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "timm": timm.__version__,
                "numpy": numpy.__version__,
            },
        )

    def log(self, event: str, **content: Any) -> None:
        line = json.dumps({"time": round(time.time(), 2), "event": event, **content}, ensure_ascii=False)
        append_line(self.out / "events.jsonl", line)


class _RunCallback(NoCallback):
    """Passes news on to a display, makes every epoch an event of the run, and counts the time of training."""

    def __init__(self, progress: _Progress, display: Display) -> None:
        self.progress, self.display = progress, display
        self.counted = time.perf_counter()

    def on_phase(self, task: int, phase: Phase) -> None:
        self.phase = phase.name
        self.display.on_phase(task, phase)

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self.last_loss = loss.value
        self.display.on_step(epoch, fraction, loss)

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        self.count_training()
        if optimiser is not None:
            self.progress.log("epoch", position=position, phase=self.phase, loss=self.last_loss.item())
        self.display.on_checkpoint(position, optimiser)

    def count_training(self) -> None:
        """Add the time since it was last counted."""
        now = time.perf_counter()
        self.progress.record.seconds["train"] += now - self.counted
        self.counted = now


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
