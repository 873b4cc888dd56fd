"""A folder of many images, some of them broken, answered by `oarlock predict --on ray --out` and by the plain
command: is every image there once, are the answers the same, how much memory does it take, and how long?

    python benchmarks/predict_many.py --images 20000 --few 5000
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from measuring import new_parser, parse, report
from PIL import Image

from oarlock import Learner
from oarlock.data.sources import open_source
from oarlock.nets.trunks import BUNDLED

GOAL = 0.8  # of the plain command's images in a second, where both have the same processors
FIELDS = ("label", "unknown", "task")


class Done(NamedTuple):
    """Hold what a command took: seconds, and megabytes of its processes that no other has, at the most."""

    seconds: float
    peak_mb: float


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--few", type=int, default=5_000, help="images that memory is compared with")
    parser.add_argument("--broken", type=float, default=0.01, help="share of files that are no images")
    parser.add_argument("--side", type=int, default=64, help="pixels of an image")
    given = parse(parser)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = learn(folder)
        broken = make_images(folder / "many", given.images, given.broken, given.side)
        make_images(folder / "few", given.few, given.broken, given.side)
        few = run(folder, model, "few", "--on", "ray", "--out", "few.parquet")
        many = run(folder, model, "many", "--on", "ray", "--out", "many.jsonl")
        plain = run(folder, model, "many", "--threads", os.cpu_count() or 1, "--out", "plain.jsonl")
        ours, theirs = read(folder / "many.jsonl"), read(folder / "plain.jsonl")
        paths = [row["path"] for row in ours]
        readable = [(a, b) for a, b in zip(ours, theirs, strict=True) if "error" not in b]
        report(
            "predict_many",
            plain.seconds / many.seconds,
            GOAL,
            0.0,
            images=given.images,
            every_image_once=paths == sorted(f"many/{number:06d}.jpg" for number in range(given.images)),
            errors_where_broken=[row["path"] for row in ours if "error" in row] == broken,
            other_answers=sum(any(a[field] != b[field] for field in FIELDS) for a, b in readable),
            largest_difference=max(abs(a["probability"] - b["probability"]) for a, b in readable),
            peak_mb={str(given.few): few.peak_mb, str(given.images): many.peak_mb, "plain": plain.peak_mb},
            seconds={"ray": round(many.seconds, 1), "plain": round(plain.seconds, 1)},
            images_per_second={"ray": rate(given.images, many), "plain": rate(given.images, plain)},
        )


def learn(folder: Path) -> Path:
    """A model that knows the bundled sample's first four classes."""
    train = open_source("sample").train
    learner, labels = Learner("slda", trunk=BUNDLED), np.asarray(train.labels)
    for task in np.unique(labels)[:4].reshape(2, 2):
        rows = np.isin(labels, task)
        learner.learn(np.asarray(train.images)[rows], labels[rows].tolist())
    learner.save(folder / "model.oar")
    return folder / "model.oar"


def make_images(folder: Path, count: int, broken: float, side: int) -> list[str]:
    """So many photographs, the sample's with noise on them; return which ones are none."""
    folder.mkdir()
    pictures = np.asarray(open_source("sample").test.images)
    every = round(1 / broken) if broken else count + 1
    bad = []
    for number in range(count):
        path = folder / f"{number:06d}.jpg"
        if number % every == every - 1:
            path.write_bytes(b"\xff\xd8\xff no picture")
            bad.append(f"{folder.name}/{path.name}")
            continue
        noise = np.random.default_rng(number).normal(0, 8, (32, 32, 3))
        picture = np.clip(pictures[number % len(pictures)] + noise, 0, 255).astype(np.uint8)
        Image.fromarray(picture).resize((side, side)).save(path)
    return bad


def run(folder: Path, model: Path, images: str, *options: object) -> Done:
    code = "from oarlock.cli import main; main()"
    command = [sys.executable, "-c", code, "predict", model, images, "--batch", 64, *options]
    started, peak = time.perf_counter(), [0.0]
    process = subprocess.Popen([str(part) for part in command], cwd=folder, stdout=subprocess.DEVNULL)
    watcher = threading.Thread(target=watch, args=(process, peak))
    watcher.start()
    code_of = process.wait()
    watcher.join()
    assert code_of == 0, f"exit code {code_of}"
    return Done(time.perf_counter() - started, round(peak[0] / 2**20, 1))


def watch(process: subprocess.Popen, peak: list[float]) -> None:
    """Take down the most memory that a process and those it started had together."""
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(own_bytes, tree(process.pid))))
        time.sleep(1)


def tree(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.Error:
        return []


def own_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def rate(images: int, done: Done) -> float:
    return round(images / done.seconds, 1)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
