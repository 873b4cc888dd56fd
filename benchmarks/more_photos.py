"""More photographs of known classes: what they do for photographs like them, and to all others. One line of JSON.

    python benchmarks/more_photos.py TRAIN TEST --classes 50 --increment 10

TRAIN and TEST are folders of class folders; TEST's photographs are of another place. A model learns from TRAIN.
Then it is taught half of TEST's photographs of every second class, in one lesson, and asked about the other half of
TEST's photographs, of all classes, before and after.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oarlock import Learner
from oarlock.data.folders import class_folders, image_files
from oarlock.modelfile.inspect import check_tasks

LEAST = 18, 4  # photographs that a class must have in TRAIN, and in TEST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--increment", type=int, default=10)
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--method", default="oar")
    parser.add_argument("--trunk", default="efficientnet_lite0")
    parser.add_argument("--size", type=int)
    parser.add_argument("--memory", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(json.dumps(measure(asked)), flush=True)


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Return accuracies in percent, before and after."""
    train, test = (
        {name: image_files(path) for name, path in class_folders(f).items()} for f in (asked.train, asked.test)
    )
    names = [name for name, files in train.items() if len(files) >= LEAST[0] and len(test.get(name, ())) >= LEAST[1]]
    random.Random(100 + asked.order).shuffle(names)
    names = names[: asked.classes]
    learner = Learner(asked.method, trunk=asked.trunk, size=asked.size, memory=asked.memory)
    for start in range(0, len(names), asked.increment):
        learner.learn(*labelled(train, names[start : start + asked.increment]))
    taught, asked_about = halves(test, names[::2])[0], halves(test, names)[1]
    images, truth = labelled(asked_about, names)
    new = np.isin(truth, names[::2])
    before = shares(learner, images, truth, new)
    learner.learn(*labelled(taught, names[::2]), more=True)
    return {
        "method": asked.method,
        "classes": len(names),
        "pixels": learner.trunk.size,
        "photos": {"more": sum(map(len, taught.values())), "test": len(truth)},
        "before": before,
        "after": shares(learner, images, truth, new),
        "promises hold": all(task.check.holds and not task.check.changed for task in check_tasks(learner)),
    }


def halves(files: dict[str, Any], names: list[str]) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Return every second photograph of each class, in a random order, and the others."""
    mixed = {name: random.Random(name).sample(list(files[name]), len(files[name])) for name in names}
    return {name: some[::2] for name, some in mixed.items()}, {name: some[1::2] for name, some in mixed.items()}


def labelled(files: dict[str, Any], names: list[str]) -> tuple[list[Path], list[str]]:
    return [path for name in names for path in files[name]], [name for name in names for _ in files[name]]


def shares(learner: Learner, images: list[Path], truth: list[str], new: np.ndarray) -> dict[str, float]:
    """Return how many of the photographs are answered right: of the classes with more, of the others, of all."""
    right = learner.predict(images) == np.array(truth)
    parts = {"classes with more": right[new], "the others": right[~new], "all": right}
    return {name: round(100 * float(part.mean()), 1) for name, part in parts.items()}


if __name__ == "__main__":
    main()
