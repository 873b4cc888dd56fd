"""Milliseconds per image against the number of tasks: reference style, all tasks, a shortlist. Prints one JSON line.

    python benchmarks/predict_cost.py [--tasks 1,2,5,10,20,50,100,200] [--shortlist 3] [--images 32] [--threads 2]

Tasks are simulated: two classes each, gates drawn at random and half of them open, Gaussians of random features. What
a pass costs does not depend on the values. Reference style is measured on fewer images where tasks are many.
"""

import json
import warnings

import torch
from measuring import Clock, new_parser, parse
from predicting import timing, to_ms
from reference import ReferenceRow
from workloads import row_of

from oarlock import Learner
from oarlock.methods.oar import Oar
from oarlock.nets.trunks import BUNDLED
from oarlock.prediction import FastPredictor, Predictor, ShortlistPredictor
from oarlock.training import TaskData

CLASSES = 2
REPEATS = 2
PAIRS = 640  # (image, task) pairs that reference style is measured on, at least one image


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--tasks", default="1,2,5,10,20,50,100,200")
    parser.add_argument("--shortlist", type=int, default=3)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--adapt-last", type=int, help="stages with adapters; all, as in the paper, if left out")
    given = parse(parser)
    counts = [int(count) for count in given.tasks.split(",")]
    learner = Learner(
        "oar", trunk=BUNDLED, few=0, memory=CLASSES * max(counts), adapt_last=given.adapt_last, grow_below=0
    )
    row, rows = row_of(learner), {"reference": [], "all": [], "shortlist": []}
    size = learner.trunk.card.preprocessing.size
    images = torch.randint(0, 256, (given.images, 3, size, size), dtype=torch.uint8)
    for count in counts:
        while len(row.classes_per_task) < count:
            simulate_task(row)
        few = images[: max(PAIRS // count, 1)]
        rows["reference"].append(milliseconds(Predictor(ReferenceRow.like(row), count), few))
        rows["all"].append(milliseconds(FastPredictor(row, row.protector, count), images))
        rows["shortlist"].append(milliseconds(ShortlistPredictor(row, row.protector, count, given.shortlist), images))
    line = {"name": "predict_cost", "tasks": counts, "shortlist": given.shortlist, "ms_per_image": rows}
    print(json.dumps({**line, "adapt_last": given.adapt_last, "threads": given.threads}), flush=True)


def milliseconds(predictor: Predictor, images: torch.Tensor) -> float:
    """The best of some repeats: what else the machine does only ever adds."""
    measured = []
    for _ in range(REPEATS):
        clock = Clock()
        timing(predictor, images)(clock)
        measured.append(clock.seconds)
    return to_ms(min(measured), images)


@torch.no_grad()
def simulate_task(row: Oar) -> None:
    index = len(row.classes_per_task)
    random, dim = torch.Generator().manual_seed(index), row.trunk.dim
    task = TaskData(index, torch.zeros(0), torch.arange(4) % CLASSES, CLASSES, seed=0)
    row.begin(task)
    with warnings.catch_warnings(action="ignore"):  # with so many tasks no unit stays free
        row.protector.finish_task()
    many = torch.arange(dim + CLASSES) % CLASSES  # as many as give a whole covariance
    row.gaussians[index].fit(torch.randn(len(many), dim, generator=random), many)
    bare = torch.randn(4, dim * len(row.feature_sets(0)), generator=random)
    row.trunk_gaussians.add(bare, task.labels, CLASSES)


if __name__ == "__main__":
    main()
