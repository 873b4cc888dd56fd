"""What the page asks for and changes. Every change is answered by all that the page shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from oarlock.schema import Check, boolean, integer, list_of, mapping, maybe, number, plain, record, text
from oarlock.studio.answering import Json
from oarlock.studio.board import LONGEST_NAME, PHOTOS, check_photos
from oarlock.studio.bodies import read_json, read_photos
from oarlock.studio.news import News
from oarlock.studio.refusals import Refusal
from oarlock.studio.studio import Studio

LOOKED_AT = 200  # photos that may be asked about at once
FOREVER = {"cache-control": "private, max-age=604800, immutable"}
FOR_A_MINUTE = {"cache-control": "private, max-age=60"}
NAME, NUMBER = text(4 * LONGEST_NAME), integer(1)

Content = dict[str, Any]


def _exactly(**checks: Check) -> Check:
    return record(checks, others=False)


def build_page_api(studio: Studio) -> APIRouter:
    """Return the routes of the page."""
    api = APIRouter(prefix="/api", include_in_schema=False)
    _add_changes(Changes(api, studio))
    _add_photos(api, studio)
    _add_model(api, studio)
    _add_news(api, studio)
    return api


class Changes:
    """Add routes that take checked JSON, do something with it, and answer with all that the page shows then."""

    def __init__(self, api: APIRouter, studio: Studio) -> None:
        self.api, self.studio = api, studio

    def add(self, path: str, check: Check, work: Callable[[Content], Any]) -> None:
        """Add a route that does some work."""

        async def route(request: Request) -> Json:
            content = await read_json(request, check)
            await run_in_threadpool(work, content)
            return Json(await run_in_threadpool(self.studio.overview))

        self.api.post(path)(route)

    def add_to_board(self, path: str, check: Check, work: Callable[[Any, Content], Any]) -> None:
        """Add a route that changes the board; photos it speaks of have to be here."""
        bench = self.studio.bench

        def changed(content: Content) -> None:
            check_photos(content.get("photos", []), bench.there())
            with bench.changing() as board:
                work(board, content)

        self.add(path, check, changed)


def _add_changes(changes: Changes) -> None:
    studio, add, on_board = changes.studio, changes.add, changes.add_to_board
    looking, lessons, corrections = studio.looking, studio.lessons, studio.corrections
    nothing, photos = _exactly(), _exactly(photos=PHOTOS)
    sorting = _exactly(groups=maybe(integer(1, 50)), anew=boolean)
    lesson = _exactly(groups=list_of(NUMBER), settings=mapping(plain, most=20))

    add("/accept", _exactly(accept=number(1e-6, 1)), lambda c: studio.set_accept(c["accept"]))
    add("/folder/look", nothing, lambda c: looking.look_through())
    add("/folder/classes", _exactly(names=list_of(NAME)), lambda c: studio.add_class_folders(c["names"]))
    add("/photos/remove", photos, lambda c: looking.remove(c["photos"]))
    add("/unknowns/group", sorting, lambda c: looking.group(c["groups"], anew=c["anew"]))

    on_board("/groups/rename", _exactly(group=NUMBER, name=NAME), lambda b, c: b.rename(c["group"], c["name"]))
    on_board("/groups/merge", _exactly(group=NUMBER, other=NUMBER), lambda b, c: b.merge(c["group"], c["other"]))
    on_board("/groups/move", _exactly(photos=PHOTOS, group=NUMBER), lambda b, c: b.move(c["photos"], c["group"]))
    on_board("/groups/split", photos, lambda b, c: b.split(c["photos"]))
    on_board("/groups/throw", photos, lambda b, c: b.throw_away(c["photos"]))
    on_board("/groups/release", photos, lambda b, c: b.release(c["photos"]))

    add("/learn", lesson, lambda c: lessons.learn(c["groups"], c["settings"]))
    add("/learn/go-on", nothing, lambda c: lessons.go_on())
    add("/learn/leave", nothing, lambda c: lessons.leave())
    add("/jobs/stop", _exactly(job=NUMBER), lambda c: studio.bench.jobs.stop(c["job"]))

    add("/classes/rename", _exactly(old=NAME, new=NAME), lambda c: corrections.rename(c["old"], c["new"]))
    add("/classes/merge", _exactly(one=NAME, other=NAME), lambda c: corrections.merge(c["one"], c["other"]))
    add("/classes/forget", _exactly(name=NAME), lambda c: corrections.forget(c["name"]))
    add("/undo", nothing, lambda c: corrections.undo())


def _add_photos(api: APIRouter, studio: Studio) -> None:
    bench, looking = studio.bench, studio.looking
    asked = _exactly(photos=PHOTOS)

    @api.post("/photos")
    async def receive(request: Request) -> Json:
        body = await read_photos(request)
        if not body.photos:
            raise Refusal(422, "no photos were sent: send at least one")
        group = body.said.get("group") or None
        return Json(await run_in_threadpool(looking.receive, body.photos, group))

    @api.get("/photos")
    def page(where: str = "sent", show: str = "all", page: int = 0, accept: float = 0.95) -> Json:
        if not 1e-6 <= accept <= 1:
            raise Refusal(422, f"accept={accept} is no share of photos")
        return Json(looking.page(where, show, page, accept))

    @api.post("/photos/look")
    async def look(request: Request) -> Json:
        photos = (await read_json(request, asked))["photos"]
        if len(photos) > LOOKED_AT:
            raise Refusal(413, f"more than {LOOKED_AT} photos at a time: ask for fewer")
        check_photos(photos, bench.there())
        return Json(await run_in_threadpool(looking.look, photos))

    @api.get("/thumbnails/{photo}")
    def thumbnail(photo: str) -> FileResponse:
        path = bench.store.thumbnail(photo)
        sent = photo.startswith("u")  # a photo of the folder may become another one
        return FileResponse(path, media_type="image/jpeg", headers=FOREVER if sent else FOR_A_MINUTE)


def _add_model(api: APIRouter, studio: Studio) -> None:
    bench, gallery = studio.bench, studio.gallery

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

    @api.post("/export")
    def export() -> Json:
        gallery.export()
        return Json({})

    @api.get("/model.onnx")
    def graph() -> FileResponse:
        return _attached(gallery.graph(), f"{bench.store.model.stem}.onnx")


def _add_news(api: APIRouter, studio: Studio) -> None:
    news = News(studio.bench)

    @api.get("/overview")
    def overview() -> Json:
        return Json(studio.overview())

    @api.get("/events")
    async def events(request: Request) -> StreamingResponse:
        told = news.listen(request)
        return StreamingResponse(told, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _attached(path: Path, name: str) -> FileResponse:
    return FileResponse(path, media_type="application/octet-stream", filename=name)
