"""One picture, from a file or from Pillow, made into what a trunk sees: upright, RGB, resized, cropped."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from oarlock.errors import OarlockError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # no other decoder sees what strangers sent
_NARROWEST = 100  # long side over short side; beyond it the resized image would fill the memory
_ORDINARY = 4096  # pixels on a side, up to which a picture is resized in one step
_SPARE = 4  # times the wanted side, which a larger picture keeps when it is first reduced
_AT_ONCE = 2**27  # pixels that all readers together may have decoded


@dataclass(frozen=True)
class Preprocessing:
    """Tell how a trunk wants its images; part of its card.

    The short side becomes `resize` pixels (bicubic, antialiased), then the central square of `size` pixels is
    kept. An image that is already `size` by `size` is taken as it is, so preparing twice changes nothing.

    >>> Preprocessing(size=224, resize=256, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).size
    224
    """

    size: int
    resize: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.resize:
            raise OarlockError(
                f"preprocessing: size {self.size} and resize {self.resize}; "
                "choose 0 < size <= resize, since the crop is cut from the resized image"
            )


class PixelBudget:
    """Let threads hold so many pixels at a time, all together; a picture with more waits until it is alone.

    >>> budget = PixelBudget(100)
    >>> with budget.holding(70), budget.holding(30):
    ...     budget.held
    100
    """

    def __init__(self, most: int) -> None:
        self.most, self.held, self._changed = most, 0, Condition()

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self.held or self.held + pixels <= self.most)
            self.held += pixels
        try:
            yield
        finally:
            with self._changed:
                self.held -= pixels
                self._changed.notify_all()


_budget = PixelBudget(_AT_ONCE)


def open_picture(file: str | Path | IO[bytes]) -> Image.Image:
    """Return a picture of which only the header was read. Its content decides what it is, not its name; Pillow
    refuses what is too large to decode."""
    return Image.open(file, formats=FORMATS)


def fit_picture(
    picture: Image.Image | str | Path | IO[bytes], name: str, rule: Preprocessing, aside: Executor | None = None
) -> np.ndarray:
    """Return a picture upright, in RGB, resized, cropped; of an animation the first frame. Errors call it `name`.

    A file larger than ordinary ones is left to `aside`, a single thread: the C library keeps for every thread what it
    had at its largest.
    """
    with _called(name):
        if isinstance(picture, Image.Image):
            return _fit(ImageOps.exif_transpose(picture), rule)
        with open_picture(picture) as image:
            if max(image.size) > _ORDINARY:
                image.draft(None, (_SPARE * rule.resize,) * 2)  # a JPEG is decoded at a half, a quarter or an eighth
            if aside is not None and image.width * image.height > _ORDINARY**2:
                return aside.submit(_decode, image, rule).result()
            return _decode(image, rule)


def thumbnail(picture: str | Path | IO[bytes], name: str, side: int) -> Image.Image:
    """Return a picture upright, in RGB, whole, its long side at most so many pixels."""
    with _called(name), open_picture(picture) as image:
        image.draft(None, (side, side))
        with _budget.holding(image.width * image.height):
            ImageOps.exif_transpose(image, in_place=True)
            small = _rgb(_reduced(image, 2 * side))
            small.thumbnail((side, side))
            return small


@contextmanager
def _called(name: str) -> Iterator[None]:
    """Tell whatever is wrong with a picture in a sentence that names it."""
    try:
        yield
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


def _decode(image: Image.Image, rule: Preprocessing) -> np.ndarray:
    with _budget.holding(image.width * image.height):
        ImageOps.exif_transpose(image, in_place=True)
        return _fit(image, rule)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"its content is none of {', '.join(FORMATS)}"
    return getattr(error, "strerror", None) or str(error)


def _fit(image: Image.Image, rule: Preprocessing) -> np.ndarray:
    """[size, size, 3]; sides and offsets are rounded as torchvision's Resize and CenterCrop round them."""
    image = _rgb(_reduced(image, _SPARE * rule.resize))
    if image.size != (rule.size, rule.size):
        short = min(image.size)
        if max(image.size) > _NARROWEST * short:
            raise OarlockError(f"{image.width} × {image.height} pixels are too narrow; crop it first")
        width, height = (int(rule.resize * side / short) for side in image.size)
        left, top = (round((side - rule.size) / 2) for side in (width, height))
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        image = image.crop((left, top, left + rule.size, top + rule.size))
    return np.asarray(image)


def _reduced(image: Image.Image, least: int) -> Image.Image:
    """A picture that is larger than ordinary ones, at a whole fraction of its size: what comes after needs a multiple
    of its memory. Transparency is averaged with its colours."""
    factor = min(image.size) // least
    if max(image.size) <= _ORDINARY or factor < 2:
        return image
    if image.mode == "P" or (image.mode in ("L", "RGB") and image.has_transparency_data):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image.reduce(factor) if image.mode in ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr") else image


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
