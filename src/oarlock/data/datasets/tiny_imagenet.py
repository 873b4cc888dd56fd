"""Tiny-ImageNet in its original layout, in which the validation images are the test images.

tiny-imagenet-200/wnids.txt, words.txt
tiny-imagenet-200/train/<WordNet id>/images/*.JPEG
tiny-imagenet-200/val/val_annotations.txt, val/images/*.JPEG
"""

import io
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oarlock.data.datasets import data_directory, dataset, described, download, filling
from oarlock.data.folders import packed_files
from oarlock.data.pictures import open_picture
from oarlock.data.sources import Labelled, Source
from oarlock.errors import OarlockError

SIDE = 64
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
_TEXTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")


@dataset("tiny-imagenet", **described("tiny-imagenet"))
def open_tiny_imagenet(path: Path | None, wanted: Collection[str] | None = None) -> Source:
    """Return the data set in a folder, a .zip or a .tar; without a path the downloaded one. `wanted` are the WordNet
    ids of the classes to read, all if not given.

    Classes and images are sorted by WordNet id and file name, so that neither depends on how they are packed.
    """
    path = path or _downloaded()
    layout = _first_look(path)
    names = {wnid: name for wnid, name in layout.names.items() if wanted is None or wnid in wanted}
    parts: list[Labelled] = []
    places: dict[str, np.ndarray] = {}  # where each image goes
    for files in (layout.train, layout.val):
        chosen = sorted((wnid, file) for file, wnid in files.items() if wnid in names)
        pixels = np.empty((len(chosen), SIDE, SIDE, 3), np.uint8)
        places |= {file: image for (_, file), image in zip(chosen, pixels, strict=True)}
        parts.append(Labelled(pixels, np.array([names[wnid] for wnid, _ in chosen], str)))
    for file, content in packed_files(path, places.__contains__):
        if content is not None:
            places[file][:] = _decode(content, f"{path}: {file}")
    wnids = {name: wnid for wnid, name in names.items()}
    return Source("tiny-imagenet", tuple(wnids), parts[0], parts[1], wnids=wnids)


@dataclass(frozen=True)
class _Layout:
    names: dict[str, str]  # of classes, by WordNet id
    train: dict[str, str]  # the WordNet id of every image file
    val: dict[str, str]


def _first_look(path: Path) -> _Layout:
    """Which images there are and what they show; decodes none."""
    files, texts = [], {}
    for file, content in packed_files(path, lambda file: file.endswith(_TEXTS)):
        files.append(file)
        if content is not None:
            texts[file] = [line.split("\t") for line in content.decode("utf-8", "replace").splitlines() if line]
    root = next((file.removesuffix("wnids.txt") for file in sorted(texts) if file.endswith("wnids.txt")), None)
    if root is None and (packed := [file for file in files if file.endswith(_ARCHIVES)]):
        raise OarlockError(f"{path}: holds the archive {packed[0]}, no wnids.txt; unpack it and pass what is in it")
    if root is None:
        raise OarlockError(f"{path}: holds no wnids.txt, so it is not Tiny-ImageNet in its original layout")
    if missing := [text for text in _TEXTS if root + text not in texts]:
        raise OarlockError(f"{path}: has no {missing[0]}, which Tiny-ImageNet's original layout has")
    wnids, words, annotations = (texts[root + text] for text in _TEXTS)
    shown = {f"{root}val/images/{line[0]}": line[1] for line in annotations if len(line) > 1}
    images = [file for file in files if file.endswith(".JPEG") and file.startswith(root)]
    train = {file: file.removeprefix(root).split("/")[1] for file in images if file.startswith(f"{root}train/")}
    val = {file: shown.get(file, "") for file in images if file.startswith(f"{root}val/")}
    if unlabelled := [file for file, wnid in val.items() if not wnid]:
        raise OarlockError(f"{path}: {unlabelled[0]} is not in val_annotations.txt, so its class is not known")
    return _Layout(_names(sorted({line[0].strip() for line in wnids}), words), train, val)


def _names(wnids: list[str], words: list[list[str]]) -> dict[str, str]:
    """The first word for each class, with the WordNet id where two classes share it."""
    known = {line[0]: line[1].split(",")[0].strip() for line in words if len(line) > 1}
    names = {wnid: known.get(wnid, wnid) for wnid in wnids}
    counts = Counter(names.values())
    return {wnid: name if counts[name] == 1 else f"{name} ({wnid})" for wnid, name in names.items()}


def _decode(content: bytes, name: str) -> np.ndarray:
    try:
        with open_picture(io.BytesIO(content)) as image:
            width, height = image.size
            if (width, height) == (SIDE, SIDE):
                return np.asarray(image.convert("RGB"))  # some are grey
    except Exception as problem:  # Pillow raises many kinds for damaged files
        raise OarlockError(f"{name}: not a readable image ({problem}); get the data set again") from problem
    raise OarlockError(f"{name}: is {width}x{height} pixels, but Tiny-ImageNet's images are {SIDE}x{SIDE}")


def _downloaded() -> Path:
    with filling(data_directory()) as directory:
        path = directory / "tiny-imagenet-200.zip"
        if path.exists():
            return path
        try:
            return download(URL, path, md5=MD5)
        except OarlockError as problem:
            raise OarlockError(f"{problem}: get it another way, and pass it with --data PATH") from None
