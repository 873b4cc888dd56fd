"""What files of an earlier format are read as. Format 1 is of versions before 0.2."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FORMAT = 2  # of the files written today


def upgrade(kind: str, tensors: dict[str, Tensor], description: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a format-1 file under today's names; its description is changed in place."""
    if kind == "model":
        _describe_learner(description)
        return _rename(tensors)
    if kind == "checkpoint":
        _describe_learner(description["learner"])
        _upgrade_run(description["facts"], tensors)
        return _rename(tensors)
    return tensors


def upgrade_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a method under today's names.

    >>> upgrade_options({"lr": 0.1, "rejection": "claim"})
    {'lr': 0.1, 'detector': 'own'}
    """
    upgraded = dict(options)
    if "rejection" in upgraded:
        score = upgraded.pop("rejection")
        upgraded["detector"] = "own" if score == "claim" else score
    return upgraded


def upgrade_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a `result.json` under today's names."""
    if result.get("format", 1) == FORMAT:
        return result
    upgraded = dict(result)
    if "readings" in upgraded:
        upgraded["variants"] = upgraded.pop("readings")
    if isinstance(upgraded.get("config"), dict):
        sockets = {"detector": "own"} | ({"protector": "hat"} if "gate_lr" in upgraded["config"] else {})
        upgraded["config"] = sockets | upgrade_options(upgraded["config"])
    return {**upgraded, "format": FORMAT}


def _describe_learner(description: dict[str, Any]) -> None:
    shapes, card = description["shapes"], description["trunk"]["card"]
    shapes["classes_per_task"] = shapes.pop("sizes")
    if "adapters" in shapes:
        shapes["protector"] = shapes.pop("adapters")
    description["config"] = upgrade_options(description["config"])
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
    threads = {"threads": torch.get_num_threads()}  # a run's own, which is resumed on as many
    promise = {"constants": {}, "machine": threads} if kept else None
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
