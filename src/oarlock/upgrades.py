"""What files of an earlier format are read as.

Format 1 is of versions before 0.2. Up to format 2 `row` was what is now `oar`, and `row-paper` what is now `row`.
Up to format 3 every task of `oar` had adapters, up to format 4 every covariance was whole, up to format 5 nothing
could be corrected, and where tasks of `oar` have no adapters, unknown inputs were told by the most familiar class. Up
to format 6 a covariance of all classes was rounded to single precision after every task, and a task used all
bottlenecks that there were when it began.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oarlock.errors import OarlockError

FORMAT = 7  # of the files written today
CORRECTED = 6  # since when classes can be renamed, merged and forgotten
RANKED = 5  # since when a covariance may be kept as the directions that images vary along
CLOSED = 4  # since when tasks of `oar` may leave the adapters closed
NAMED = 3  # since when methods have today's names
LARGEST_CHANGE = 2**24  # numbers in a layer that was tuned
NOT_YET = {
    "delta": 0.0,
    "looks": 1,
    "few": 0,
    "tune_steps": 0,
    "tune_last": 3,
    "tune_lr": 0.003,
    "tune_classes": 5,
}  # options of `oar` that came later, saying that it does without


def is_newer(content: Any) -> bool:
    """Return whether what was read as JSON was written by a later version."""
    written = content.get("format") if isinstance(content, dict) else None
    return type(written) is int and written > FORMAT


def upgrade(kind: str, tensors: dict[str, Tensor], description: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of an older file under today's names; its description is changed in place."""
    if kind not in ("model", "checkpoint"):
        return tensors
    part, learner = ("", description) if kind == "model" else ("learner.", description["learner"])
    facts = description.get("facts", {})
    if description["format"] < 2:
        tensors = _rename(tensors)
        _describe_learner(learner)
        _upgrade_run(facts, tensors)
    if description["format"] < NAMED:
        if "record" in facts:
            facts["record"]["variants"] = _variants(facts["record"]["variants"], learner["method"], learner["config"])
        if "conditions" in facts:
            name, options = upgrade_method(facts["conditions"]["method"], facts["conditions"])
            facts["conditions"] = options | {"method": name}
        learner["method"], learner["config"] = upgrade_method(learner["method"], learner["config"])
    if learner["method"] == "oar" and description["format"] < CLOSED:
        shapes = learner["shapes"]
        tuning = shapes.setdefault("tuning", {"done": False, "layers": {}})
        tuning["layers"] = {name: shape[:2] for name, shape in tuning["layers"].items()}
        tensors = _whole_changes(tensors)
        shapes["closed"] = [False] * len(shapes["classes_per_task"])
        learner["config"] = without_closed("oar", learner["config"])
        if "conditions" in facts:
            facts["conditions"] = without_closed("oar", facts["conditions"])
    if learner["method"] != "oar" and f"{part}method.trunk_gaussians.means" in tensors:
        tensors = _without_bare_trunk(learner, tensors, part)
    if description["format"] < RANKED:
        whitenings = [tensors.get(f"{part}method.gaussians.{k}.whitening") for k in range(len(_sizes(learner)))]
        learner["shapes"]["ranks"] = [None if whole is None else len(whole) for whole in whitenings]
    if description["format"] < CORRECTED:
        _nothing_corrected(kind, learner)
    _reach_from_first(learner["shapes"].get("protector", {}))
    return _summed_exactly(tensors)


def _sizes(learner: Mapping[str, Any]) -> list[int]:
    sizes: list[int] = learner["shapes"]["classes_per_task"]
    return sizes


def upgrade_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of format 1 under the names of format 2.

    >>> upgrade_options("row", {"lr": 0.1, "rejection": "claim"})
    {'lr': 0.1, 'detector': 'own'}
    """
    upgraded = dict(options)
    if "rejection" in upgraded:
        score = upgraded.pop("rejection")
        ignored = method.startswith("row-")  # which rejected by their own scores, whatever was chosen
        upgraded["detector"] = "own" if ignored or score == "claim" else score
    return upgraded


def upgrade_method(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return what a method of format 2 is called today, with its options.

    >>> upgrade_method("row", {"gamma": 8.0, "beta": 0.8})[0]
    'oar'
    >>> upgrade_method("row-paper", {"gamma": 8.0, "beta": 0.8, "detector": "own"})
    ('row', {'gamma': 1.0, 'detector': 'score'})
    """
    upgraded = dict(options)
    if name == "row" and not _as_in_the_paper(options):
        return "oar", upgraded | NOT_YET
    if name in ("row", "row-paper", "row-wp", "row-wp-md"):
        upgraded.pop("beta", None)
    if name != "row-paper":
        return name, upgraded
    own = upgraded.get("detector", "own") == "own"  # its scores, not what it told tasks apart by
    return "row", upgraded | {"gamma": 1.0} | ({"detector": "score"} if own else {})


def without_closed(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of format 3 as they are said today: however few images, adapters were open.

    >>> without_closed("oar", {"few": 100, "beta": 0.5})["few"]
    0
    """
    if method != "oar":
        return dict(options)
    return {**NOT_YET, **{name: value for name, value in options.items() if name != "tune_rank"}, "few": 0}


def upgrade_name(name: str, options: Mapping[str, Any], paper: bool) -> str:
    """Return what a method is called today that was asked for with some options; in the paper's protocols `row` had
    the paper's.

    >>> upgrade_name("row", {}, paper=False), upgrade_name("row", {}, paper=True)
    ('oar', 'row')
    """
    given = {name: float(options[name]) for name in ("gamma", "beta") if name in options}  # text, from a command line
    return upgrade_method(name, ({"gamma": 1, "beta": 0} if paper else {}) | given)[0]


def upgrade_runs(runs: Mapping[str, Any], paper: bool) -> dict[str, Any]:
    """Return the content of `runs.json`, whose options are those that all methods were given, under today's names."""
    options = upgrade_options("row", runs["settings"].get("options", {}))
    names = [upgrade_name(str(name), options, paper) for name in runs["methods"]]
    return {"methods": list(dict.fromkeys(names)), "settings": {**runs["settings"], "options": options}}


def upgrade_run_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run's `config.json`, which has every option of its method, under today's names."""
    options, method = config.get("options", {}), config.get("method", "row")
    if config.get("format", 1) >= CLOSED or not isinstance(options, dict):
        return dict(config)
    if config.get("format", 1) < NAMED:
        method, options = upgrade_method(method, upgrade_options(method, options))
    return {**config, "method": method, "options": without_closed(method, options)}


def upgrade_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a `result.json` under today's names."""
    written = result.get("format", 1)
    if written == FORMAT:
        return result
    upgraded = {**result, "format": FORMAT}
    if "readings" in upgraded:
        upgraded["variants"] = upgraded.pop("readings")
    method, config, variants = (upgraded.get(name) for name in ("method", "config", "variants"))
    if not (isinstance(method, str) and isinstance(config, dict)):
        return upgraded
    if written == 1:
        sockets = {"detector": "own"} | ({"protector": "hat"} if "gate_lr" in config else {})
        config = sockets | upgrade_options(method, config)
    if written < NAMED:
        if isinstance(variants, dict):
            upgraded["variants"] = _variants(variants, method, config)
        method, config = upgrade_method(method, config)
    upgraded["method"] = method
    upgraded["config"] = without_closed(method, config) if written < CLOSED else config
    return upgraded


def _as_in_the_paper(options: Mapping[str, Any]) -> bool:
    return (options.get("gamma"), options.get("beta")) == (1, 0)


def _variants(variants: Mapping[str, Any], method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The ablation without WP heads was read with the exponent of what is now `oar`; `row` is not its own variant."""
    if method != "row":
        return dict(variants)
    names = {"row-paper": "row", "row-wp": "row-wp" if options.get("gamma") == 1 else "oar-wp"}
    read = {names.get(name, name): value for name, value in variants.items()}
    if _as_in_the_paper(options):
        read.pop("row", None)
    return read


def _nothing_corrected(kind: str, learner: dict[str, Any]) -> None:
    if kind == "model" and learner["config"].get("detector") == "own" and any(learner["shapes"].get("closed", ())):
        learner["config"] = learner["config"] | {"detector": "familiar"}  # which its thresholds are of
    learner["edits"] = []


def _summed_exactly(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is kept of a covariance is its sum over images, as a triangle in double precision."""
    summed = {}
    for name, value in tensors.items():
        part, _, last = name.rpartition(".")
        if last == "covariance":
            row, column = torch.tril_indices(*value.shape)
            summed[f"{part}.scatter.triangle"] = value.double()[row, column] * tensors[f"{part}.count"]
        else:
            summed[name] = value
    return summed


def _reach_from_first(protector: dict[str, Any]) -> None:
    if "bottlenecks" in protector:
        protector["first"] = [[0] * len(counts) for counts in protector["tasks"]]


def _without_bare_trunk(learner: dict[str, Any], tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    """ROW does not look at the bare trunk's features, which stood before those of the tasks."""
    bare = f"{part}method.trunk_gaussians."
    kept = {name: value for name, value in tensors.items() if not name.startswith(bare)}
    for name, shape in (
        (f"{part}method.memory.encoded", learner["shapes"]["memory"]),
        (f"{part}calibration.encoded", learner["calibration"]),
    ):
        rows = -(-tensors[f"{bare}means"].shape[1] // kept[name].shape[2])
        kept[name] = kept[name][:, rows:]
        shape[1] = kept[name].shape[1]
    del learner["shapes"]["trunk_classes"]
    return kept


def _whole_changes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a trunk was tuned by were products of two thin matrices."""
    whole = {}
    for name, value in tensors.items():
        if ".tuning.changes." in name and name.endswith(".up"):
            if len(value) * tensors[name.removesuffix("up") + "down"][0].numel() > LARGEST_CHANGE:
                raise OarlockError(f"{name!r} is of a larger layer than any trunk had")
            whole[name.removesuffix("up") + "change"] = value @ tensors[name.removesuffix("up") + "down"]
        elif not (".tuning.changes." in name and name.endswith(".down")):
            whole[name] = value
    return whole


# Format 1


def _describe_learner(description: dict[str, Any]) -> None:
    shapes, card = description["shapes"], description["trunk"]["card"]
    shapes["classes_per_task"] = shapes.pop("sizes")
    if "adapters" in shapes:
        shapes["protector"] = shapes.pop("adapters")
    description["config"] = upgrade_options(description["method"], description["config"])
    card["family"] = "cnn" if "blocks" in (card["architecture"] or {}) else "vit"


def _upgrade_run(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """What a run keeps in its checkpoints: promises were bare values, of which those of all images were kept too."""
    if "record" not in facts:
        return
    facts["record"]["variants"] = facts["record"].pop("readings")
    kept = {name for name in tensors if name.startswith("kept.")}
    for name in kept:
        _, task, value = name.split(".", 2)
        tensors[f"kept.{task}.answers.{value}"] = tensors.pop(name)
    # Where is not known; threads are a run's own, which is resumed on as many.
    unknown = dict.fromkeys(("cpu", "instructions", "torch", "device"), "unknown")
    machine = {**unknown, "threads": torch.get_num_threads()}
    promise = {"constants": {}, "machine": machine} if kept else None
    facts["promises"] = [promise] * len(facts["record"]["accuracy"])


def _rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One network for all tasks had room for gates that it never used; what protects tasks was called adapters."""
    renamed = {}
    for name, value in tensors.items():
        shared = re.search(r"method\.(network|copies\.\w+)\.adapters\.", name)
        if shared and name.endswith(("hidden_used", "output_used")):
            continue
        if shared:
            name = name.replace(".bottlenecks.0.", ".")
        renamed[re.sub(r"^((?:learner\.)?method)\.adapters\.", r"\1.protector.", name)] = value
    return renamed
