"""What a learner's state has to be before anything is built from it.

A description comes from whoever wrote the file. It is held against a schema; what it describes is built without
memory; and only where that fits the tensors that came with it, name by name, is it built for good.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from oarlock.edits import EDIT, MOST_EDITS, Edit
from oarlock.errors import OarlockError
from oarlock.files import by_part, read_tensors
from oarlock.memory import EncodedImages
from oarlock.methods import configure, methods
from oarlock.nets.skeleton import check_finite, check_fit, skeleton
from oarlock.nets.trunks import LOCAL, Card, Trunk, build_trunk, families, load_trunk
from oarlock.nets.trunks._base import fitting
from oarlock.prediction import Predictor
from oarlock.schema import (
    boolean,
    either,
    integer,
    list_of,
    mapping,
    matching,
    maybe,
    number,
    of_file,
    plain,
    record,
    text,
    understood,
)
from oarlock.tasks import MOST_TASKS, TASK, FinishedTask

if TYPE_CHECKING:
    from oarlock.learner import Learner

EMBED_LIMIT = 20 * 2**20  # bytes; a larger trunk is stored by name and hash
SHA256 = matching("[0-9a-f]{64}")
OPTION = maybe(either(boolean, text(200), number()))
DESCRIPTION = record(
    {
        "method": text(100),
        "config": mapping(OPTION, most=200),
        "memory": integer(0),
        "seed": integer(-(2**63), 2**63 - 1),
        "calibration_share": number(0, 0.9),
        "tasks": list_of(TASK, most=MOST_TASKS),
        "edits": list_of(EDIT, most=MOST_EDITS),
        "shapes": record({"classes_per_task": list_of(integer(1), most=MOST_TASKS)}),
        "calibration": list_of(integer(0), 2, 3),
        "known_scores": integer(0),
        "trunk": record({"card": plain, "sha256": SHA256, "embedded": boolean}),
    }
)
REGISTERED = 4  # times that a tensor is made until it has its shape, at most
SPARE = 200  # tensors that files do not keep
HALVES = (torch.float16, torch.bfloat16)


class Restored(NamedTuple):
    """Hold a learner that has its method's and its calibration images' tensors, and what else it has to know."""

    learner: "Learner"
    tasks: list[FinishedTask]
    edits: list[Edit]
    known_scores: Tensor


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what a model file holds; refuse one that stands in the middle of a task."""
    tensors, description = read_tensors(path, "model")
    with of_file(path):
        check_position(description, begun=False)
    return tensors, description


def check_position(description: Any, begun: bool) -> None:
    """Refuse a learner's description that has begun a task which it has not finished, or the other way round."""
    found = DESCRIPTION(description, "")
    unfinished = len(found["shapes"]["classes_per_task"]) - len(found["tasks"])
    if unfinished != int(begun):
        raise OarlockError(f"it has begun {unfinished} tasks that it has not finished, in place of {int(begun)}")


def restored(
    new: "type[Learner]", tensors: Mapping[str, Tensor], description: Any, weights: str | Path | None
) -> Restored:
    """Return a learner from its state. Until the trunk is loaded, which may be a download, nothing is built that
    takes memory."""
    found, parts = checked(new, tensors, description), by_part(tensors)
    of_tasks = by_part(parts.get("tasks", {}))
    with understood("the model"):
        learner = _shaped(new, found, trunk_from(found["trunk"], parts.get("trunk", {}), weights))
        learner.method.load_state_dict(parts.get("method", {}), assign=True)
        learner.calibration.load_state_dict(parts["calibration"], assign=True)
        tasks = [
            FinishedTask.from_state(of_tasks.get(str(index), {}), task) for index, task in enumerate(found["tasks"])
        ]
        _check_contents(learner, tasks)
    if bool(tensors["known_scores"].isnan().any()):
        raise OarlockError("the known scores of the model hold what is no number")
    return Restored(learner, tasks, [Edit.from_state(edit) for edit in found["edits"]], tensors["known_scores"])


def _shaped(new: "type[Learner]", description: dict[str, Any], trunk: Trunk) -> "Learner":
    """A learner of the shapes that were described; the tensors come afterwards."""
    learner = new(
        description["method"],
        trunk=trunk,
        memory=description["memory"],
        calibration=description["calibration_share"],
        seed=description["seed"],
        device=trunk.mean.device,
        **description["config"],
    )
    learner.method.rebuild(description["shapes"])
    if len(description["calibration"]) == 2:  # they are not packed
        learner.calibration = EncodedImages(trunk.blank(0), trunk.dim)
    learner.calibration.rebuild(description["calibration"])
    return learner


@torch.no_grad()
def _check_contents(learner: "Learner", tasks: list[FinishedTask]) -> None:
    """Images are of classes that there are, and the model has an answer: that is better found when a file is opened
    than when somebody asks."""
    method, classes = learner.method, sum(len(task.classes) for task in tasks)
    method.memory.check(sum(method.classes_per_task))
    learner.calibration.check(classes)
    if tasks and len(tasks) == len(method.classes_per_task):
        nothing = torch.zeros(1, len(method.feature_sets(len(tasks))), learner.trunk.dim)
        answer = Predictor(method, len(tasks)).read(nothing)
        if answer.scores.shape != (1, classes) or answer.in_distribution.shape != (1,):
            raise OarlockError(f"the model does not answer with one of its {classes} classes")


def checked(new: "type[Learner]", tensors: Mapping[str, Tensor], description: Any) -> dict[str, Any]:
    """Return a learner's description when it describes the tensors that came with it, and nothing else."""
    with understood("the description"):
        found = DESCRIPTION(description, "")
        method = methods.find(found["method"])
        configure(method, found["config"])
        record(method.described)(found["shapes"], "shapes")
        _check_classes(found)
        parts = by_part(tensors)
        trunk = _sketched(found["trunk"], parts.pop("trunk", {}))
        ours = {name: value for name, value in tensors.items() if not name.startswith("trunk.")}
        with skeleton(REGISTERED * len(ours) + SPARE, "the file"):
            learner = _shaped(new, found, trunk)
        told = json.loads(json.dumps(learner.method.describe()))
        if wrong := [name for name in told if told[name] != _as_json(found["shapes"].get(name))]:
            raise OarlockError(f"shapes.{wrong[0]} describes what cannot be built")
        check_fit(_expected(learner, found, ours), ours, "the file")
        check_finite({name: value for name, value in ours.items() if name != "known_scores"}, "the file")
    return found


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _check_classes(found: dict[str, Any]) -> None:
    """Labels are of one kind; a task has as many as the method knows of."""
    tasks, begun = found["tasks"], found["shapes"]["classes_per_task"]
    counts = [len(task["classes"]) for task in tasks]
    labels = list(chain.from_iterable(task["classes"] for task in tasks))
    if begun[: len(counts)] != counts or len(begun) > len(counts) + 1:
        raise OarlockError("its tasks are others than those that its shapes speak of")
    if len({type(label) for label in labels}) > 1:
        raise OarlockError("its tasks name classes, some by text and some by numbers")
    for index, task in enumerate(tasks):
        if len(task["images"]) != len(task["classes"]):
            raise OarlockError(f"tasks[{index}] has other classes than numbers of images")


def _sketched(description: dict[str, Any], tensors: dict[str, Tensor]) -> Trunk:
    """The trunk without values; where the file has its tensors, they are those."""
    card = Card.from_json(description["card"])
    family, most = families.find(card.family), REGISTERED * len(tensors) + SPARE
    with skeleton(most, "the trunk's card") if description["embedded"] else nullcontext():
        trunk = family.sketch(card)
    if description["embedded"]:
        wanted = trunk.tensors()
        found = fitting(trunk.model, tensors, card.name)
        if wrong := [name for name, value in found.items() if not _keeps(value, wanted[name])]:
            raise OarlockError(f"the trunk's {wrong[0]!r} is {found[wrong[0]].dtype}, not {wanted[wrong[0]].dtype}")
        check_finite(found, "the trunk")
    elif tensors:
        raise OarlockError("the file has tensors of a trunk that it says to be elsewhere")
    return trunk


def _keeps(value: Tensor, wanted: Tensor) -> bool:
    return value.dtype == wanted.dtype or (wanted.dtype == torch.float32 and value.dtype in HALVES)


def _expected(learner: "Learner", found: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What there has to be of tensors besides the trunk's; promises may be about anything."""
    expected = {f"method.{name}": value for name, value in learner.method.state_dict().items()}
    expected |= {f"calibration.{name}": value for name, value in learner.calibration.state_dict().items()}
    expected["known_scores"] = torch.empty(len(learner.calibration), device="meta")
    if found["known_scores"] != len(learner.calibration):
        raise OarlockError("known_scores is not the number of calibration images")
    of_tasks = by_part(by_part(tensors).get("tasks", {}))
    for index, task in enumerate(found["tasks"]):
        if task["promise"] is None:
            continue
        promised = of_tasks.get(str(index), {})
        images = len(promised["images"]) if "images" in promised and promised["images"].ndim else 0
        if not images:
            raise OarlockError(f"task {index + 1} promises something about no images")
        with torch.device("meta"):
            expected[f"tasks.{index}.images"] = learner.trunk.blank(images)
        answers = {name: value for name, value in promised.items() if name.startswith("answers.")}
        for name, value in answers.items():
            expected[f"tasks.{index}.{name}"] = torch.empty(value.shape, device="meta")
    return expected


# Trunks


def trunk_state(trunk: Trunk) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a trunk's tensors, none if it is large, and its description."""
    embed = trunk.size_bytes <= EMBED_LIMIT
    tensors = {name: compact(value) for name, value in trunk.tensors().items()} if embed else {}
    return tensors, {"card": trunk.card.to_json(), "sha256": trunk.sha256, "embedded": embed}


def trunk_from(description: dict[str, Any], tensors: dict[str, Tensor], weights: str | Path | None) -> Trunk:
    """Return the trunk that was described: of the tensors given, or of `weights`, or by its name."""
    card = Card.from_json(description["card"])
    if not description["embedded"] and weights is None and card.source.startswith(LOCAL):
        raise OarlockError(f"the weights of its trunk {card.name!r} came from a {card.source}: pass it with weights=")
    if description["embedded"]:
        trunk = build_trunk(card, tensors)
    else:
        trunk = load_trunk(card.name, weights, card.preprocessing.size)
    if trunk.sha256 != description["sha256"]:
        raise OarlockError(
            f"the weights of the trunk {card.name!r} are not those the model was trained on; "
            "pass the right file with weights="
        )
    return trunk


def compact(tensor: Tensor) -> Tensor:
    """Return a tensor in half precision where that loses nothing, as with weights that were published so."""
    half = tensor.half() if tensor.dtype == torch.float32 else tensor
    return half if torch.equal(half.to(tensor.dtype), tensor) else tensor
