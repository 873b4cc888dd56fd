"""What a frozen trunk is worth: scikit-learn's LDA, all classes at once, on its features, and on all that ROW's β
looks at, lower stages included. Prints one JSON line.

    python benchmarks/frozen_lda.py cifar10.npz --trunk efficientnet_lite0 --train 100 --test 100
    python benchmarks/frozen_lda.py cifar10.npz --trunk efficientnet_lite0 --train 400 --test 100 --validation
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from oarlock.data.images import prepare
from oarlock.nets.trunks import Trunk, load_trunk

CHUNK = 256


class Split(NamedTuple):
    """Prepared images and their labels."""

    images: Tensor
    labels: np.ndarray

    @torch.no_grad()
    def seen_by(self, look: Callable[[Tensor], Tensor]) -> np.ndarray:
        return torch.cat([look(chunk) for chunk in self.images.split(CHUNK)]).numpy()


def split(data: Any, part: str, trunk: Trunk, count: int, skipped: int = 0) -> Split:
    """So many images of every class."""
    labels = data[f"{part}_y"]
    of_classes = (np.flatnonzero(labels == label) for label in np.unique(labels))
    rows = np.concatenate([places[skipped : skipped + count] for places in of_classes])
    return Split(prepare(data[f"{part}_x"][rows], trunk.card.preprocessing), labels[rows])


def accuracy(known: np.ndarray, labels: np.ndarray, asked: np.ndarray, truth: np.ndarray) -> float:
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(known, labels)
    return round(100 * float(lda.score(asked, truth)), 1)


def lower_stages(trunk: Trunk, images: Tensor) -> Tensor:
    return trunk.below_and_bare(images, 0)[1].flatten(1)[:, : trunk.bare_dim]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="an .npz file with train_x, train_y, test_x, test_y")
    parser.add_argument("--trunk", default="vit_pico")
    parser.add_argument("--train", type=int, default=100, help="images per class")
    parser.add_argument("--test", type=int, default=100, help="images per class")
    parser.add_argument("--validation", action="store_true", help="test on training images that follow instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trunk, data = load_trunk(options.trunk), np.load(options.data, allow_pickle=False)
    start = time.perf_counter()
    train = split(data, "train", trunk, options.train)
    if options.validation:
        test = split(data, "train", trunk, options.test, skipped=options.train)
    else:
        test = split(data, "test", trunk, options.test)
    known, asked = train.seen_by(trunk), test.seen_by(trunk)
    seconds = time.perf_counter() - start
    look = partial(lower_stages, trunk)
    result = {
        "trunk": options.trunk,
        "train": len(known),
        "test": len(asked),
        "validation": options.validation,
        "lda": accuracy(known, train.labels, asked, test.labels),
        "lda_with_lower_stages": accuracy(train.seen_by(look), train.labels, test.seen_by(look), test.labels),
        "feature_length": round(float(np.linalg.norm(known, axis=1).mean()), 1),
        "ms_per_image": round(1000 * seconds / (len(known) + len(asked)), 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
