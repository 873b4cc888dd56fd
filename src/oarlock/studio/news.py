"""News for open pages, as server-sent events: how work goes, and that something has changed."""

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import Request

from oarlock.studio.bench import Bench
from oarlock.studio.refusals import Refusal

GLANCE = 0.2  # seconds between looks for news
SILENCE = 15.0  # seconds after which a connection is told that it is still there
LISTENERS = 64  # pages that may listen at once


class News:
    """Tell every page what goes on, for as long as it listens."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.listeners = bench, 0

    def listen(self, request: Request) -> AsyncIterator[str]:
        """Return the events of one page."""
        if self.listeners >= LISTENERS:
            raise Refusal(503, f"{LISTENERS} pages are open already: close some")
        return self._events(request)

    async def _events(self, request: Request) -> AsyncIterator[str]:
        self.listeners += 1
        last, quiet = "", 0.0
        try:
            while not self.bench.closing.is_set() and not await request.is_disconnected():
                now = self._now()
                if now != last:
                    yield f"data: {now}\n\n"
                    last, quiet = now, 0.0
                elif quiet >= SILENCE:
                    yield ": still here\n\n"
                    quiet = 0.0
                await asyncio.sleep(GLANCE)
                quiet += GLANCE
        finally:
            self.listeners -= 1

    def _now(self) -> str:
        model = self.bench.models.get()
        return json.dumps(
            {"changes": self.bench.changes, "model": model and model.version, "jobs": self.bench.jobs.to_json()}
        )
