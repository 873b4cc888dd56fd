"""Photos of concurrent requests go through the network together."""

import queue
import threading
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from oarlock.prediction import Prediction
from oarlock.studio.current import Loaded
from oarlock.studio.refusals import LIMITS, Refusal

TOGETHER = 64  # photos in a pass, as in `oarlock predict`


class Waiting(NamedTuple):
    """Hold the pictures of one request, and where its answer goes."""

    model: Loaded
    pictures: np.ndarray
    answer: "Future[Prediction]"


class Batcher:
    """Answer in one thread. What comes in during a pass is in the next one, so nobody waits for company."""

    def __init__(self, most: int = LIMITS.waiting) -> None:
        self.most, self.passes, self.images, self.waiting = most, 0, 0, 0
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._left: Waiting | None = None
        threading.Thread(target=self._work, name="batcher", daemon=True).start()

    def ask(self, model: Loaded, pictures: np.ndarray) -> "Future[Prediction]":
        """Return what will be the scores of pictures as the trunk sees them, uint8 [N, size, size, 3]."""
        with self._lock:
            if self.waiting + len(pictures) > self.most:
                raise Refusal(503, f"{self.waiting} photos are waiting already: send them more slowly")
            self.waiting += len(pictures)
        waiting = Waiting(model, pictures, Future())
        self._queue.put(waiting)
        return waiting.answer

    def stop(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        while (first := self._left or self._queue.get()) is not None:
            self._left = None
            together = self._company(first)
            self._answer(together)
            with self._lock:
                self.waiting -= sum(len(one.pictures) for one in together)

    def _company(self, first: Waiting) -> list[Waiting]:
        """Return the requests that wait for the same model, up to a batch."""
        together, images = [first], len(first.pictures)
        while images < TOGETHER and not self._queue.empty():
            other = self._queue.get()
            if other is None:
                self._queue.put(None)
                break
            if other.model is not first.model or images + len(other.pictures) > TOGETHER:
                self._left = other
                break
            together.append(other)
            images += len(other.pictures)
        return together

    def _answer(self, together: list[Waiting]) -> None:
        try:
            pictures = np.concatenate([one.pictures for one in together])
            predicted = together[0].model.learner.predict_scores(pictures)
            self.passes, self.images = self.passes + 1, self.images + len(pictures)
        except BaseException as problem:
            for one in together:
                one.answer.set_exception(problem)
            return
        start = 0
        for one in together:
            end = start + len(one.pictures)
            tasks = None if predicted.tasks is None else predicted.tasks[start:end]
            one.answer.set_result(
                Prediction(predicted.scores[start:end], predicted.in_distribution[start:end], tasks)
            )
            start = end
