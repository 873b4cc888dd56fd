"""Who may come in: names of this server only, no other site's pages, a token where others can reach it, and no more
than the limits allow. Also what is sent along with every answer."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import time
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oarlock.studio.answering import Json
from oarlock.studio.refusals import LIMITS, Limits, Refusal

COOKIE = "oarlock"
OPEN = ("/", "/enter", "/health", "/static/")  # without a token: a page to enter it, and whether the server is alive
DOORSTEP = 2**12  # bytes of a request that needs no token: a token is all that can be said there
HARMLESS = ("GET", "HEAD")
UNREAD = (401, 403, 408, 413, 415)  # after these answers something of the request may still be on its way
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SENT_ALONG = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Stand before an application, and let in what may come in."""

    def __init__(
        self, app: ASGIApp, token: str | None = None, names: Collection[str] = (), limits: Limits = LIMITS
    ) -> None:
        self.app, self.token, self.names, self.limits = app, token, {name.lower() for name in names}, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers, started = Headers(scope=scope), False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                answered = MutableHeaders(scope=message)
                for name, value in SENT_ALONG.items():
                    answered[name] = value
                answered.setdefault("cache-control", "no-store")
                if message["status"] in UNREAD:
                    answered["connection"] = "close"
            await send(message)

        try:
            most = self._check(scope, headers)
            await self.app(scope, self._patient(receive, most), sending)
        except Refusal as problem:
            if not started:
                status = problem.status
                answer = Json({"error": str(problem)}, status)
                if status == 401:
                    answer.headers["www-authenticate"] = "Bearer"
                await answer(scope, receive, sending)

    def _check(self, scope: Scope, headers: Headers) -> int:
        """Refuse who may not come in; return how many bytes may be sent."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise Refusal(403, f"{host[:100]!r} is no name of this server")
        if scope["method"] not in HARMLESS or headers.get("sec-fetch-mode", "navigate") != "navigate":
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                raise Refusal(403, "this came from a page of another site")
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
                raise Refusal(403, f"this came from a page of another site, {origin[:100]!r}")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "packed requests are not unpacked: send it plain")
        path = scope["path"]
        is_open = path in OPEN or path.startswith(OPEN[-1])
        most = DOORSTEP if is_open else self.limits.body
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > most:
            raise too_large(most)
        if not is_open and not self.may_enter(headers):
            raise Refusal(401, "a token is needed: send it as “Authorization: Bearer …”, or enter it on the page")
        return most

    def _is_ours(self, host: str) -> bool:
        """A page of another site that has its name lead here is told by that name (DNS rebinding): of names only
        those that were given are ours; numbers are no names."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
            urlsplit(f"//{host}").port  # noqa: B018  raises if it is none
        except ValueError:
            return False
        if name == "localhost" or name in self.names:
            return True
        try:
            number = ipaddress.ip_address(name)
        except ValueError:
            return False
        return number.is_loopback or self.token is not None

    def may_enter(self, headers: Headers) -> bool:
        """Return whether the token came along, in any of the ways there are."""
        if self.token is None:
            return True
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() in ("bearer", "token"):
            return same(value.strip(), self.token)
        if kind.lower() == "basic":
            try:
                password = base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError, ValueError):
                return False
            return same(password, self.token)
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and same(cookie.value, pass_of(self.token))

    def _patient(self, receive: Receive, most: int) -> Receive:
        """Receive a body, but not for ever, and not without end."""
        limits, began, received, whole = self.limits, time.monotonic(), 0, False

        async def patient() -> Message:
            nonlocal received, whole
            if whole:
                return await receive()
            left = min(limits.silence, limits.patience - (time.monotonic() - began))
            try:
                message = await asyncio.wait_for(receive(), max(left, 0.001))
            except TimeoutError:
                raise Refusal(408, "the request did not come to its end in time") from None
            received += len(message.get("body", b""))
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            if received > most:
                raise too_large(most)
            return message

        return patient


def too_large(most: int) -> Refusal:
    size = f"{most >> 20} MB" if most >> 20 else f"{most} bytes"
    return Refusal(413, f"a request of more than {size} is not taken here: send fewer at a time")


def same(given: str, wanted: str) -> bool:
    """Compare in a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


def pass_of(token: str) -> str:
    """Return what a browser keeps in place of the token."""
    return hmac.new(token.encode(), b"oarlock studio", hashlib.sha256).hexdigest()
