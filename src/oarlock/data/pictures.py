"""One picture, from a file or in memory, made into what a trunk sees: uint8 [size, size, 3]."""

import os
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from oarlock.errors import OarlockError

if TYPE_CHECKING:
    from oarlock.data.images import Preprocessing

AnyPath = TypeVar("AnyPath", bound=str | Path)

_READERS = min(16, (os.cpu_count() or 1) + 1)  # threads, each of which holds one decoded picture
_NARROWEST = 100  # long side over short side; beyond it the resized image would fill the memory


def read_files(
    paths: Iterable[AnyPath], rule: "Preprocessing", ahead: int
) -> Generator[tuple[AnyPath, np.ndarray | OarlockError], None, None]:
    """Every path with its picture, or with what is wrong with the file. Files are read in threads while the caller is
    busy, at most `ahead` before they are asked for."""
    pool = ThreadPoolExecutor(_READERS)
    waiting: deque[tuple[AnyPath, Future[np.ndarray | OarlockError]]] = deque()
    try:
        for path in paths:
            waiting.append((path, pool.submit(_picture_or_error, path, rule)))
            if len(waiting) == ahead:
                path, reading = waiting.popleft()
                yield path, reading.result()
        for path, reading in waiting:
            yield path, reading.result()
    finally:
        pool.shutdown(cancel_futures=True)  # when the caller stops, nothing is read that nobody wants


def _picture_or_error(path: str | Path, rule: "Preprocessing") -> np.ndarray | OarlockError:
    try:
        return fit_picture(path, str(path), rule)
    except OarlockError as problem:
        return problem


def fit_picture(picture: Image.Image | str | Path, name: str, rule: "Preprocessing") -> np.ndarray:
    """Upright, in RGB, resized and cropped; of an animation the first frame. `name` is what an error calls it."""
    try:
        if isinstance(picture, Image.Image):
            return _fit(ImageOps.exif_transpose(picture), rule)
        with Image.open(picture) as image:  # reads the header only, and refuses what is too large to decode
            ImageOps.exif_transpose(image, in_place=True)
            return _fit(image, rule)
    except FileNotFoundError:
        what = "a link to a file that does not exist" if Path(name).is_symlink() else "no such file"
        raise OarlockError(f"{name}: {what}; check the path") from None
    except OarlockError as problem:
        raise OarlockError(f"{name}: {problem}") from None
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise OarlockError(f"{name}: not read, for it has more than {most:,} pixels; make it smaller") from None
    except Exception as error:  # on a damaged file a decoder may raise anything
        raise OarlockError(f"{name}: not a readable image ({_reason(error)}); repair or remove it") from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "its content is of no known image format"
    return getattr(error, "strerror", None) or str(error)


def _fit(image: Image.Image, rule: "Preprocessing") -> np.ndarray:
    """[size, size, 3]; sides and offsets are rounded as torchvision's Resize and CenterCrop round them."""
    image = _rgb(image)
    if image.size != (rule.size, rule.size):
        short = min(image.size)
        if max(image.size) > _NARROWEST * short:
            raise OarlockError(f"{image.width} × {image.height} pixels are too narrow; crop it first")
        width, height = (int(rule.resize * side / short) for side in image.size)
        left, top = (round((side - rule.size) / 2) for side in (width, height))
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        image = image.crop((left, top, left + rule.size, top + rule.size))
    return np.asarray(image)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and np.asarray(image).max() > 255):
        return _from_deep_grey(image)
    if image.mode == "F":
        return _from_float_grey(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """Pillow would clip 16-bit greys at 255 instead of scaling them."""
    deep = np.asarray(image)
    grey = np.rint(np.clip(deep / 257, 0, 255)).astype(np.uint8)
    if "transparency" in image.info:
        grey[deep == image.info["transparency"]] = 255
    return Image.fromarray(grey).convert("RGB")


def _from_float_grey(image: Image.Image) -> Image.Image:
    """Pillow would make 0..1 black."""
    grey = np.asarray(image)
    if not ((grey >= 0) & (grey <= 1)).all():  # NaN fails either comparison
        raise OarlockError("float pixels must lie in 0..1 and not be NaN; scale them, or use 8-bit pixels")
    return Image.fromarray(np.rint(grey * 255).astype(np.uint8)).convert("RGB")
