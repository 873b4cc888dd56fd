"""Does a task cost more, the more tasks came before it? Every part of learning a stream is timed: one JSON line.

    python benchmarks/learn_cost.py [SOURCE] [--increment 5] [--tasks 20] [--images 100] [--epochs 1] [--memory 200]
                                    [--calibration 0.1] [--method row] [--set grow_below=0] [--threads 1]

Seconds are the process's CPU time, which other work on the machine disturbs less than the clock; for each part one
number per task. Training the OOD heads of all tasks so far is the part that must grow; `growth` is what the others
take together in the last three tasks, over three early ones: the first with a full memory and as many calibration
images as there will ever be, if they come to that, or else tasks 3 to 5. Parts named after a phase are its
epochs, "memory" is what the last phase does before them, and "calibration, promise" is what follows all phases. Two
things make a task cost more than earlier ones: calibration images until they are complete, and wings, all of which a
new task evaluates; both are counted after each task, wings of all layers together.
"""

import argparse
import json
import time
from collections import defaultdict

import torch
from torch.optim import Optimizer

from oarlock.allocation import keep_freed_memory
from oarlock.cli.common import parse_options
from oarlock.data.sources import open_source
from oarlock.data.streams import Stream
from oarlock.errors import OarlockError
from oarlock.learner import Learner
from oarlock.methods._ood_heads import TuneOodHeads
from oarlock.nets.trunks import BUNDLED
from oarlock.training import Loss, Phase, Position

GOAL = 1.2
HEADS = TuneOodHeads.name
FEWEST, COMPARED = 6, 3  # tasks
NEARLY = 0.9  # as many of each class as of another: the limit is not always met exactly
EARLIEST = 2  # counted from 0: the first has no memory, the second little calibration


class Stopwatch:
    """A callback that books the time since it last looked to the part that has just ended."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self.part, self.since = "images", time.process_time()

    def turn_to(self, part: str) -> None:
        now = time.process_time()
        self.parts[self.part] += now - self.since
        self.part, self.since = part, now

    def on_phase(self, task: int, phase: Phase) -> None:
        self.turn_to("memory" if phase.name == HEADS else phase.name)
        self.phase = phase.name

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        if self.part != self.phase:
            self.turn_to(self.phase)

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        if optimiser is None:
            self.turn_to("calibration, promise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="../shared/data/cifar100.npz")
    parser.add_argument("--increment", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--images", type=int, default=100, help="of each class")
    parser.add_argument("--calibration", type=float, default=0.1, help="the share of images kept for it")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--memory", type=int, default=200)
    parser.add_argument("--method", default="oar")
    parser.add_argument("--set", action="append", default=[], help="an option of the method, key=value")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    try:
        stream = Stream.from_source(open_source(given.source), given.increment, order=1)[: given.tasks]
    except OarlockError as problem:
        parser.error(str(problem))
    if len(stream) < FEWEST:
        parser.error(f"{len(stream)} tasks are too few to see anything grow: make it {FEWEST} or more")
    options = parse_options(given.set)
    learner = Learner(
        given.method,
        trunk=BUNDLED,
        memory=given.memory,
        calibration=given.calibration,
        epochs=given.epochs,
        **options,
    )
    of_tasks, wings, calibration = [], [], []
    for task in stream:
        images, stopwatch = task.train.at_most(given.images), Stopwatch()
        learner.learn(images.images, images.labels, callback=stopwatch)
        stopwatch.turn_to("")
        of_tasks.append(stopwatch.parts)
        capacity = learner.method.capacity()
        wings.append(sum(capacity.wings) if capacity else 0)
        calibration.append(len(learner.calibration))
    kept = {"calibration_images": calibration, "memory_images": len(learner.method.memory), "wings": wings}
    line = summary(of_tasks, first_complete(calibration))
    print(json.dumps({"name": "learn_cost", **vars(given), "source": stream.name, **kept, **line}))


def first_complete(calibration: list[int]) -> int:
    """The task from which the number of calibration images does not grow, if that leaves enough to compare."""
    complete = (task for task, images in enumerate(calibration) if images > NEARLY * calibration[-1])
    start = max(next(complete, EARLIEST), EARLIEST)
    return start if start + 2 * COMPARED <= len(calibration) else EARLIEST


def summary(of_tasks: list[dict[str, float]], start: int) -> dict[str, object]:
    """Seconds by part and task, how much the tasks' cost grows, and what share of it is training OOD heads."""
    names = dict.fromkeys(name for parts in of_tasks for name in parts)
    whole = [sum(parts.values()) for parts in of_tasks]
    besides = [sum(seconds for name, seconds in parts.items() if name != HEADS) for parts in of_tasks]
    heads = [parts.get(HEADS, 0.0) for parts in of_tasks]
    early, late = besides[start : start + COMPARED], besides[-COMPARED:]
    return {
        "seconds": {name: [round(parts.get(name, 0.0), 2) for parts in of_tasks] for name in names},
        "seconds_of_task": [round(seconds, 2) for seconds in whole],
        "compared_from": start + 1,
        "growth": round(sum(late) / sum(early), 3),
        "goal": GOAL,
        "share_of_heads": [round(part / all_parts, 3) for part, all_parts in zip(heads, whole, strict=True)],
    }


if __name__ == "__main__":
    main()
