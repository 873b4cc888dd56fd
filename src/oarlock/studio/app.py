"""The application: the API, with or without the page, behind the guard."""

from collections.abc import Collection
from pathlib import Path
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from oarlock import __version__
from oarlock.errors import NotFittedError, OarlockError
from oarlock.studio.answering import Json
from oarlock.studio.api import build_api
from oarlock.studio.guard import COOKIE, Guard, pass_of, same
from oarlock.studio.label_studio import build_backend
from oarlock.studio.metrics import Counting, Metrics
from oarlock.studio.page_api import build_page_api
from oarlock.studio.refusals import LIMITS, Limits, Refusal
from oarlock.studio.studio import Studio

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MONTH = 30 * 24 * 3600  # seconds for which a browser need not be told the token again


def build_app(
    studio: Studio,
    *,
    page: bool,
    token: str | None = None,
    names: Collection[str] = (),
    limits: Limits = LIMITS,
) -> ASGIApp:
    """Return what a server serves."""
    app = FastAPI(
        title="Oarlock",
        version=__version__,
        description="A model that says what it does not know.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    metrics = Metrics()
    guard = Guard(app, token, names, limits)
    app.include_router(build_api(studio, metrics))
    app.include_router(build_backend(studio))
    if page:
        app.include_router(build_page_api(studio))
    _add_pages(app, "studio.html" if page else "api.html", guard)
    _add_refusals(app)
    return Counting(guard, metrics)


def _add_pages(app: FastAPI, first: str, guard: Guard) -> None:
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in KINDS}  # these and no others

    def served(name: str) -> FileResponse:
        kind = KINDS[files[name].suffix]
        return FileResponse(files[name], media_type=f"{kind}; charset=utf-8", headers={"cache-control": "no-cache"})

    @app.get("/", include_in_schema=False)
    def start(request: Request) -> FileResponse:
        return served(first if guard.may_enter(request.headers) else "enter.html")

    @app.post("/enter", include_in_schema=False)
    async def enter(request: Request) -> Response:
        """Take the token that was entered; the browser keeps something else."""
        given = parse_qs((await request.body()).decode(errors="replace")).get("token", [""])[0]
        if guard.token is None or not same(given, guard.token):
            raise Refusal(401, "this is not the token that the server was started with")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, pass_of(guard.token), max_age=MONTH, httponly=True, samesite="strict")
        return answer

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> FileResponse:
        if name not in files:
            raise Refusal(404, "there is no such page")
        return served(name)

    @app.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return served("api.html")

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> Json:
        return Json(app.openapi())


def _add_refusals(app: FastAPI) -> None:
    """Answer whatever goes wrong with a sentence."""

    def refused(request: Request, problem: Exception) -> Json:
        status = problem.status if isinstance(problem, Refusal) else 422
        return Json({"error": str(problem)}, status)

    def invalid(request: Request, problem: Exception) -> Json:
        assert isinstance(problem, RequestValidationError)
        first = problem.errors()[0]
        return Json({"error": f"{first['loc'][-1]}: {first['msg']}"}, 422)

    def other(request: Request, problem: Exception) -> Json:
        assert isinstance(problem, HTTPException)
        sentences = {404: "there is no such page", 405: "this cannot be done here that way"}
        return Json({"error": sentences.get(problem.status_code, problem.detail)}, problem.status_code)

    app.add_exception_handler(OarlockError, refused)
    app.add_exception_handler(NotFittedError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, other)
