"""Photos that come in: looked at before they are kept, within limits, and never by their names."""

import io

import numpy as np
from PIL import Image

from oarlock.data.pictures import FORMATS, Preprocessing, fit_picture, open_picture
from oarlock.errors import OarlockError, printable
from oarlock.studio.refusals import LIMITS, Limits, Refusal


def check_photo(content: bytes, name: str, limits: Limits = LIMITS) -> None:
    """Refuse what is no photo, or too large a one, by its first bytes."""
    name = shown(name)
    if len(content) > limits.photo:
        raise Refusal(413, f"{name}: larger than {limits.photo >> 20} MB; make it smaller")
    try:
        with open_picture(io.BytesIO(content)) as image:
            pixels = image.width * image.height
    except Image.DecompressionBombError:
        pixels = limits.pixels + 1
    except Exception:  # on a damaged file a decoder may raise anything
        raise Refusal(415, f"{name}: not a photo; accepted are {', '.join(FORMATS)}") from None
    if pixels > limits.pixels:
        raise Refusal(413, f"{name}: more than {limits.pixels >> 20} million pixels; make it smaller")


def fitted(content: bytes, name: str, rule: Preprocessing, limits: Limits = LIMITS) -> np.ndarray:
    """Return a photo as the trunk sees it, the same that `oarlock predict` makes of a file."""
    check_photo(content, name, limits)
    try:
        return fit_picture(io.BytesIO(content), shown(name), rule)
    except OarlockError as problem:
        raise Refusal(422, *problem.args) from None


def shown(name: str) -> str:
    """Return what a photo was called, short enough to be shown, without the folders it was in."""
    last = printable(name.replace("\\", "/").rpartition("/")[2]) or "photo"
    return last if len(last) <= 120 else last[:119] + "…"
