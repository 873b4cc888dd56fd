"""The theory on a trained model: risks and bounds of its own detectors on test images, `theory.json`."""

from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.errors import OarlockError
from oarlock.files import read_json, write_json
from oarlock.learner import Learner
from oarlock.methods import methods
from oarlock.methods._base import Method
from oarlock.methods._ood_heads import OodHeadMethod
from oarlock.schema import Check, integer, list_of, maybe, number, plain, record, text
from oarlock.tasks import LABEL, MOST_TASKS
from oarlock.theory import statements
from oarlock.theory.statements import Array, Bound, O, World

THEORY_FILE = "theory.json"

Numbers = list[float]  # one for every task, or for every k = 1 … T


@dataclass(frozen=True)
class Statement:
    """Hold one construction on the first k tasks, and what its bound is made of."""

    risk: Numbers  # of h̃_k
    bound: Numbers  # for every k; above 1 it is vacuous
    multiplier: float
    detector_risk: Numbers  # R_t, on the mixture that h_t is charged with
    foreign_share: Numbers  # α'_t of that mixture
    bound_share: Numbers  # of the bound for all tasks, spent by h_t


@dataclass(frozen=True)
class ClosedWorld:
    """Hold risks of Theorem 1's counterexample: as good as before inside task k, useless for all tasks before it."""

    newest_before: Numbers  # risk of the method's own scores inside task k, the task given
    newest: Numbers  # risk of σ(z) + i on the images of task k, the first k tasks competing
    older: list[float | None]  # its risk on the images of tasks before k
    risk: Numbers  # its risk on the images of the first k tasks


@dataclass(frozen=True)
class Certificate:
    """Hold measured risks and bounds of a model's own detectors, as they are after the last task."""

    method: str
    tasks: list[list[str | int]]
    known_images: int
    unknown_images: int
    alpha: float  # the share of unknown images mixed into every task
    weights: Numbers  # π: the tasks' shares of the test images
    own_risk: Numbers  # of the method itself, the first k tasks competing
    own_accept: float | None  # it answers "unknown" below the threshold that accepts this share; None: never
    theorem3: Statement
    printed_bound: Numbers  # the paper's, which need not hold where alpha > 0
    best_multiplier: float  # Theorem 3's, without foreign data, for the best order of these tasks
    worst_multiplier: float
    corollary: Statement  # among several claimants the surest is chosen
    worst_claimant_risk: Numbers  # of the same when a wrong one is chosen
    theorem1: ClosedWorld

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_certificate(certificate: Certificate, run_dir: Path) -> None:
    write_json(run_dir / THEORY_FILE, certificate.to_json())


def read_certificate(run_dir: Path) -> Certificate | None:
    """Return the content of a run's `theory.json`, checked; None where there is none."""
    file = run_dir / THEORY_FILE
    if not file.is_file():
        return None
    content = read_json(file)
    try:
        tasks = TASKS(content, "")["tasks"]
        certificate: Certificate = _parse(Certificate, content, len(tasks), "")
    except OarlockError as problem:
        raise OarlockError(f"{file} is damaged ({problem}); write it again with oarlock theory") from problem
    return certificate


def _parse(kind: Any, content: Any, tasks: int, place: str) -> Any:
    """A certificate or a part of it, whose fields say what there has to be."""
    kinds, parts = _kinds(tasks), {one.name: one.type for one in fields(kind) if is_dataclass(one.type)}
    checks = {one.name: kinds[one.type] for one in fields(kind) if one.name not in parts}
    values = record({**checks, **dict.fromkeys(parts, plain)})(content, place)
    nested = {name: _parse(part, values[name], tasks, name) for name, part in parts.items()}
    return kind(**{name: values[name] for name in checks}, **nested)


NUMBER = number(-1e12, 1e12)
TASKS = record({"tasks": list_of(list_of(LABEL, least=1), least=1, most=MOST_TASKS)})


def _kinds(tasks: int) -> dict[Any, Check]:
    return {
        str: text(100),
        list[list[str | int]]: plain,
        int: integer(0),
        float: NUMBER,
        float | None: maybe(NUMBER),
        Numbers: list_of(NUMBER, tasks, tasks),
        list[float | None]: list_of(maybe(NUMBER), tasks, tasks),
    }


DEFAULT_ALPHA = 0.1  # where there are unknown images: one foreign input in ten
DIGITS = 9  # beyond them is what summing thousands of masses rounds
ACCEPT = 0.95  # share of known images that the method itself accepts, where it may answer "unknown"


def has_ood_heads(method: type[Method]) -> bool:
    """Return whether every task of the method can say "not mine"."""
    return issubclass(method, OodHeadMethod)


def check_ood_heads(method: Method) -> OodHeadMethod:
    """Return the method; refuse one without OOD heads."""
    if isinstance(method, OodHeadMethod):
        return method
    able = ", ".join(sorted(name for name, cls in methods.all().items() if has_ood_heads(cls)))
    raise OarlockError(f'{method.name} has no OOD heads: its tasks cannot say "not mine", as those of {able} can')


@torch.no_grad()
def certify(
    learner: Learner, encoded: Tensor, truth: Tensor, unknown: Tensor | None = None, alpha: float | None = None
) -> Certificate:
    """Return risks and bounds measured on features of test images and their class numbers, with a share `alpha` of
    unknown images mixed into every task."""
    method, known = check_ood_heads(learner.method), len(encoded)
    alpha = _checked_alpha(alpha, unknown is not None)
    unknown = unknown if alpha else None
    if unknown is not None:
        encoded = torch.cat([encoded, unknown])
    rows, world = _world(method.tasks_of(truth).numpy(), truth.numpy(), len(encoded) - known, alpha)

    said, sureness = (answers[rows] for answers in _detectors(method, encoded))
    sequence, free = statements.sequential(said), statements.order_free(said, sureness)
    worst = statements.order_free(said, statements.worst_claimant(said, world))
    task_of_class = np.repeat(np.arange(len(method.classes_per_task)), method.classes_per_task)
    own = statements.argmax_of_first(method.scores(encoded).cpu().numpy(), task_of_class)
    rejects = unknown is not None and len(learner.calibration) > 0
    if rejects:
        own[~(method.in_distribution(encoded).cpu().numpy() >= learner.threshold(ACCEPT))] = O  # nor what is NaN

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


def _checked_alpha(alpha: float | None, has_unknown: bool) -> float:
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


def _detectors(method: OodHeadMethod, encoded: Tensor) -> tuple[Array, Array]:
    """What every task's detector says, a class number or O, and the probability it gives to that."""
    said, sureness = [], []
    for t, (head, features) in enumerate(zip(method.ood_heads, method.by_task(encoded), strict=True)):
        probability, output = head(features).softmax(1).cpu().max(1)
        not_mine = output == method.classes_per_task[t]
        said.append(torch.where(not_mine, O, method.class_slice(t).start + output).numpy())
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


def _closed_world(method: Method, encoded: Tensor, truth: Array, task_of_class: Array) -> ClosedWorld:
    tasks, task = range(len(method.classes_per_task)), task_of_class[truth]
    # log-softmax leaves the order inside a task as it is, and its best score where float64 can tell it from others.
    z = torch.cat([method.within_task(encoded, i).cpu().double().log_softmax(1) for i in tasks], 1).numpy()
    wrong = statements.argmax_of_first(statements.closed_world(z, task_of_class), task_of_class) != truth[:, None]
    within = np.stack([z[:, method.class_slice(k)].argmax(1) + method.class_slice(k).start for k in tasks], 1)
    return ClosedWorld(
        newest_before=[float((within[task == k, k] != truth[task == k]).mean()) for k in tasks],
        newest=[float(wrong[task == k, k].mean()) for k in tasks],
        older=[float(wrong[task < k, k].mean()) if k else None for k in tasks],
        risk=[float(wrong[task <= k, k].mean()) for k in tasks],
    )
