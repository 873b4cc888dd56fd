"""What the server has done, as Prometheus reads it."""

import threading
import time
from collections import Counter
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oarlock.studio.bench import LESSON, Bench

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Metrics:
    """Count requests by route, never by the path that somebody asked for."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[str, list[float]] = {}  # of each route: how many took at most …, all of them, their sum
        self.unknown = self.in_flight = 0
        self._lock = threading.Lock()

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self.requests[method, route, status] += 1
            times = self.seconds.setdefault(route, [0.0] * (len(BUCKETS) + 2))
            for place, most in enumerate(BUCKETS):
                times[place] += seconds <= most
            times[-2] += 1
            times[-1] += seconds

    def count_unknown(self, number: int) -> None:
        with self._lock:
            self.unknown += number

    def text(self, bench: Bench) -> str:
        """Return everything in the text format."""
        return "\n".join([*self._lines(bench), ""])

    def _lines(self, bench: Bench) -> Iterator[str]:
        yield from _head("oarlock_requests_total", "counter", "Requests answered.")
        for (method, route, status), number in sorted(self.requests.items()):
            yield f'oarlock_requests_total{{method="{method}",route="{route}",status="{status}"}} {number}'
        yield from _head("oarlock_request_seconds", "histogram", "How long answers took.")
        for route, times in sorted(self.seconds.items()):
            for most, below in zip(BUCKETS, times, strict=False):
                yield f'oarlock_request_seconds_bucket{{route="{route}",le="{most:g}"}} {below:g}'
            yield f'oarlock_request_seconds_bucket{{route="{route}",le="+Inf"}} {times[-2]:g}'
            yield f'oarlock_request_seconds_sum{{route="{route}"}} {times[-1]:.6f}'
            yield f'oarlock_request_seconds_count{{route="{route}"}} {times[-2]:g}'
        batcher, models = bench.batcher, bench.models
        model = models.get()
        classes = 0 if model is None else len(model.learner.classes_)
        for name, kind, told, value in (
            ("oarlock_requests_in_flight", "gauge", "Requests being answered.", self.in_flight),
            ("oarlock_images_total", "counter", "Images that passed the network.", batcher.images),
            ("oarlock_passes_total", "counter", "Passes they took: batches.", batcher.passes),
            ("oarlock_images_waiting", "gauge", "Images that wait for a pass.", batcher.waiting),
            ("oarlock_unknown_total", "counter", "Images that /predict called unknown.", self.unknown),
            ("oarlock_model_loads_total", "counter", "Times the model's file was loaded.", models.reloads),
            ("oarlock_learning", "gauge", "Whether a lesson is going on.", int(bench.jobs.running(LESSON))),
            ("oarlock_model_classes", "gauge", "Classes it knows.", classes),
        ):
            yield from _head(name, kind, told)
            yield f"{name} {value}"


def _head(name: str, kind: str, told: str) -> tuple[str, str]:
    return f"# HELP {name} {told}", f"# TYPE {name} {kind}"


class Counting:
    """Stand around an application and count what it answers."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, sending)
        finally:
            self.metrics.in_flight -= 1
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self.metrics.count(method, route, status, time.perf_counter() - began)
