"""The model that answers: loaded again when its file changes; requests in flight keep the one they began with."""

import os
import threading
import time
from functools import cached_property
from pathlib import Path

import torch

from oarlock.data.images import Label
from oarlock.data.pictures import Preprocessing
from oarlock.errors import OarlockError
from oarlock.files import sha256_of
from oarlock.learner import Learner, load
from oarlock.studio.refusals import Refusal

LOOK = 0.2  # seconds for which a file is taken to be as it was
STEPS = [round(0.5 + step / 200, 3) for step in range(101)]  # shares of known images to accept, for the slider

Stamp = tuple[int, int, int]


class Loaded:
    """Hold a model and what is often asked about it; it never changes."""

    def __init__(self, learner: Learner, digest: str) -> None:
        self.learner, self.digest, self.loaded = learner, digest, time.time()

    @property
    def version(self) -> str:
        return self.digest[:12]

    @property
    def rule(self) -> Preprocessing:
        return self.learner.trunk.rule

    def threshold(self, accept: float | None) -> float | None:
        """Return the score from which an image is known; None where everything is."""
        if accept is None or not len(self.learner.calibration):
            return None
        return self.learner.threshold(accept)

    @cached_property
    def thresholds(self) -> list[tuple[float, float]]:
        """Return the thresholds of all positions of the slider."""
        if not len(self.learner.calibration):
            return []
        return [(accept, self.learner.threshold(accept)) for accept in STEPS]

    @cached_property
    @torch.no_grad()
    def confusions(self) -> torch.Tensor:
        """Return how often calibration photos of a class (row) are taken for another (column)."""
        known, count = self.learner.calibration, len(self.learner.classes_)
        table = torch.zeros(count, count, dtype=torch.long)
        if len(known):
            numbers = torch.tensor([self.learner.classes_.tolist().index(label) for label in self.columns])
            answers = self.learner.by_class(self.learner.predictor().read(known.encoded)).scores.argmax(1)
            pairs = (numbers[known.labels.cpu()], answers)
            table.index_put_(pairs, torch.ones(len(answers), dtype=torch.long), accumulate=True)
        return table

    @property
    def columns(self) -> list[Label]:
        """Return the classes of all tasks, one after the other: a class of which more was learned is in several."""
        return [label for task in self.learner.history_ for label in task.classes]


class CurrentModel:
    """Give out the model in a file as it is now; None while there is no such file."""

    def __init__(self, path: Path, weights: str | None = None) -> None:
        self.path, self.weights = path, weights
        self.problem: str | None = None  # why the file as it is now could not be loaded
        self.reloads = 0
        self._loaded: Loaded | None = None
        self._stamp: Stamp | None = None
        self._looked = 0.0
        self._lock = threading.Lock()

    def get(self, *, fresh: bool = False) -> Loaded | None:
        """Return the model; `fresh` looks at the file at once."""
        if not fresh and time.monotonic() - self._looked < LOOK:
            return self._loaded
        wait = fresh or self._stamp is None
        if self._lock.acquire(blocking=wait):  # while it is being loaded, others get the old one
            try:
                self._look()
            finally:
                self._lock.release()
        return self._loaded

    def need(self) -> Loaded:
        """Return the model, or refuse to go on without one."""
        loaded = self.get()
        if loaded is None:
            why = self.problem or f"there is no model {self.path.name} yet: teach it its first classes"
            raise Refusal(503 if self.problem else 409, why)
        return loaded

    def _look(self) -> None:
        self._looked = time.monotonic()
        try:
            found = os.stat(self.path)
        except OSError:
            self._stamp = self._loaded = self.problem = None
            return
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp == self._stamp:
            return
        try:
            digest = sha256_of(self.path)
            self._loaded = Loaded(load(self.path, weights=self.weights).accelerate(), digest)
            self.problem, self.reloads = None, self.reloads + 1
        except (OarlockError, OSError) as problem:  # whoever replaced it may do better; the old one goes on
            self.problem = str(problem)
        self._stamp, self._looked = stamp, time.monotonic()
