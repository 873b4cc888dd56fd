"""Images in whatever form a user has them, made into what a trunk sees: uint8 [N, 3, size, size]."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from oarlock.caches import allocate
from oarlock.data.folders import files_by_class, image_files
from oarlock.data.pictures import Preprocessing, fit_picture, open_picture
from oarlock.errors import OarlockError, all_together

Label: TypeAlias = str | int
OneImage: TypeAlias = Image.Image | np.ndarray | torch.Tensor | str | Path
Images: TypeAlias = np.ndarray | torch.Tensor | Sequence[OneImage] | Dataset[Any] | str | Path

_CHANNELS = (1, 3, 4)
_GLANCES = 32  # images looked at to tell how large they all are
_CHUNK = 64  # images converted, or files in flight, at a time: memory does not grow with what is read


def prepare(images: Images, rule: Preprocessing) -> torch.Tensor:
    """Return the images as one uint8 tensor [N, 3, size, size], in the order given.

    Images are a uint8 array or a float one in 0..1 (with or without channels; RGBA is laid on white), a list
    of PIL images, paths and arrays of any sizes, a file, a folder (every image below it, sorted by path), or
    a `torch.utils.data.Dataset` of images or (image, label) pairs.

    >>> rule = Preprocessing(size=32, resize=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> prepare(np.zeros((5, 48, 64, 3), dtype=np.uint8), rule).shape
    torch.Size([5, 3, 32, 32])
    """
    sized = _sized(images)
    return _collect(_batches(sized, rule), len(sized), rule)


def prepare_in_chunks(images: Images, rule: Preprocessing, size: int) -> Iterator[torch.Tensor]:
    """Return what `prepare` does, in pieces of `size` images, each made when it is asked for.

    >>> rule = Preprocessing(size=32, resize=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> [len(chunk) for chunk in prepare_in_chunks(np.zeros((5, 48, 64, 3), dtype=np.uint8), rule, 2)]
    [2, 2, 1]
    """
    sized = _sized(images)
    return _in_chunks(_batches(sized, rule), len(sized), rule, size)


def read_labelled(
    images: Images, labels: Sequence[Label] | np.ndarray | torch.Tensor | None, rule: Preprocessing
) -> tuple[torch.Tensor, list[Label]]:
    """Return prepared images and a label for each: what there is to learn.

    Labels may be left out where the images bring their own: a folder with one sub-folder per class, or a
    `Dataset` of (image, label) pairs.

    >>> rule = Preprocessing(size=32, resize=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> prepared, labels = read_labelled(np.zeros((2, 32, 32), dtype=np.uint8), np.array([7, 7]), rule)
    >>> prepared.shape, labels
    (torch.Size([2, 3, 32, 32]), [7, 7])
    """
    if labels is None and isinstance(images, Dataset):
        found: list[object] = []
        sized = _sized(images)
        prepared = _collect(_fit_each(_dataset_images(sized, found), rule), len(sized), rule)
        return prepared, checked_labels(found)
    if labels is None and isinstance(images, str | Path):
        by_class = files_by_class(Path(images))
        images = [path for files in by_class.values() for path in files]
        labels = [name for name, files in by_class.items() for _ in files]
    sized = _sized(images)
    names = labels_of(len(sized), labels)
    return prepare(sized, rule), names


def labels_of(images: int, labels: Any) -> list[Label]:
    """Return the labels of so many images, checked."""
    if labels is None:
        raise OarlockError(
            "labels were not given: pass one label per image, a folder with one sub-folder per class, "
            "or a Dataset of (image, label) pairs"
        )
    if isinstance(labels, str) or not hasattr(labels, "__getitem__") or getattr(labels, "ndim", 1) == 0:
        raise OarlockError(f"labels are {labels!r}: pass a list with one label per image")
    if images != len(labels):
        raise OarlockError(f"there are {images} images but {len(labels)} labels: pass one label per image")
    return checked_labels(labels)


def short_side(images: Images) -> int:
    """Return how many pixels the short side of an image has, as a rule: the median of a few, looked at without
    decoding files.

    >>> short_side(np.zeros((5, 48, 64, 3), dtype=np.uint8))
    48
    """
    sized = _sized(images)
    rows = sorted({len(sized) * step // _GLANCES for step in range(_GLANCES)})
    sides = [side for row in rows if (side := _short_side(sized[row])) is not None]
    return int(np.median(sides)) if sides else 0


def _short_side(image: Any) -> int | None:
    """None for a file that cannot be read: whoever reads it in full says why."""
    image = image[0] if isinstance(image, tuple | list) else image  # of a data set's pairs
    if isinstance(image, str | Path):
        with suppress(OSError, ValueError, Image.DecompressionBombError), open_picture(image) as file:
            return min(file.size)
        return None
    if isinstance(image, Image.Image):
        return min(image.size)
    pixels = np.asarray(image)
    places = pixels.shape[:2] if pixels.ndim == 2 or pixels.shape[-1] in _CHANNELS else pixels.shape[1:]
    return min(places, default=None)


def _sized(images: Images) -> Any:
    """The same images as something with a length: a batch [N, H, W, C], a list, or a Dataset."""
    sized: Any = image_files(Path(images)) if isinstance(images, str | Path) else images
    if hasattr(sized, "to_list"):  # a column of a table
        sized = sized.to_list()
    if isinstance(sized, np.ndarray | torch.Tensor):
        return _batch(sized)
    indexable = isinstance(sized, Sequence | Dataset) and not isinstance(sized, IterableDataset)
    if not indexable or not hasattr(sized, "__len__"):
        raise OarlockError(
            f"images are a {type(images).__name__}: pass a uint8 array, a list of PIL images, paths or "
            "arrays, a folder, or a Dataset with indices and a length"
        )
    if len(sized) == 0:
        raise OarlockError("no images were given: pass at least one")
    return sized


def _batches(images: Any, rule: Preprocessing) -> Iterator[np.ndarray]:
    if isinstance(images, np.ndarray):
        return _fit_array(images, rule)
    if isinstance(images, Dataset):
        return _fit_each(_dataset_images(images), rule)
    if all(isinstance(item, str | Path) for item in images):
        return _fit_files(list(images), rule)
    return _fit_each(images, rule)


def _collect(batches: Iterable[np.ndarray], count: int, rule: Preprocessing) -> torch.Tensor:
    return _filled(allocate([count, 3, rule.size, rule.size], torch.uint8), _each(batches))


def _in_chunks(batches: Iterable[np.ndarray], count: int, rule: Preprocessing, size: int) -> Iterator[torch.Tensor]:
    pictures = _each(batches)
    for start in range(0, count, size):
        chunk = torch.empty(min(size, count - start), 3, rule.size, rule.size, dtype=torch.uint8)
        yield _filled(chunk, pictures)


def _each(batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    return (picture for batch in batches for picture in batch)


def _filled(empty: torch.Tensor, pictures: Iterator[np.ndarray]) -> torch.Tensor:
    for place, picture in zip(empty.numpy(), pictures, strict=False):
        place[:] = picture.transpose(2, 0, 1)
    return empty


def _fit_array(batch: np.ndarray, rule: Preprocessing, first: int = 0) -> Iterator[np.ndarray]:
    """Batches [n, size, size, 3] from one [N, H, W, C] whose first image is the user's image `first`."""
    for start in range(0, len(batch), _CHUNK):
        chunk = _as_uint8(batch[start : start + _CHUNK], first + start)
        if chunk.shape[1:3] == (rule.size, rule.size) and chunk.shape[3] != 4:
            yield np.broadcast_to(chunk, (*chunk.shape[:3], 3))
        else:
            pictures = (Image.fromarray(x[..., 0] if x.shape[2] == 1 else x) for x in chunk)
            yield np.stack([fit_picture(x, f"image {i}", rule) for i, x in enumerate(pictures, first + start)])


def _fit_files(paths: list[str | Path], rule: Preprocessing) -> Iterator[np.ndarray]:
    """Pictures, up to the first file that cannot be read; then all those are looked for, to be named together."""
    broken: list[OarlockError] = []
    with closing(read_files(paths, rule, _CHUNK)) as files:
        for _, picture in files:
            if isinstance(picture, OarlockError):
                broken.append(picture)
            elif not broken:
                yield picture[None]
    if broken:
        raise all_together(broken)


def _fit_each(items: Iterable[object], rule: Preprocessing) -> Iterator[np.ndarray]:
    # One thread: a list may hold the same lazily loaded PIL image twice, and a Dataset is the user's code.
    for index, item in enumerate(items):
        if isinstance(item, np.ndarray | torch.Tensor):
            pixels = _channels_last(item, 3, f"image {index}")
            yield from _fit_array(pixels[None], rule, first=index)
        elif isinstance(item, Image.Image | str | Path):
            name = f"image {index}" if isinstance(item, Image.Image) else str(item)
            yield fit_picture(item, name, rule)[None]
        else:
            raise OarlockError(f"image {index} is a {type(item).__name__}: pass a PIL image, a path or a uint8 array")


def _batch(images: np.ndarray | torch.Tensor) -> np.ndarray:
    shape = tuple(images.shape)
    if 0 in shape:
        raise OarlockError(f"no images were given: the array has the shape {shape}; pass at least one image")
    one_image = len(shape) == 3 and (shape[0] == 3 if isinstance(images, torch.Tensor) else shape[-1] in _CHANNELS)
    if one_image:
        raise OarlockError(f"images have the shape {shape}, which looks like one image: put it in a list")
    return _channels_last(images, 4, "images")


def _channels_last(array: np.ndarray | torch.Tensor, axes: int, name: str) -> np.ndarray:
    """[..., H, W, C], a view where that is possible; an array with one axis fewer than `axes` is grey."""
    layouts = (-1, -3)
    if isinstance(array, torch.Tensor):
        layouts = (-3, -1)
        array = array.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).numpy()
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise OarlockError(
            f"{name}: pixels of type {array.dtype}; convert them to uint8 in 0..255 (or to floats in 0..1)"
        )
    if array.ndim == axes - 1:
        return array[..., None]
    for axis in layouts:
        if array.ndim == axes and array.shape[axis] in _CHANNELS:
            return np.moveaxis(array, axis, -1)
    wanted = ["[H, W]", "[H, W, C]", "[C, H, W]"] if axes == 3 else ["[N, H, W]", "[N, H, W, C]", "[N, C, H, W]"]
    raise OarlockError(f"{name}: the shape {array.shape} is none of {', '.join(wanted)} with C = 1, 3 or 4")


def _as_uint8(batch: np.ndarray, first: int) -> np.ndarray:
    if batch.dtype == np.uint8:
        return batch
    good = ((batch >= 0) & (batch <= 1)).all(axis=(1, 2, 3))  # NaN fails either comparison
    if not good.all():
        raise OarlockError(
            f"image {first + int(np.argmin(good))}: float pixels must lie in 0..1 and not be NaN; "
            "scale them, or pass uint8 pixels"
        )
    return np.rint(batch.astype(np.float32) * 255).astype(np.uint8)


def _dataset_images(dataset: Any, labels: list[object] | None = None) -> Iterator[object]:
    """The images of a data set; its labels go to `labels` on the way, so that each item is read once."""
    for index in range(len(dataset)):
        item = dataset[index]
        is_tuple = isinstance(item, tuple | list)
        if labels is not None:
            if not is_tuple or len(item) != 2:
                raise OarlockError(
                    f"item {index} of the data set is not an (image, label) pair: pass the labels, "
                    "or a Dataset that yields pairs"
                )
            labels.append(item[1])
        yield item[0] if is_tuple else item


def checked_labels(labels: Iterable[object]) -> list[Label]:
    names: list[Label] = []
    for index, value in enumerate(labels):
        if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.ndim == 0):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise OarlockError(f"label {index} is {value!r}: use strings or integers as labels")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise OarlockError(f"label {index} is {value!r}: integers must fit into 64 bits; use a string")
        if isinstance(value, str) and value.endswith("\0"):
            raise OarlockError(f"label {index} is {value!r}: a label cannot end in a zero byte")
        if names and isinstance(value, str) != isinstance(names[0], str):
            raise OarlockError(
                f"label {index} is {value!r} but label 0 is {names[0]!r}: use only strings or only integers"
            )
        names.append(value)
    return names


Found: TypeAlias = str | Path | IO[bytes]
AnyPath = TypeVar("AnyPath", bound=str | Path)

_READERS = min(16, (os.cpu_count() or 1) + 1)  # threads, each of which holds one decoded picture


def read_files(
    paths: Iterable[AnyPath], rule: Preprocessing, ahead: int, find: Callable[[str | Path], Found] = lambda path: path
) -> Generator[tuple[AnyPath, np.ndarray | OarlockError], None, None]:
    """Yield every path with its picture, or with what is wrong with the file. Files are read in threads while the
    caller is busy, at most `ahead` before they are asked for. `find` returns what a path stands for, if it is none of
    this machine."""
    pool, aside = ThreadPoolExecutor(_READERS), ThreadPoolExecutor(1)
    waiting: deque[tuple[AnyPath, Future[np.ndarray | OarlockError]]] = deque()
    try:
        for path in paths:
            waiting.append((path, pool.submit(_picture_or_error, path, rule, aside, find)))
            if len(waiting) == ahead:
                path, reading = waiting.popleft()
                yield path, reading.result()
        for path, reading in waiting:
            yield path, reading.result()
    finally:
        pool.shutdown(cancel_futures=True)  # when the caller stops, nothing is read that nobody wants
        aside.shutdown()


def broken_files(paths: Iterable[AnyPath], rule: Preprocessing) -> list[OarlockError]:
    """Return what is wrong with those files that cannot be read."""
    return [picture for _, picture in read_files(paths, rule, _CHUNK) if isinstance(picture, OarlockError)]


def _picture_or_error(
    path: str | Path, rule: Preprocessing, aside: Executor, find: Callable[[str | Path], Found]
) -> np.ndarray | OarlockError:
    try:
        return fit_picture(find(path), str(path), rule, aside)
    except OarlockError as problem:
        return problem
