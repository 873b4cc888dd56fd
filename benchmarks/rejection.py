"""Which detector tells unknown inputs best, and do thresholds keep what they promise? One training, all detectors.

    python benchmarks/rejection.py [SOURCE] [--increment 10,10,10,10,10] [--orders 5] [--method row] [--threads 1]

Unknown inputs are the source's own, or else the test images of the classes that the increments do not reach. Known
ones are the test images. Thresholds come from images that were kept out of training. Prints one JSON line for every
detector that the method can use, means over class orders; best AUROC last.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import oarlock
from oarlock.data.images import prepare
from oarlock.data.sources import Pictures, open_source
from oarlock.experiments.config import RunConfig
from oarlock.experiments.detection import detect, usable
from oarlock.experiments.run import run
from oarlock.learner import Learner
from oarlock.methods import methods

ACCEPT = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="sample")
    parser.add_argument("--increment", default="2,2,2,2,2")
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--method", default="oar")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    increment = [int(size) for size in given.increment.split(",")]
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in usable(methods.find(given.method).evidence)}
    for order in range(1, 1 + given.orders):
        config = RunConfig(given.source, given.method, increment=increment, order=order, threads=given.threads)
        for name, measured in measure(config, taught(config)).items():
            rows[name].append(measured)
    for detector, of_orders in sorted(rows.items(), key=lambda item: np.mean([row["auroc"] for row in item[1]])):
        means = {name: round(float(np.mean([row[name] for row in of_orders])), 4) for name in of_orders[0]}
        accepted = [round(row["accepted"], 4) for row in of_orders]
        print(
            json.dumps({"source": Path(given.source).name, "detector": detector, **means, "each accepted": accepted})
        )


def taught(config: RunConfig) -> Learner:
    with tempfile.TemporaryDirectory() as out:
        run(config, Path(out))
        return oarlock.load(Path(out) / "model.oar")


def measure(config: RunConfig, learner: Learner) -> dict[str, dict[str, float]]:
    """For every detector AUROC, FPR@95, and the share of known test images that the line for 95 % accepts."""
    method, rule = learner.method, learner.trunk.card.preprocessing

    def encode(images: Tensor) -> Tensor:
        return method.encode(images, method.feature_sets(len(learner.tasks_)))

    known = encode(torch.cat([prepare(task.test.images, rule) for task in config.stream()]))
    found = detect(learner, known, encode(prepare(unknown_images(config), rule)), ACCEPT)
    return {one.detector: {"auroc": one.auroc, "fpr95": one.fpr95, "accepted": one.accepted or 0.0} for one in found}


def unknown_images(config: RunConfig) -> Pictures:
    stream = config.stream()
    if stream.unknown is not None:
        return stream.unknown
    source = open_source(config.source)
    return source.test.of(set(source.classes) - set(stream.classes)).images


if __name__ == "__main__":
    main()
