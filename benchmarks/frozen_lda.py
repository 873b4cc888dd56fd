"""What a trunk's frozen features are worth: scikit-learn's LDA on them, all classes at once. Prints one JSON line.

python benchmarks/frozen_lda.py cifar10.npz --trunk efficientnet_lite0 --train 100 --test 100
"""

import argparse
import json
import time

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from oarlock.data.images import prepare
from oarlock.nets.trunk import Trunk, load_trunk

CHUNK = 256


@torch.no_grad()
def features(trunk: Trunk, images: np.ndarray) -> np.ndarray:
    prepared = prepare(images, trunk.card.preprocessing)
    return torch.cat([trunk(chunk) for chunk in prepared.split(CHUNK)]).numpy()


def first(labels: np.ndarray, count: int) -> np.ndarray:
    """Where the first images of every class are."""
    return np.concatenate([np.flatnonzero(labels == label)[:count] for label in np.unique(labels)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="an .npz file with train_x, train_y, test_x, test_y")
    parser.add_argument("--trunk", default="vit_pico")
    parser.add_argument("--train", type=int, default=100, help="images per class")
    parser.add_argument("--test", type=int, default=100, help="images per class")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trunk, data = load_trunk(options.trunk), np.load(options.data, allow_pickle=False)
    train, test = first(data["train_y"], options.train), first(data["test_y"], options.test)
    start = time.perf_counter()
    known, asked = (features(trunk, data[f"{part}_x"][rows]) for part, rows in (("train", train), ("test", test)))
    seconds = time.perf_counter() - start
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(known, data["train_y"][train])
    result = {
        "trunk": options.trunk,
        "train": len(train),
        "test": len(test),
        "lda": round(100 * lda.score(asked, data["test_y"][test]), 1),
        "feature_length": round(float(np.linalg.norm(known, axis=1).mean()), 1),
        "ms_per_image": round(1000 * seconds / (len(train) + len(test)), 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
