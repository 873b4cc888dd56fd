"""Draw the bundled sample from CIFAR: python tools/make_sample.py CIFAR10.npz CIFAR100.npz

Each archive holds train_x, train_y, test_x, test_y (uint8) and classes. The images become three lossless
PNG mosaics, row by row in class order; sample.json says what they hold.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SAMPLE = Path(__file__).parents[1] / "src/oarlock/data/sample"
UNKNOWN = ["apple", "bicycle", "bottle", "chair", "clock"]
UNKNOWN += ["dolphin", "mushroom", "rabbit", "skyscraper", "tulip"]
ABOUT = {
    "source": "train and test: CIFAR-10; unknown: test images of ten classes of CIFAR-100",
    "citation": "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, "
    "University of Toronto, 2009",
    "licence": "The authors state no licence; they ask users of either data set to cite the report.",
}


def first_of_each(images: np.ndarray, labels: np.ndarray, classes: list[int], count: int) -> np.ndarray:
    return np.concatenate([images[np.flatnonzero(labels == label)[:count]] for label in classes])


def mosaic(images: np.ndarray, columns: int) -> Image.Image:
    _, height, width, channels = images.shape
    rows = images.reshape(-1, columns, height, width, channels).transpose(0, 2, 1, 3, 4)
    return Image.fromarray(rows.reshape(-1, columns * width, channels))


def main(cifar10: str, cifar100: str) -> None:
    ten, hundred = np.load(cifar10), np.load(cifar100)
    names = ten["classes"].tolist()
    known = list(range(len(names)))
    unknown = [hundred["classes"].tolist().index(name) for name in UNKNOWN]
    parts = {
        "train": (first_of_each(ten["train_x"], ten["train_y"], known, 200), names, 50),
        "test": (first_of_each(ten["test_x"], ten["test_y"], known, 50), names, 50),
        "unknown": (first_of_each(hundred["test_x"], hundred["test_y"], unknown, 30), UNKNOWN, 30),
    }
    SAMPLE.mkdir(exist_ok=True)
    mosaics = {}
    for part, (images, classes, columns) in parts.items():
        mosaic(images, columns).save(SAMPLE / f"{part}.png", optimize=True)
        mosaics[part] = {
            "classes": classes,
            "images_per_class": len(images) // len(classes),
            "columns": columns,
            "sha256": hashlib.sha256(images.tobytes()).hexdigest(),
        }
    description = json.dumps({**ABOUT, "side": 32, "mosaics": mosaics}, indent=1)
    (SAMPLE / "sample.json").write_text(description + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
