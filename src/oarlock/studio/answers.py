"""What a model says of photos, kept for as long as it is the model that answers."""

import math
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oarlock.errors import OarlockError
from oarlock.modelfile.predict import Answer, read_answers
from oarlock.prediction import Prediction
from oarlock.schema import boolean, integer, list_of, mapping, matching, maybe, number, record, text
from oarlock.studio.current import Loaded
from oarlock.studio.store import Store
from oarlock.tasks import LABEL

TOP = 3  # classes that are named for a photo
ANSWER = record(
    {
        "name": text(),
        "label": maybe(LABEL),
        "unknown": boolean,
        "probability": maybe(number(0, 1.001)),
        "task": integer(1),
        "score": maybe(number()),
        "top": list_of(record({"label": LABEL, "probability": maybe(number(0, 1.001))}), 1, TOP),
    },
    others=False,
)
KEPT = record({"model": matching("[0-9a-f]{64}"), "answers": mapping(ANSWER)})
Said = dict[str, Any]  # JSON of one answer


def said(model: Loaded, predicted: Prediction, accept: float | None, top: int, names: list[str]) -> list[Said]:
    """Return answers in the form of `oarlock predict --json`, with `name` in place of `path`."""
    answers = read_answers(model.learner, [Path(name) for name in names], predicted, model.threshold(accept), top)
    return [_said(answer, name) for answer, name in zip(answers, names, strict=True)]


def _said(answer: Answer, name: str) -> Said:
    return {
        "name": name,
        "label": answer.label,
        "unknown": answer.label is None,
        "probability": finite(answer.probability),
        "task": answer.task,
        "score": finite(answer.score),
        "top": [{"label": label, "probability": finite(value)} for label, value in answer.top],
    }


def finite(value: float) -> float | None:
    """Return a number as JSON has it: none for what is none."""
    return value if math.isfinite(value) else None


class Answers:
    """Keep the answers to photos, those of the current model only, on the disk when asked to."""

    FILE = "answers.json"

    def __init__(self, store: Store) -> None:
        self.store = store
        self._digest, self._answers, self._lock = "", dict[str, Said](), threading.Lock()

    def load(self) -> None:
        """Take over what was kept; what cannot be read is made anew, as everything here can be."""
        try:
            content = self.store.read(self.FILE)
            if content is not None:
                kept = KEPT(content, "")
                self._digest, self._answers = kept["model"], kept["answers"]
        except OarlockError:
            self._digest, self._answers = "", {}

    def save(self) -> None:
        with self._lock:
            content = {"model": self._digest, "answers": dict(self._answers)}
        if self._digest:
            self.store.write(self.FILE, content)

    def of(self, model: Loaded) -> dict[str, Said]:
        """Return all answers of this model."""
        with self._lock:
            return dict(self._answers) if self._digest == model.digest else {}

    def put(self, model: Loaded, photos: Iterable[str], answers: Iterable[Said]) -> None:
        """Keep answers; those of another model are forgotten."""
        with self._lock:
            if self._digest != model.digest:
                self._digest, self._answers = model.digest, {}
            self._answers.update(zip(photos, answers, strict=True))

    def clear(self) -> None:
        """Forget all answers, on the disk as well."""
        with self._lock:
            self._digest, self._answers = "", {}
        self.store.remove(self.FILE)

    def forget(self, photos: Iterable[str]) -> None:
        with self._lock:
            for photo in photos:
                self._answers.pop(photo, None)


def is_known(answer: Said, threshold: float | None) -> bool:
    """Return whether an answer is accepted; what is not a number reaches nothing."""
    score = answer["score"]
    return score is not None and (threshold is None or score >= threshold)
