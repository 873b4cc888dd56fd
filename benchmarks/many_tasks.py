"""Many small tasks, one after the other: what each costs to learn, and an image then. One JSON line for each task.

    python benchmarks/many_tasks.py [SOURCE] [--tasks 100] [--classes 2] [--images 80] [--asked 64] [--every 5]
                                    [--shortlist 3] [--memory 200] [--set few=0] [--threads 1] [--out FOLDER]
    python benchmarks/many_tasks.py --out FOLDER --plot benchmarks/results/many_tasks.svg

Seconds are the process's CPU time, which other work on the machine disturbs less than the clock; with one thread the
two are alike. `ms_all` is of asking all tasks, one pass for each, as `Learner.predict` does; `ms_fast` of all of them
in the compact form, `ms_shortlist` of the tasks on a shortlist. `peak_mb` is the largest resident memory while the
task was learned and images were asked (Linux; elsewhere of the whole process so far). The last line tells by how much
the last five tasks cost more than five around the tenth.

With --out the model and the lines stay in a folder, and a second call goes on where the first one stopped. SOURCE is
Tiny-ImageNet as a .tar or .zip, or what `oarlock run` takes.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from oarlock import Learner, load
from oarlock.allocation import keep_freed_memory
from oarlock.cli.common import parse_options
from oarlock.data.datasets.tiny_imagenet import open_tiny_imagenet
from oarlock.data.images import prepare
from oarlock.data.sources import Source, open_source
from oarlock.data.streams import Stream, Task
from oarlock.nets.trunks import BUNDLED
from oarlock.prediction import Predictor, Speed, build_predictor

REPEATS = 2
COMPARED = 5  # tasks on each side of the growth that is told
AFTER = 10  # tasks, from which on there should be little growth
HIGH_WATER = Path("/proc/self/clear_refs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="../shared/data/tiny-imagenet-200.tar")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--classes", type=int, default=2, help="of a task")
    parser.add_argument("--images", type=int, default=80, help="for training, of a class")
    parser.add_argument("--asked", type=int, default=64, help="test images that are asked")
    parser.add_argument("--every", type=int, default=5, help="tasks from one time that images are asked to the next")
    parser.add_argument("--shortlist", type=int, default=3)
    parser.add_argument("--memory", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], help="an option of the method, key=value")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for the model and the lines")
    parser.add_argument("--plot", type=Path, help="draw the lines that are in --out, and measure nothing")
    given = parser.parse_args()
    if given.plot:
        draw(read(given.out), given.plot)
        return
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    stream = Stream.from_source(source(given.source), given.classes, order=1)[: given.tasks]
    measure(stream, given)


def source(place: str) -> Source:
    packed = place.endswith((".tar", ".zip"))
    return open_tiny_imagenet(Path(place)) if packed else open_source(place)


def measure(stream: Stream, given: argparse.Namespace) -> None:
    learner, lines = resumed(given.out) or (new_learner(given), [])
    images = asked(stream, learner, given.asked)
    for task in stream[len(learner.tasks_) :]:
        line = learned(learner, task, given.images)
        line |= answered(learner, images, given.shortlist) if line["task"] % given.every == 0 else {}
        line |= {"mb": megabytes(learner), "peak_mb": peak_mb()}
        lines.append(line)
        print(json.dumps(line), flush=True)
        if given.out:
            keep(given.out, learner, lines)
    told = {name: value for name, value in vars(given).items() if name not in ("out", "plot")}
    print(json.dumps({"name": "many_tasks", **told, "growth": growth(lines)}), flush=True)


def new_learner(given: argparse.Namespace) -> Learner:
    return Learner("oar", trunk=BUNDLED, memory=given.memory, **parse_options(given.set))


def learned(learner: Learner, task: Task, images: int) -> dict[str, Any]:
    """Learn a task; what that took and what came of it."""
    train = task.train.at_most(images)
    forget_peak()
    begun = time.process_time()
    learner.learn(train.images, train.labels)
    seconds = time.process_time() - begun
    capacity = learner.method.capacity()
    wings = sum(capacity.wings) if capacity else 0
    return {"task": len(learner.tasks_), "seconds": round(seconds, 3), "wings": wings}


def answered(learner: Learner, images: Tensor, shortlist: int) -> dict[str, float]:
    """Ask images in the plain way, faster, and with a shortlist."""
    ways = {"ms_all": None, "ms_fast": Speed(), "ms_shortlist": Speed(shortlist)}
    return {name: milliseconds(predictor_of(learner, speed), images) for name, speed in ways.items()}


def predictor_of(learner: Learner, speed: Speed | None) -> Predictor:
    return build_predictor(learner.method, len(learner.tasks_), speed, learner.calibration)


def milliseconds(predictor: Predictor, images: Tensor) -> float:
    """For each image; the best of some repeats, since what else the machine does only ever adds."""
    best = min(seconds(lambda: predictor.predict_scores(images)) for _ in range(REPEATS))
    return round(1000 * best / len(images), 3)


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def asked(stream: Stream, learner: Learner, count: int) -> Tensor:
    """The same images after every task, of all classes alike."""
    tests = torch.cat([prepare(task.test.images, learner.trunk.card.preprocessing) for task in stream])
    return tests[torch.linspace(0, len(tests) - 1, count).long()]


def megabytes(learner: Learner) -> float:
    """Of the file that the learner would be saved to."""
    return round(sum(value.nbytes for value in learner.state()[0].values()) / 1e6, 2)


def forget_peak() -> None:
    if HIGH_WATER.exists():
        HIGH_WATER.write_text("5")


def peak_mb() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    (kilobytes,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return round(int(kilobytes) / 1e3, 1)


def growth(lines: list[dict[str, Any]]) -> dict[str, float]:
    """By how much the last tasks cost more than those around the tenth, where there are so many."""
    if len(lines) < AFTER:
        return {}
    early, late = lines[AFTER - 1 - COMPARED // 2 :][:COMPARED], lines[-COMPARED:]
    names = ("seconds", "ms_all", "ms_fast", "ms_shortlist", "peak_mb")
    return {name: round(mean(late, name) / mean(early, name), 3) for name in names}


def mean(lines: list[dict[str, Any]], name: str) -> float:
    return fmean(line[name] for line in lines if name in line)


# What stays in a folder


def keep(out: Path, learner: Learner, lines: list[dict[str, Any]]) -> None:
    """The model first: what is killed in between lacks the line of a task, and goes on with the next."""
    out.mkdir(parents=True, exist_ok=True)
    learner.save(out / "model.oar")
    (out / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "lines.jsonl").read_text().splitlines()]


def resumed(out: Path | None) -> tuple[Learner, list[dict[str, Any]]] | None:
    """The learner and the lines of a call that stopped."""
    if out is None or not (out / "model.oar").exists():
        return None
    return load(out / "model.oar"), read(out)


def draw(lines: list[dict[str, Any]], file: Path) -> None:
    plt.rcParams |= {"svg.hashsalt": "oarlock", "axes.spines.top": False, "axes.spines.right": False}
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    tasks = [line["task"] for line in lines]
    left.plot(tasks, [line["seconds"] for line in lines])
    left.set(xlabel="task", ylabel="seconds to learn it", ylim=(0, None))
    told = [line for line in lines if "ms_all" in line]
    for name, label in {"ms_all": "all tasks", "ms_fast": "compact", "ms_shortlist": "shortlist"}.items():
        right.plot([line["task"] for line in told], [line[name] for line in told], label=label)
    right.set(xlabel="tasks learned", ylabel="milliseconds an image", ylim=(0, None))
    right.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
