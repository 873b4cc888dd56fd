"""What is in a request: photos, in either of two forms, and JSON; checked before anything is done with it."""

import base64
import binascii
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from oarlock.errors import OarlockError
from oarlock.schema import Check, either, from_json, list_of, mapping, plain, record, text
from oarlock.studio.refusals import LIMITS, Limits, Refusal

Photos = list[tuple[str, bytes]]  # names and contents


def _any_text(value: Any, place: str) -> str:
    return text(2 * LIMITS.photo)(value, place)


IMAGE = either(_any_text, record({"data": _any_text}, {"name": text()}, others=False))
IMAGES = record({"images": list_of(IMAGE, most=100_000)})


class Body(NamedTuple):
    """Hold photos, and what was said besides."""

    photos: Photos
    said: dict[str, Any]


async def read_photos(request: Request, limits: Limits = LIMITS) -> Body:
    """Return the photos of a request: files of a form, or base64 in JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _form(request, limits)
    if kind == "application/json":
        content = await read_json(request, IMAGES)
        images = content.pop("images")
        if len(images) > limits.photos:
            raise too_many(limits)
        return Body([_decoded(image, number) for number, image in enumerate(images, 1)], content)
    raise Refusal(415, f"{kind[:60] or 'nothing'!r} is not understood: send a form with files, or JSON")


async def read_json(request: Request, check: Check = mapping(plain)) -> dict[str, Any]:  # noqa: B008
    """Return the JSON of a request, if it is what it should be."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "send JSON, and say so: Content-Type: application/json")
    try:
        return check(from_json((await request.body()).decode()), "")
    except UnicodeDecodeError:
        raise Refusal(422, "this is not JSON, which is in UTF-8") from None
    except Refusal:
        raise
    except OarlockError as problem:
        raise Refusal(422, *problem.args) from None


async def _form(request: Request, limits: Limits) -> Body:
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=limits.photos, max_fields=20, max_part_size=2**16
    )
    try:
        form = await parser.parse()
    except MultiPartException as problem:
        if "Too many files" in problem.message:
            raise too_many(limits) from None
        raise Refusal(422, f"this form cannot be read ({problem.message})") from None
    except KeyError:  # a form that does not say where its parts end
        raise Refusal(422, "this form cannot be read (it has no boundary)") from None
    photos: Photos = []
    said: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if (value.size or 0) > limits.photo:
                    raise Refusal(413, f"a photo is larger than {limits.photo >> 20} MB; make it smaller")
                photos.append((value.filename or "photo", await value.read()))
            else:
                said[name] = value
    finally:
        await form.close()
    return Body(photos, said)


def too_many(limits: Limits) -> Refusal:
    return Refusal(413, f"more than {limits.photos} photos in one request: send fewer at a time")


def _decoded(image: str | dict[str, str], number: int) -> tuple[str, bytes]:
    named = {"data": image} if isinstance(image, str) else image
    data = named["data"]
    if data.startswith("data:"):
        data = data.partition(",")[2]
    try:
        return named.get("name", f"image {number}"), base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(422, f"image {number} is not base64") from None


def number_of(said: dict[str, Any], name: str, kind: type, least: float, most: float, default: Any) -> Any:
    """Return a number that was said, in JSON or in a form."""
    value = said.get(name)
    if value is None or value == "":
        return default
    try:
        found = kind(value) if isinstance(value, str) else value
        right = not isinstance(found, bool) and isinstance(found, int | float) and least <= found <= most
        if not right or (kind is int and not isinstance(found, int)):
            raise ValueError
        return found
    except ValueError:
        raise Refusal(422, f"{name}={str(value)[:40]} is no number from {least:g} to {most:g}") from None
