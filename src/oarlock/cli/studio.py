"""The commands that open a model to browsers and programs: parse, call, print."""

import importlib.util
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from oarlock.cli.common import command
from oarlock.errors import OarlockError
from oarlock.printing import say

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model file; the studio can create it.")]
Photos = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="A folder of photos that may be looked at, and no other.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")]
Host = Annotated[str, typer.Option(help="Where to listen; others than this machine need --token.")]
Token = Annotated[
    str | None, typer.Option(envvar="OARLOCK_TOKEN", help="What others have to know, at least 16 characters.")
]
Name = Annotated[
    list[str] | None, typer.Option(help="A name that the server is reached by, if it is not this machine's.")
]
Weights = Annotated[str | None, typer.Option(help="A local file with the trunk's weights, if the model lacks them.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]


@command()
def studio(
    model: Model,
    photos: Photos = None,
    port: Port = 8765,
    host: Host = "127.0.0.1",
    token: Token = None,
    name: Name = None,
    weights: Weights = None,
    threads: Threads = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Try a model in the browser, name what it does not know, and teach it; until Ctrl-C."""
    _serve(model, photos, port, host, token, name or [], weights, threads, page=True, open_browser=open_browser)


@command()
def serve(
    model: Model,
    photos: Photos = None,
    port: Port = 8765,
    host: Host = "127.0.0.1",
    token: Token = None,
    name: Name = None,
    weights: Weights = None,
    threads: Threads = None,
) -> None:
    """Answer programs over HTTP: POST /predict and others, and what Label Studio asks; until Ctrl-C."""
    _serve(model, photos, port, host, token, name or [], weights, threads, page=False, open_browser=False)


def _serve(
    model: Path,
    photos: Path | None,
    port: int,
    host: str,
    token: str | None,
    names: list[str],
    weights: str | None,
    threads: int | None,
    *,
    page: bool,
    open_browser: bool,
) -> None:
    if missing := [name for name in ("fastapi", "uvicorn", "python_multipart") if not importlib.util.find_spec(name)]:
        raise OarlockError(f"{missing[0]} is missing; install it with: pip install 'oarlock[studio]'")
    import torch

    from oarlock.studio.app import build_app
    from oarlock.studio.server import address_of, check_host, names_of, open_socket
    from oarlock.studio.server import serve as answer
    from oarlock.studio.studio import Studio

    check_host(host, token)
    if model.is_dir():
        raise OarlockError(f"{model} is a folder: give the name of a model file, such as {model / 'model.oar'}")
    if threads is not None:
        torch.set_num_threads(threads)
    with open_socket(host, port) as listening, Studio(model, photos, weights) as opened:
        problem = opened.bench.models.get(fresh=True) is None and opened.bench.models.problem
        if problem:
            raise OarlockError(problem)
        address = address_of(listening)

        def ready() -> None:
            say(f"{model} at {address}" + ("" if page else "  (what can be asked: /docs)"))
            if token is not None:
                say("whoever knows the token can see photos and teach the model; without HTTPS it can be overheard")
            say("Ctrl-C stops it")
            if open_browser:
                webbrowser.open(address)

        app = build_app(opened, page=page, token=token, names=names_of(host, names))
        answer(app, listening, ready, opened.bench.closing.set)
