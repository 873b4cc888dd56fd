"""Images with labels, and where they come from: the bundled sample, an .npz archive, a folder, a public data set."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from oarlock.data.folders import files_by_class, image_files, size_of
from oarlock.data.pictures import open_picture
from oarlock.errors import OarlockError

Pictures: TypeAlias = np.ndarray | tuple[Path, ...]  # uint8 [N, H, W, 3], or files read when they are needed

_SAMPLE = Path(__file__).parent / "sample"
_TEST_SHARE = 0.2
_REQUIRED_KEYS = ("train_x", "train_y", "test_x", "test_y")
_OPTIONAL_KEYS = ("classes", "unknown_x")


def hash_ranking(keys: Iterable[str]) -> list[int]:
    """Return the positions of the keys, ranked by sha256: a shuffle that no library version can change.

    >>> hash_ranking(["ant", "bee", "cat"])
    [1, 0, 2]
    """
    digests = [hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() for key in keys]
    return sorted(range(len(digests)), key=digests.__getitem__)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold images with a class name each.

    >>> two = Labelled(np.zeros((10, 8, 8, 3), dtype=np.uint8), np.array(["ant", "bee"] * 5))
    >>> ants = two.of(["ant"])
    >>> len(ants)
    5
    >>> rest, share = ants.split(0.4)
    >>> len(rest), len(share)
    (3, 2)
    >>> len(two.at_most(3))
    6
    """

    images: Pictures
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, classes: Iterable[str]) -> "Labelled":
        """Return the images of some classes, in the order they have here."""
        return self._where(np.isin(self.labels, list(classes)))

    def split(self, share: float) -> "tuple[Labelled, Labelled]":
        """Return (the rest, a share of each class): at least one image of each class where it has two, never all.

        Which images are shared out depends on file names (for arrays, on positions within the class) and on
        nothing else: not on other classes, not on where a folder lies.
        """
        if not 0 < share < 1:
            raise OarlockError(f"share {share}: choose a share between 0 and 1, both excluded")
        taken = np.zeros(len(self), dtype=bool)
        for ranked in self._ranked():
            count = min(max(1, round(share * len(ranked))), len(ranked) - 1)
            taken[ranked[:count]] = True
        return self._where(~taken), self._where(taken)

    def at_most(self, count: int) -> "Labelled":
        """Return so many images of each class where it has more, chosen as in `split`; else all it has."""
        taken = np.zeros(len(self), dtype=bool)
        for ranked in self._ranked():
            taken[ranked[:count]] = True
        return self._where(taken)

    def sha256(self) -> str:
        """Return a hash that tells image sets apart: by pixels where it has them, or by names and sizes of files."""
        digest = hashlib.sha256("\n".join(self.labels.tolist()).encode("utf-8", "surrogateescape"))
        if isinstance(self.images, np.ndarray):
            digest.update(np.ascontiguousarray(self.images).data)
        else:
            files = "\n".join(f"{path.name} {size_of(path)}" for path in self.images)
            digest.update(files.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _ranked(self) -> Iterable[np.ndarray]:
        """The images of each class in turn, shuffled by what they are called."""
        for name in np.unique(self.labels):
            members = np.flatnonzero(self.labels == name)
            yield members[hash_ranking(f"{name}/{key}" for key in self._keys(members))]

    def _keys(self, members: np.ndarray) -> Iterable[object]:
        if isinstance(self.images, np.ndarray):
            return range(len(members))
        return [self.images[i].name for i in members]

    def _where(self, chosen: np.ndarray) -> "Labelled":
        if isinstance(self.images, np.ndarray):
            return Labelled(self.images[chosen], self.labels[chosen])
        return Labelled(tuple(self.images[i] for i in np.flatnonzero(chosen)), self.labels[chosen])


@dataclass(frozen=True, eq=False)
class Source:
    """Hold a data set: classes in their listed order, what to train and test on, and inputs of no learned class.

    >>> sample = open_source("sample")
    >>> len(sample.classes), len(sample.train), len(sample.test), len(sample.unknown)
    (10, 2000, 500, 300)
    """

    name: str
    classes: tuple[str, ...]
    train: Labelled
    test: Labelled
    unknown: Pictures | None = None
    wnids: Mapping[str, str] = field(default_factory=dict)  # WordNet ids by class name, where they are known
    partial: bool = False  # has fewer images than the protocol it was opened for asks for


def open_source(where: str | Path, test: str | Path | None = None, unknown: str | Path | None = None) -> Source:
    """Return the data set called `where`.

    `"sample"` is the bundled one; `"cifar10"`, `"cifar100"` and `"tiny-imagenet"` are downloaded when they are first
    asked for (a folder of such a name is `"./sample"`). An `.npz` archive has train_x,
    train_y, test_x, test_y and may have classes and unknown_x. A folder has `train/<class>/` and
    `test/<class>/` (or `val/<class>/`) and may have `unknown/`; or it has only `<class>/`, and a fifth of
    each class is set aside as test. In place of that, `test` may be a folder `<class>/` of its own, and `unknown` one
    with images of no learned class.

    >>> open_source("sample").classes[:3]
    ('airplane', 'automobile', 'bird')
    """
    from oarlock.data.datasets import datasets

    if (test is not None or unknown is not None) and not Path(where).is_dir():
        raise OarlockError(
            f"{where} has its own test images: a test or an unknown folder goes with a folder of classes"
        )
    if where == "sample":
        return _open_sample()
    if where in datasets.all():
        return datasets.find(str(where)).open()
    path = Path(where)
    if path.is_dir():
        return _open_folder(path, test, unknown)
    if path.is_file() and path.suffix.lower() == ".npz":
        return _open_archive(path)
    problem = "is neither an .npz archive nor a folder" if path.exists() else "does not exist"
    raise OarlockError(
        f"data source {str(where)!r} {problem}: give 'sample', an .npz archive or a folder of images, "
        f"or the name of a public data set ({', '.join(datasets.all())})"
    )


def _open_sample() -> Source:
    description = json.loads((_SAMPLE / "sample.json").read_text(encoding="utf-8"))

    def pixels(part: str) -> np.ndarray:
        side, mosaic = description["side"], description["mosaics"][part]
        with open_picture(_SAMPLE / f"{part}.png") as image:
            tiles = np.asarray(image).reshape(-1, side, mosaic["columns"], side, 3).swapaxes(1, 2)
        images = np.ascontiguousarray(tiles.reshape(-1, side, side, 3))
        if hashlib.sha256(images.tobytes()).hexdigest() != mosaic["sha256"]:
            raise OarlockError(f"{_SAMPLE / part}.png: the bundled sample is damaged; install oarlock again")
        return images

    def labelled(part: str) -> Labelled:
        mosaic = description["mosaics"][part]
        return Labelled(pixels(part), np.repeat(mosaic["classes"], mosaic["images_per_class"]))

    classes = tuple(description["mosaics"]["train"]["classes"])
    return Source("sample", classes, labelled("train"), labelled("test"), pixels("unknown"))


def _open_folder(folder: Path, test: str | Path | None, unknown: str | Path | None) -> Source:
    split = is_split(folder)
    train_folder = folder / "train" if split else folder
    train = _labelled_files(train_folder)
    classes = _classes_of(train)
    if test is not None:
        tested = _tested_on(Path(test), classes, train_folder)
    elif split:
        tested = _tested_on(_own_test(folder), classes, train_folder)
    else:
        train, tested = train.split(_TEST_SHARE)
    if unknown is None and split and (folder / "unknown").is_dir():
        unknown = folder / "unknown"
    return Source(
        folder.resolve().name, classes, train, tested, None if unknown is None else image_files(Path(unknown))
    )


def is_split(folder: Path) -> bool:
    """Tell whether a folder has its training images apart. A class may be called "train" as well; its folder then
    holds images, not folders."""
    train = folder / "train"
    return train.is_dir() and any(entry.is_dir() for entry in train.iterdir())


def _own_test(folder: Path) -> Path:
    found = next((folder / part for part in ("test", "val") if (folder / part).is_dir()), None)
    if found is None:
        raise OarlockError(
            f"{folder}: has train but neither test nor val; add one, or open {folder / 'train'}, "
            "of which a fifth is then set aside"
        )
    return found


def _tested_on(folder: Path, classes: tuple[str, ...], train_folder: Path) -> Labelled:
    test = _labelled_files(folder)
    if extra := [name for name in _classes_of(test) if name not in classes]:
        raise OarlockError(f"{folder / extra[0]}: {train_folder} has no such class; add it there or remove it here")
    if missing := [name for name in classes if name not in _classes_of(test)]:
        raise OarlockError(f"{folder} has no images of {missing[0]!r}, a class of {train_folder}; add some")
    return test


def _labelled_files(folder: Path) -> Labelled:
    by_class = files_by_class(folder)
    paths = tuple(path for files in by_class.values() for path in files)
    return Labelled(paths, np.repeat(list(by_class), [len(files) for files in by_class.values()]))


def _classes_of(images: Labelled) -> tuple[str, ...]:
    return tuple(np.unique(images.labels).tolist())


def _open_archive(path: Path) -> Source:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive if key in _REQUIRED_KEYS + _OPTIONAL_KEYS}
    except Exception as error:  # the zip, zlib and npy readers each raise errors of their own
        raise OarlockError(f"{path}: not a readable .npz archive ({error}); write it again") from error
    try:
        return _source_from_arrays(path.stem, arrays)
    except OarlockError as error:
        raise OarlockError(f"{path}: {error}") from None


def _source_from_arrays(name: str, arrays: dict[str, np.ndarray]) -> Source:
    missing = [key for key in _REQUIRED_KEYS if key not in arrays]
    if missing:
        raise OarlockError(f"has no {', '.join(missing)}; an archive needs {', '.join(_REQUIRED_KEYS)}")
    classes = _listed_classes(arrays)
    train, test = (
        Labelled(_checked_images(arrays, f"{part}_x"), _checked_labels(arrays, part, classes))
        for part in ("train", "test")
    )
    unknown = _checked_images(arrays, "unknown_x") if "unknown_x" in arrays else None
    return Source(name, tuple(classes.tolist()), train, test, unknown)


def _listed_classes(arrays: dict[str, np.ndarray]) -> np.ndarray:
    if "classes" not in arrays:
        return np.unique(arrays["train_y"]).astype(str)  # sorted before they are names: 2 comes before 10
    classes = arrays["classes"]
    if classes.ndim != 1 or classes.dtype.kind != "U" or len(classes) == 0:
        raise OarlockError(f"classes is {classes.dtype} {classes.shape}; make it a list of class names")
    if len(np.unique(classes)) != len(classes):
        raise OarlockError("classes names a class twice; make the names different")
    return classes


def _checked_images(arrays: dict[str, np.ndarray], key: str) -> np.ndarray:
    images = arrays[key]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or 0 in images.shape:
        raise OarlockError(f"{key} is {images.dtype} {images.shape}; make it uint8 [N, H, W, 3] with images in it")
    return images


def _checked_labels(arrays: dict[str, np.ndarray], part: str, classes: np.ndarray) -> np.ndarray:
    key, labels = f"{part}_y", arrays[f"{part}_y"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise OarlockError(f"{key} is {labels.dtype} {labels.shape}; make it one integer or string per image")
    if len(labels) != len(arrays[f"{part}_x"]):
        raise OarlockError(
            f"{part}_x has {len(arrays[f'{part}_x'])} images but {key} has {len(labels)} labels; "
            "give each image one label"
        )
    if "classes" in arrays and labels.dtype.kind in "iu":
        known = (labels >= 0) & (labels < len(classes))
        names = classes[np.where(known, labels, 0).astype(np.intp)]
    else:
        names = labels.astype(str)
        known = np.isin(names, classes)
    if not known.all():
        stranger = labels[~known][0]
        listed = "classes" if "classes" in arrays else "train_y"
        raise OarlockError(f"{key} has the label {stranger!s}, which {listed} does not name; add it there")
    return names
