"""CIFAR-10 and CIFAR-100 as torchvision knows them, checksums included."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10, CIFAR100

from oarlock.data.datasets import data_directory, dataset, described, filling
from oarlock.data.sources import Labelled, Source
from oarlock.errors import OarlockError

READERS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def open_cifar(name: str, folder: Path | None, classes: Sequence[str]) -> Source:
    """Return the data set in torchvision's layout: from the folder that torchvision's own is in, or that one itself;
    without a folder the downloaded one. `classes` are the names of labels 0, 1, …"""
    reader = READERS[name]
    if folder is None:
        with filling(data_directory()) as root:
            train, test = _read(reader, root, download=True)
    else:
        root = folder.parent if folder.name == reader.base_folder else folder
        if not (root / reader.base_folder).is_dir():
            raise OarlockError(f"{folder}: has no folder {reader.base_folder}; pass the folder it is in, or an .npz")
        train, test = _read(reader, root, download=False)
    names = np.array(classes)
    train_images, test_images = (Labelled(part.data, names[np.array(part.targets)]) for part in (train, test))
    return Source(name, tuple(classes), train_images, test_images)


def _read(reader: type[CIFAR10], root: Path, download: bool) -> tuple[CIFAR10, CIFAR10]:
    try:
        return reader(root, train=True, download=download), reader(root, train=False)
    except (OSError, RuntimeError, EOFError) as problem:  # of the network, the disk, a checksum, an archive
        if not download:
            raise OarlockError(f"{root / reader.base_folder}: damaged or not complete; get it again") from problem
        raise OarlockError(
            f"{reader.url} could not be downloaded to {root} ({problem}): "
            "get it another way, and pass its folder or an .npz with --data"
        ) from problem


@dataset("cifar10", **described("cifar10"))
def cifar10(folder: Path | None, wanted: Sequence[str]) -> Source:
    """Return CIFAR-10."""
    return open_cifar("cifar10", folder, described("cifar10")["classes"])


@dataset("cifar100", **described("cifar100"))
def cifar100(folder: Path | None, wanted: Sequence[str]) -> Source:
    """Return CIFAR-100."""
    return open_cifar("cifar100", folder, described("cifar100")["classes"])
