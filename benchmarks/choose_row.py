"""Choose ROW's prediction settings on validation images: one training per class order, many variants of it.

    python benchmarks/choose_row.py [SOURCE] [--validation SHARE] [--threads N]

A share of every class's training images is taken out of training and tested on; test images are never looked at.
Prints one JSON line per setting (mean accuracy over orders), best last.
"""

import argparse
import dataclasses
import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

import oarlock
from oarlock.data.images import prepare
from oarlock.experiments.config import RunConfig
from oarlock.experiments.run import run

ORDERS = (1, 2, 3)
GRID = {"tau": (1.0, 3.0, 5.0), "gamma": (1.0, 4.0, 8.0, 12.0), "beta": (1e-6, 0.4, 0.8, 1.0, 1.5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="sample")
    parser.add_argument("--validation", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    settings = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    accuracies = np.zeros((len(ORDERS), len(settings)))
    for number, order in enumerate(ORDERS):
        config = RunConfig(given.source, order=order, validation=given.validation, threads=given.threads)
        accuracies[number] = read(config, settings)
    means = accuracies.mean(0)
    for index in means.argsort():
        print(json.dumps({**settings[index], "accuracy": round(float(means[index]), 2)}))


def read(config: RunConfig, settings: list[dict[str, float]]) -> list[float]:
    """Validation accuracy of one training, read with each of the settings."""
    with tempfile.TemporaryDirectory() as out:
        run(config, Path(out))
        learner = oarlock.load(Path(out) / "model.oar")
    method, tests = learner.method, [task.test for task in config.stream()]
    images = torch.cat([prepare(test.images, learner.trunk.card.preprocessing) for test in tests])
    labels = np.concatenate([test.labels for test in tests])
    encoded = method.encode(images, method.feature_sets(len(learner.tasks_)))
    accuracies = []
    for setting in settings:
        method.config = dataclasses.replace(method.config, **setting)
        with torch.no_grad():
            answers = learner.classes_[method.scores(encoded).argmax(1).numpy()]
        accuracies.append(100 * float(np.mean(answers == labels)))
    return accuracies


if __name__ == "__main__":
    main()
