"""A server that answers until it is stopped: on this machine only, unless there is a token."""

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from oarlock.errors import OarlockError

SHORTEST_TOKEN = 16  # characters
CONNECTIONS = 512
SWITCH = 0.0005  # seconds that a thread may keep others from Python: a pass comes back to it hundreds of times
HURRY = 20.0  # seconds in which a connection has to ask for something, or for something more


class Impatient(H11Protocol):
    """Close a connection that asks for nothing, or takes for ever to ask."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_another()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_another()

    def _wait_for_another(self) -> None:
        self.loop.call_later(HURRY, self._close_if_last, self.cycle)

    def _close_if_last(self, request: RequestResponseCycle | None) -> None:
        answered = request is None or request.response_complete
        if self.cycle is request and answered and not self.transport.is_closing():
            self.transport.close()


def check_host(host: str, token: str | None) -> None:
    """Refuse to be reached from elsewhere without a token that is hard to guess."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise OarlockError(
            f"--token: give at least {SHORTEST_TOKEN} characters, such as what this prints: "
            'python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if token is None and not is_loopback(host):
        raise OarlockError(
            f"--host {host}: others could reach the model there, so add a --token, or leave out --host"
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; refuse a port that somebody else has."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as problem:
        raise OarlockError(
            f"{host}:{port} cannot be listened at ({problem.strerror}): choose another --port"
        ) from None


def address_of(listening: socket.socket) -> str:
    """Return where a browser finds it."""
    host, port = listening.getsockname()[:2]
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def names_of(host: str, others: Sequence[str]) -> list[str]:
    """Return the names that the server goes by."""
    return [host, socket.gethostname(), *others]


class Server(uvicorn.Server):
    """Say that it ends before connections are waited for: pages that listen for news would listen for ever."""

    def __init__(self, config: uvicorn.Config, closing: Callable[[], Any]) -> None:
        super().__init__(config)
        self.closing = closing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.closing()
        super().handle_exit(sig, frame)


def serve(app: ASGIApp, listening: socket.socket, ready: Callable[[], Any], closing: Callable[[], Any]) -> None:
    """Answer until Ctrl-C."""
    settings = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=int(HURRY),
        timeout_graceful_shutdown=2,
    )
    sys.setswitchinterval(SWITCH)
    ready()
    Server(settings, closing).run(sockets=[listening])
