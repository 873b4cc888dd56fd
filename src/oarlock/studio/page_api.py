"""What the page asks for and changes. Every change is answered by all that the page shows."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from oarlock.schema import Check, boolean, integer, list_of, mapping, maybe, number, plain, record, text
from oarlock.studio.answering import Json
from oarlock.studio.board import LONGEST_NAME, PHOTOS, check_photos
from oarlock.studio.bodies import read_json, read_photos
from oarlock.studio.refusals import Refusal
from oarlock.studio.studio import Studio

GLANCE = 0.2  # seconds between looks for news
SILENCE = 15.0  # seconds after which a connection is told that it is still there
LISTENERS = 64  # pages that may listen for news at once
FOREVER = {"cache-control": "private, max-age=604800, immutable"}
FOR_A_MINUTE = {"cache-control": "private, max-age=60"}
NAME, NUMBER = text(4 * LONGEST_NAME), integer(1)


def build_page_api(studio: Studio) -> APIRouter:
    """Return the routes of the page."""
    api = APIRouter(prefix="/api", include_in_schema=False)
    bench, looking, lessons, gallery = studio.bench, studio.looking, studio.lessons, studio.gallery
    corrections = studio.corrections
    listeners = 0

    def overview() -> Json:
        return Json(studio.overview())

    def change(path: str, check: Check, work: Callable[[dict[str, Any]], Any]) -> None:
        """Add a route that does something with checked JSON."""

        async def route(request: Request) -> Json:
            content = await read_json(request, check)
            await run_in_threadpool(work, content)
            return await run_in_threadpool(overview)

        api.post(path)(route)

    def on_board(path: str, check: Check, work: Callable[[Any, dict[str, Any]], Any]) -> None:
        """Add a route that changes the board; photos it speaks of have to be here."""

        def changed(content: dict[str, Any]) -> None:
            check_photos(content.get("photos", []), bench.there())
            with bench.changing() as board:
                work(board, content)

        change(path, check, changed)

    nothing = record({}, others=False)
    photos = record({"photos": PHOTOS}, others=False)

    api.get("/overview")(overview)
    change("/accept", _exactly(accept=number(1e-6, 1)), lambda c: studio.set_accept(c["accept"]))
    change("/folder/look", nothing, lambda c: looking.look_through())
    change("/folder/classes", _exactly(names=list_of(NAME)), lambda c: studio.add_class_folders(c["names"]))
    change("/photos/remove", photos, lambda c: looking.remove(c["photos"]))
    sorting = _exactly(groups=maybe(integer(1, 50)), anew=boolean)
    change("/unknowns/group", sorting, lambda c: looking.group(c["groups"], anew=c["anew"]))

    on_board("/groups/rename", _exactly(group=NUMBER, name=NAME), lambda b, c: b.rename(c["group"], c["name"]))
    on_board("/groups/merge", _exactly(group=NUMBER, other=NUMBER), lambda b, c: b.merge(c["group"], c["other"]))
    on_board("/groups/move", _exactly(photos=PHOTOS, group=NUMBER), lambda b, c: b.move(c["photos"], c["group"]))
    on_board("/groups/split", photos, lambda b, c: b.split(c["photos"]))
    on_board("/groups/add", _exactly(photos=PHOTOS, name=NAME), lambda b, c: b.add(c["photos"], c["name"]))
    on_board("/groups/throw", photos, lambda b, c: b.throw_away(c["photos"]))
    on_board("/groups/release", photos, lambda b, c: b.release(c["photos"]))

    settings = _exactly(groups=list_of(NUMBER), settings=mapping(plain, most=20))
    change("/learn", settings, lambda c: lessons.learn(c["groups"], c["settings"]))
    change("/learn/go-on", nothing, lambda c: lessons.go_on())
    change("/learn/leave", nothing, lambda c: lessons.leave())
    change("/jobs/stop", _exactly(job=NUMBER), lambda c: bench.jobs.stop(c["job"]))

    change("/classes/rename", _exactly(old=NAME, new=NAME), lambda c: corrections.rename(c["old"], c["new"]))
    change("/classes/merge", _exactly(one=NAME, other=NAME), lambda c: corrections.merge(c["one"], c["other"]))
    change("/classes/forget", _exactly(name=NAME), lambda c: corrections.forget(c["name"]))
    change("/undo", nothing, lambda c: corrections.undo())

    @api.post("/photos")
    async def receive(request: Request) -> Json:
        body = await read_photos(request)
        if not body.photos:
            raise Refusal(422, "no photos were sent: send at least one")
        group = body.said.get("group") or None
        return Json(await run_in_threadpool(looking.receive, body.photos, group))

    @api.get("/photos")
    def photos_of_page(where: str = "sent", show: str = "all", page: int = 0, accept: float = 0.95) -> Json:
        if not 1e-6 <= accept <= 1:
            raise Refusal(422, f"accept={accept} is no share of photos")
        return Json(looking.page(where, show, page, accept))

    @api.post("/photos/look")
    async def look(request: Request) -> Json:
        content = await read_json(request, photos)
        if len(content["photos"]) > 200:
            raise Refusal(413, "more than 200 photos at a time: ask for fewer")
        check_photos(content["photos"], bench.there())
        return Json(await run_in_threadpool(looking.look, content["photos"]))

    @api.get("/thumbnails/{photo}")
    def thumbnail(photo: str) -> FileResponse:
        path = bench.store.thumbnail(photo)
        sent = photo.startswith("u")  # a photo of the folder may become another one
        return FileResponse(path, media_type="image/jpeg", headers=FOREVER if sent else FOR_A_MINUTE)

    @api.get("/classes")
    def classes() -> Json:
        return Json(gallery.classes())

    @api.get("/class-photos/{version}/{kind}/{row}")
    def class_photo(version: str, kind: str, row: int) -> Response:
        content = gallery.photo(version, kind, row)
        media = "image/jpeg" if content.startswith(b"\xff\xd8") else "image/png"
        return Response(content, media_type=media, headers=FOREVER)

    @api.post("/verify")
    def verify() -> Json:
        return Json(gallery.verify())

    @api.get("/model.oar")
    def download() -> FileResponse:
        bench.models.need()
        return _attached(bench.store.model, bench.store.model.name)

    @api.get("/model.onnx")
    def export() -> FileResponse:
        return _attached(gallery.export(), f"{bench.store.model.stem}.onnx")

    @api.get("/events")
    async def events(request: Request) -> StreamingResponse:
        nonlocal listeners
        if listeners >= LISTENERS:
            raise Refusal(503, f"{LISTENERS} pages are open already: close some")

        async def news() -> AsyncIterator[str]:
            nonlocal listeners
            listeners += 1
            last, quiet = "", 0.0
            try:
                while not bench.closing.is_set() and not await request.is_disconnected():
                    model = bench.models.get()
                    told = {
                        "changes": bench.changes,
                        "model": model and model.version,
                        "jobs": bench.jobs.to_json(),
                    }
                    text = json.dumps(told)
                    if text != last:
                        yield f"data: {text}\n\n"
                        last, quiet = text, 0.0
                    elif quiet >= SILENCE:
                        yield ": still here\n\n"
                        quiet = 0.0
                    await asyncio.sleep(GLANCE)
                    quiet += GLANCE
            finally:
                listeners -= 1

        return StreamingResponse(news(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    return api


def _exactly(**checks: Check) -> Check:
    return record(checks, others=False)


def _attached(path: Path, name: str) -> FileResponse:
    return FileResponse(path, media_type="application/octet-stream", filename=name)
