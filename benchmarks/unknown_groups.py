"""How well the groups of `oarlock unknowns` match classes that were never learned: one JSON line.

A model of the bundled sample's ten classes looks at images of other classes, some classes at a time; those it rejects
are grouped. Purity is the share of images that are of the most frequent class of their group; beside it, what one
group for all would have, k-means with the right number of groups on the bare trunk's features and on the tasks'
features, and the number that is found when none is given.

python benchmarks/unknown_groups.py cifar100.npz [--model runs/demo/model.oar]
"""

import argparse
import json

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.preprocessing import normalize

from oarlock import Learner, load
from oarlock.data.images import prepare
from oarlock.data.sources import open_source
from oarlock.modelfile.unknowns import group_images
from oarlock.nets.trunks import BUNDLED

ACCEPT = 0.95
CLASSES = (1, 2, 3, 5, 8, 12)  # at a time


def learn_sample() -> Learner:
    sample, learner = open_source("sample"), Learner("oar", trunk=BUNDLED)
    for first in range(0, len(sample.classes), 2):
        task = sample.train.of(sample.classes[first : first + 2])
        learner.learn(task.images, task.labels)
    return learner


def purity(classes: np.ndarray, groups: np.ndarray) -> float:
    """
    >>> purity(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
    0.75
    """
    return float(sum(np.bincount(classes[groups == group]).max() for group in np.unique(groups)) / len(classes))


def k_means(features: np.ndarray, groups: int) -> np.ndarray:
    return KMeans(groups, n_init=5, random_state=0).fit_predict(features)


@torch.no_grad()
def both_features(learner: Learner, images: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Of the bare trunk, and of all tasks side by side; of length 1 each."""
    bare = torch.cat([learner.trunk(chunk) for chunk in images.split(256)]).numpy()
    tasks = learner.method.encode(images, range(len(learner.tasks_))).unbind(1)
    return normalize(bare), np.concatenate([normalize(task.numpy()) for task in tasks], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="an .npz file with train_x, train_y: classes that the model does not know")
    parser.add_argument(
        "--model", help="a model of a method with a protector; without it, ROW learns the bundled sample"
    )
    parser.add_argument("--images", type=int, default=100, help="per class, before the known-looking are left out")
    parser.add_argument("--draws", type=int, default=12, help="choices of classes for each number of them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    learner = load(options.model) if options.model else learn_sample()
    data, random = np.load(options.data, allow_pickle=False), np.random.default_rng(0)
    labels = data["train_y"]
    rows = np.concatenate([np.flatnonzero(labels == label)[: options.images] for label in np.unique(labels)])
    rejected = learner.predict(data["train_x"][rows], accept=ACCEPT) == None  # noqa: E711 (element by element)
    share, rows = rejected.mean(), rows[rejected]
    images, labels = prepare(data["train_x"][rows], learner.trunk.card.preprocessing), labels[rows]
    bare, tasks = both_features(learner, images)
    results = []
    for count in CLASSES:
        measured = []
        for _ in range(options.draws):
            chosen = np.isin(labels, random.choice(np.unique(labels), count, replace=False))
            mine, found = labels[chosen], group_images(learner, images[chosen]).groups
            measured.append(
                {
                    "images": len(mine),
                    "one_group": purity(mine, np.zeros(len(mine))),
                    "bare": purity(mine, k_means(bare[chosen], count)),
                    "tasks": purity(mine, k_means(tasks[chosen], count)),
                    "found_groups": found.max() + 1,
                    "found": purity(mine, found),
                }
            )
        means = {name: float(np.mean([one[name] for one in measured])) for name in measured[0]}
        results.append({"classes": count, **{name: round(value, 3) for name, value in means.items()}})
    print(json.dumps({"name": "unknown_groups", "rejected": round(float(share), 3), "purity": results}))


if __name__ == "__main__":
    main()
