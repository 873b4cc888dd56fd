"""The theory on a trained model: risks and bounds of its own detectors, measured on test images.

A task's detector is the argmax over the outputs of its OOD head, its classes and "not mine", as the head is after the
last task. What is said of the first k tasks is said with these final heads.
"""

import numpy as np
import torch

from oarlock import methods
from oarlock.errors import OarlockError
from oarlock.evaluation import Evaluator
from oarlock.methods.base import Method
from oarlock.methods.ood_heads import OodHeadMethod
from oarlock.theory import statements
from oarlock.theory.certificate import Certificate, ClosedWorld, Numbers, Statement
from oarlock.theory.statements import Array, Bound, O, World

DEFAULT_ALPHA = 0.1  # where there are unknown images: one foreign input in ten
DIGITS = 9  # beyond them is what summing thousands of masses rounds
ACCEPT = 0.95  # share of known images that the method itself accepts, where it may answer "unknown"


def has_detectors(method: type[Method]) -> bool:
    """Whether every task of the method can say "not mine"."""
    return issubclass(method, OodHeadMethod)


def check_detectors(method: Method) -> OodHeadMethod:
    """The method, unless it has no detectors."""
    if isinstance(method, OodHeadMethod):
        return method
    able = ", ".join(sorted(name for name, cls in methods.registered().items() if has_detectors(cls)))
    raise OarlockError(f'{method.name} has no detectors: its tasks cannot say "not mine", as those of {able} can')


@torch.no_grad()
def certify(evaluator: Evaluator, alpha: float | None = None) -> Certificate:
    """Measure on the evaluator's test images, with a share `alpha` of its unknown images mixed into every task."""
    learner, method = evaluator.learner, check_detectors(evaluator.learner.method)
    alpha = _checked_alpha(alpha, evaluator)
    encoded, truth = evaluator.known()
    known = len(encoded)
    unknown = evaluator.unknown() if alpha else None
    if unknown is not None:
        encoded = torch.cat([encoded, unknown])
    rows, world = _world(method.tasks_of(truth).numpy(), truth.numpy(), len(encoded) - known, alpha)

    said, sureness = (answers[rows] for answers in _detectors(method, encoded))
    sequence, free = statements.sequential(said), statements.order_free(said, sureness)
    worst = statements.order_free(said, statements.worst_claimant(said, world))
    task_of_class = np.repeat(np.arange(len(method.sizes)), method.sizes)
    own = statements.argmax_of_first(method.scores(encoded).cpu().numpy(), task_of_class)
    rejects = unknown is not None and len(learner.calibration) > 0
    if rejects:
        own[method.in_distribution(encoded).cpu().numpy() < learner.threshold(ACCEPT)] = O

    def multiplier(order: Array) -> float:
        return round(statements.multiplier_of_order(world.weights[order]), DIGITS)

    return Certificate(
        method=method.name,
        tasks=learner.tasks_,
        known_images=known,
        unknown_images=len(encoded) - known,
        alpha=alpha,
        weights=_listed(world.weights),
        own_risk=_listed(statements.risks(world, own[rows])),
        own_accept=ACCEPT if rejects else None,
        theorem3=_statement(world, sequence, statements.theorem3(world, said)),
        printed_bound=_listed(statements.theorem3_as_printed(world, said).values),
        best_multiplier=multiplier(statements.best_order(world.weights)),
        worst_multiplier=multiplier(statements.worst_order(world.weights)),
        corollary=_statement(world, free, statements.corollary(world, said)),
        worst_claimant_risk=_listed(statements.risks(world, worst)),
        theorem1=_closed_world(method, encoded[:known], truth.numpy(), task_of_class),
    )


def _checked_alpha(alpha: float | None, evaluator: Evaluator) -> float:
    has_unknown = evaluator.stream.unknown is not None and len(evaluator.stream.unknown) > 0
    if alpha is None:
        return DEFAULT_ALPHA if has_unknown else 0.0
    if not 0 <= alpha < 1:
        raise OarlockError(f"--alpha {alpha:g}: a share of foreign data is at least 0 and below 1")
    if alpha and not has_unknown:
        raise OarlockError(f"--alpha {alpha:g}: there are no unknown images to mix in; give some with --unknown")
    return alpha


def _world(task: Array, truth: Array, unknown: int, alpha: float) -> tuple[Array, World]:
    """Every task with its test images and all unknown ones; and which row of the features each sample has."""
    counts = np.bincount(task)
    tasks, known = len(counts), len(task)
    rows = np.concatenate([np.arange(known), np.tile(np.arange(known, known + unknown), tasks)])
    task = np.concatenate([task, np.repeat(np.arange(tasks), unknown)])
    truth = np.concatenate([truth, np.full(tasks * unknown, O)])
    return rows, statements.mixture(task, truth, counts / known, np.full(tasks, alpha))


def _detectors(method: OodHeadMethod, encoded: torch.Tensor) -> tuple[Array, Array]:
    """What every task's detector says, a class number or O, and the probability it gives to that."""
    said, sureness = [], []
    for t, (head, features) in enumerate(zip(method.ood_heads, method.by_task(encoded), strict=True)):
        probability, output = head(features).softmax(1).cpu().max(1)
        not_mine = output == method.sizes[t]
        said.append(torch.where(not_mine, O, method.columns(t).start + output).numpy())
        sureness.append(probability.numpy())
    return np.stack(said, 1), np.stack(sureness, 1)


def _statement(world: World, answers: Array, bound: Bound) -> Statement:
    return Statement(
        risk=_listed(statements.risks(world, answers)),
        bound=_listed(bound.values),
        multiplier=round(bound.multiplier, DIGITS),
        detector_risk=_listed(bound.detector_risks),
        foreign_share=_listed(bound.alpha),
        bound_share=_listed(bound.shares),
    )


def _listed(values: Array) -> Numbers:
    rounded: Numbers = values.round(DIGITS).tolist()
    return rounded


def _closed_world(method: Method, encoded: torch.Tensor, truth: Array, task_of_class: Array) -> ClosedWorld:
    tasks, task = range(len(method.sizes)), task_of_class[truth]
    # log-softmax leaves the order inside a task as it is, and its best score where float64 can tell it from others.
    z = torch.cat([method.within_task(encoded, i).cpu().double().log_softmax(1) for i in tasks], 1).numpy()
    wrong = statements.argmax_of_first(statements.closed_world(z, task_of_class), task_of_class) != truth[:, None]
    within = np.stack([z[:, method.columns(k)].argmax(1) + method.columns(k).start for k in tasks], 1)
    return ClosedWorld(
        newest_before=[float((within[task == k, k] != truth[task == k]).mean()) for k in tasks],
        newest=[float(wrong[task == k, k].mean()) for k in tasks],
        older=[float(wrong[task < k, k].mean()) if k else None for k in tasks],
        risk=[float(wrong[task <= k, k].mean()) for k in tasks],
    )
