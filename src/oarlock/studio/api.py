"""The HTTP API of a model: photos in, answers out, and how it does."""

import asyncio
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from oarlock import __version__
from oarlock.modelfile.unknowns import group_images
from oarlock.studio.answering import Json
from oarlock.studio.answers import said
from oarlock.studio.bodies import Body, number_of, read_photos
from oarlock.studio.current import Loaded
from oarlock.studio.metrics import Metrics
from oarlock.studio.photos import fitted, shown
from oarlock.studio.refusals import Refusal
from oarlock.studio.studio import Studio

ACCEPT = 0.95  # share of known photos to accept, if nothing else is asked for
MOST_TOP = 1000

_PHOTOS = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "images": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "accept": {"type": "number"},
                        "top": {"type": "integer"},
                    },
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}},
                        "accept": {"type": "number", "default": ACCEPT},
                        "top": {"type": "integer", "default": 1},
                    },
                },
                "example": {"images": ["/9j/4AAQSkZJRg…"], "accept": ACCEPT, "top": 3},
            },
        },
    }
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    409: {"description": "There is no model yet."},
    413: {"description": "Too many photos, or too large ones."},
    415: {"description": "Not photos."},
    422: {"description": "Photos that cannot be read, or numbers that make no sense."},
    503: {"description": "Too many photos are waiting."},
}


def build_api(studio: Studio, metrics: Metrics) -> APIRouter:
    """Return the routes that `oarlock serve` and the studio have in common."""
    api = APIRouter()
    bench = studio.bench

    async def asked(body: Body) -> tuple[Loaded, np.ndarray, list[str]]:
        """The model is the one there is when a request has come in, whatever becomes of the file meanwhile."""
        if not body.photos:
            raise Refusal(422, "no photos were sent: send at least one")
        model = await run_in_threadpool(bench.models.need)
        pictures = await run_in_threadpool(_pictures, body, model)
        return model, pictures, [shown(name) for name, _ in body.photos]

    @api.post("/predict", summary="What photos show", openapi_extra=_PHOTOS, responses=_ERRORS)
    async def predict(request: Request) -> Json:
        """Answer photos as `oarlock predict` does: a learned class with its probability, task and score, or unknown.
        `accept` is the share of known photos to accept (null: nothing is unknown), `top` how many of the likeliest
        classes are named."""
        body = await read_photos(request)
        accept, top = _accept(body.said), number_of(body.said, "top", int, 1, MOST_TOP, 1)
        model, pictures, names = await asked(body)
        predicted = await asyncio.wrap_future(bench.batcher.ask(model, pictures))
        answers = said(model, predicted, accept, top, names)
        metrics.count_unknown(sum(answer["unknown"] for answer in answers))
        return Json({"model": model.version, "accept": accept, "answers": answers})

    @api.post("/unknowns/group", summary="Unknown photos in groups", openapi_extra=_PHOTOS, responses=_ERRORS)
    async def group(request: Request) -> Json:
        """Answer photos, and sort those that are unknown into groups of the same kind: their numbers in the request,
        from 0, the most typical first. `groups` says how many; without it there are as many as it takes."""
        body = await read_photos(request)
        accept = _accept(body.said)
        model, pictures, names = await asked(body)
        predicted = await asyncio.wrap_future(bench.batcher.ask(model, pictures))
        answers = said(model, predicted, accept, 1, names)
        unknown = [number for number, answer in enumerate(answers) if answer["unknown"]]
        wanted = number_of(body.said, "groups", int, 1, max(len(unknown), 1), None)
        groups = await run_in_threadpool(_groups, model, pictures, unknown, wanted) if unknown else []
        return Json({"model": model.version, "accept": accept, "answers": answers, "groups": groups})

    @api.get("/model", summary="The model that answers")
    def model() -> Json:
        """Tell its classes by task, method, trunk, and the thresholds for shares of known photos to accept."""
        bench.models.need()
        return Json(studio.gallery.facts())

    @api.get("/health", summary="Whether it answers")
    def health() -> Json:
        """Tell that the server is alive, and whether it has a model: status 503 if it has none."""
        there = bench.models.get() is not None
        return Json({"status": "ok" if there else "no model", "oarlock": __version__}, 200 if there else 503)

    @api.get("/metrics", summary="What it has done")
    def prometheus() -> PlainTextResponse:
        """Tell counts and times in the text format of Prometheus."""
        return PlainTextResponse(metrics.text(bench), media_type="text/plain; version=0.0.4; charset=utf-8")

    return api


def _accept(words: dict[str, Any]) -> float | None:
    if "accept" in words and words["accept"] is None:
        return None
    return number_of(words, "accept", float, 1e-6, 1, ACCEPT)


def _pictures(body: Body, model: Loaded) -> np.ndarray:
    return np.stack([fitted(content, name, model.rule) for name, content in body.photos])


def _groups(model: Loaded, pictures: np.ndarray, unknown: list[int], wanted: int | None) -> list[dict[str, Any]]:
    found = group_images(model.learner, pictures[unknown], wanted)
    groups = []
    for number in range(len(found.centres)):
        rows = np.flatnonzero(found.groups == number)
        typical = rows[np.argsort(found.distances[rows], kind="stable")].tolist()
        groups.append(
            {
                "images": [unknown[row] for row in typical],
                "distances": [float(found.distances[row]) for row in typical],
            }
        )
    return groups
