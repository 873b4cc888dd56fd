"""How well every detector that a trained method can use tells known images from unknown ones: one training, all of
them."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from oarlock.detectors import EvidenceOf, detectors
from oarlock.errors import OarlockError
from oarlock.experiments import metrics
from oarlock.learner import Learner
from oarlock.tasks import sure_rank


class Detection(NamedTuple):
    """Hold what came of one detector."""

    detector: str
    auroc: float
    fpr95: float
    accepted: (
        float | None
    )  # share of known images above the line for `accept`; None: there are no others than its own
    milliseconds: float  # for an image, once its features are at hand
    known: np.ndarray  # scores
    unknown: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """Return the figures, without the scores."""
        figures = {name: value for name, value in self._asdict().items() if name not in ("known", "unknown")}
        return {name: round(value, 5) if isinstance(value, float) else value for name, value in figures.items()}


def usable(evidence: Mapping[str, EvidenceOf]) -> list[str]:
    """Return names of the detectors that need no other evidence.

    >>> from oarlock.methods import methods
    >>> usable(methods.find("finetune").evidence)
    ['confidence', 'energy', 'gen', 'max-logit', 'own', 'score']
    """
    return sorted(name for name, detector in detectors.all().items() if not detector.missing(evidence))


def detect(learner: Learner, known: Tensor | None, unknown: Tensor, accept: float) -> list[Detection]:
    """Return every detector's figures, best AUROC first, from features in all feature sets. Lines are drawn on
    calibration images; without other known images, these are the known ones."""
    kept = learner.calibration.encoded
    if known is None and not len(kept):
        raise OarlockError("the model keeps no known images to compare with: say where there are some with --data")
    found = list(_each(learner, kept if known is None else known, unknown, accept))
    return sorted(found if known is not None else (one._replace(accepted=None) for one in found), key=_order)


def _order(one: Detection) -> tuple[float, str]:
    return -one.auroc, one.detector


@torch.no_grad()
def _each(learner: Learner, known: Tensor, unknown: Tensor, accept: float) -> Iterator[Detection]:
    method, kept = learner.method, learner.calibration.encoded
    own = method.config
    try:
        for name in usable(method.at_hand()):
            method.config = dataclasses.replace(own, detector=name)
            method.in_distribution(known[:1])  # some prepare something when they are first asked
            started = time.perf_counter()
            of_known, of_unknown = (method.in_distribution(seen).cpu().numpy() for seen in (known, unknown))
            spent = time.perf_counter() - started
            accepted = None
            if len(kept):
                lines = method.in_distribution(kept).sort().values.cpu().numpy()
                accepted = float(np.mean(of_known >= lines[sure_rank(len(lines), accept)]))
            yield Detection(
                name,
                metrics.auroc(of_known, of_unknown),
                metrics.fpr_at_95(of_known, of_unknown),
                accepted,
                1000 * spent / (len(known) + len(unknown)),
                of_known,
                of_unknown,
            )
    finally:
        method.config = own
