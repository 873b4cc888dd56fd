"""The rows and sentences of a certificate, the same in the terminal and on the page."""

from collections.abc import Iterator

import numpy as np

from oarlock.report.wording import count, printable, share, shorten
from oarlock.theory.certificate import Certificate, Statement

# A head breaks at the line's end in the terminal; on the page that is a space.
RISK_HEADS = ("k", "own\nrisk", "Theorem 3:\nrisk", "bound", "Corollary:\nrisk", "bound", "Theorem 1:\nrisk")
DETECTOR_HEADS = ("task", "Theorem 3:\nrisk", "foreign", "spends", "Corollary:\nrisk", "foreign", "spends")
ROUNDING = 1e-6
LONGEST_NAMES = 24


def number(value: float) -> str:
    """
    >>> number(0.5)
    '0.500'
    """
    return f"{value:.3f}"


def bound(value: float) -> str:
    """No risk is above 1, so that a bound above it says nothing.

    >>> bound(0.904), bound(1.44)
    ('0.904', '1.440 vacuous')
    """
    return f"{number(value)} vacuous" if value > 1 else number(value)


def risk_rows(certificate: Certificate) -> Iterator[tuple[str, ...]]:
    """The first k tasks: what was measured, and what it is bounded by."""
    theorem3, corollary = certificate.theorem3, certificate.corollary
    for k, own in enumerate(certificate.own_risk):
        yield (
            str(k + 1),
            number(own),
            number(theorem3.risk[k]),
            bound(theorem3.bound[k]),
            number(corollary.risk[k]),
            bound(corollary.bound[k]),
            number(certificate.theorem1.risk[k]),
        )


def detector_rows(certificate: Certificate) -> Iterator[tuple[str, ...]]:
    """Every task's detector: its risk, on which mixture, and how much of the bound it spends."""
    for t, classes in enumerate(certificate.tasks):
        cells = [f"{t + 1} {shorten(printable(', '.join(map(str, classes))), LONGEST_NAMES)}"]
        for statement in (certificate.theorem3, certificate.corollary):
            risk, foreign, spent = statement.detector_risk[t], statement.foreign_share[t], statement.bound_share[t]
            cells += [number(risk), share(foreign), share(spent)]
        yield tuple(cells)


def data_sentence(certificate: Certificate) -> str:
    known = f"Measured on {count(certificate.known_images, 'test image')}, each task weighing its share of them"
    if not certificate.alpha:
        return f"{known}; no foreign data (α = 0)."
    unknown = count(certificate.unknown_images, "unknown image")
    return f"{known}; α = {certificate.alpha:g} of every task are {unknown}, to which the right answer is “o”."


def sentences(certificate: Certificate) -> Iterator[str]:
    """What the tables show, and what stands in neither."""
    first, free = certificate.theorem3, certificate.corollary
    bounds = {"Theorem 3's bound": first, "the Corollary's": free}
    broken = [name for name, statement in bounds.items() if not _holds(statement.risk, statement.bound)]
    yield f"Broken: {' and '.join(broken)}!" if broken else "Both bounds hold for every k."
    if certificate.alpha:
        as_printed = bound(certificate.printed_bound[-1])
        kept = "does" if _holds(first.risk, certificate.printed_bound) else "does not"
        yield f"As printed, Theorem 3's bound is {as_printed}; with foreign data it need not hold; here it {kept}."
    yield (
        f"If every detector's risk is below ε, the learner's is below {first.multiplier:.2f} ε by Theorem 3 and "
        f"below {free.multiplier:.2f} ε by the Corollary. Without foreign data Theorem 3 has "
        f"{certificate.best_multiplier:.2f} ε for the best order of these tasks and "
        f"{certificate.worst_multiplier:.2f} ε for the worst."
    )
    yield f"Most of Theorem 3's bound is spent by {_biggest(first)}, most of the Corollary's by {_biggest(free)}."
    worst = certificate.worst_claimant_risk[-1]
    yield (
        "Of several tasks that claim an image the Corollary's learner takes the surest; if it always took a wrong "
        f"one, its risk would be {number(worst)}, and the bound holds for that too."
    )
    closed = certificate.theorem1
    yield (
        f"Theorem 1's scores, without foreign data, are wrong on {share(closed.newest[-1])} of the newest task's "
        f"images, as are the method's own with the task given ({share(closed.newest_before[-1])})"
        + (f", and on {share(closed.older[-1])} of older tasks' images." if closed.older[-1] is not None else ".")
    )
    yield f"Own risk is that of {certificate.method} as it is, {_rejection(certificate.own_accept)}."


def _holds(risk: list[float], values: list[float]) -> bool:
    return all(measured <= value + ROUNDING for measured, value in zip(risk, values, strict=True))


def _rejection(accept: float | None) -> str:
    if accept is None:
        return "which always answers with a class"
    return f"which says unknown below the threshold that accepts {share(accept)} of known images"


def _biggest(statement: Statement) -> str:
    t = int(np.argmax(statement.bound_share))
    return f"task {t + 1} ({share(statement.bound_share[t])})"
