"""The paper's table of model sizes, counted on the real modules, which the meta device builds without memory."""

import json
from importlib.resources import files
from typing import NamedTuple

import timm
import torch

from oarlock import methods
from oarlock.nets.card import timm_card
from oarlock.nets.trunk import Trunk
from oarlock.nets.vit import Transformer
from oarlock.protocols import DEIT, PAPER, Protocol
from oarlock.training import TaskData

NEAR = 0.15  # million entries

WHY = {
    "hat": "the paper's HAT heads have an output for every class of the whole stream, ours for their task's",
    "row": "ours keeps the OOD heads as step 1 left them too, for the ablations",
    "slda": "the paper leaves out the covariance; ours keeps it (384²)",
}


class Size(NamedTuple):
    """One cell of the table, in millions of entries; the paper has no number for methods it does not compare."""

    method: str
    protocol: str
    ours: float
    paper: float | None

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.ours - self.paper

    @property
    def why(self) -> str:
        """What a difference comes from that rounding does not explain."""
        far = self.difference is not None and abs(self.difference) > NEAR
        return WHY[self.method] if far else ""


def sizes(protocols: list[str] | None = None) -> list[Size]:
    """All methods on some of the paper's protocols.

    >>> [round(size.ours, 1) for size in sizes(["c10-5t"]) if size.method == "row"]
    [23.8]
    """
    paper = json.loads((files("oarlock.data") / "paper.json").read_text())["entries"]
    trunk = _meta_trunk()
    rows = []
    for name in sorted(methods.registered()):
        printed = dict(zip(PAPER, paper.get(name, []), strict=False))
        for protocol in protocols or PAPER:
            ours = _entries(name, trunk, PAPER[protocol]) / 1e6
            rows.append(Size(name, protocol, ours, printed.get(protocol)))
    return rows


def _meta_trunk() -> Trunk:
    with torch.device("meta"):
        model = timm.create_model(DEIT, pretrained=False, num_classes=0)
        return Transformer(model, timm_card(model, DEIT, source="none"))


def _entries(name: str, trunk: Trunk, protocol: Protocol) -> int:
    cls = methods.find(name)
    config = methods.configure(cls, protocol.options(name))
    size = trunk.card.preprocessing.size
    with torch.device("meta"):
        method = cls(trunk, protocol.classes, config)
        for index in range(protocol.tasks):
            images, labels = torch.zeros(0, 3, size, size, dtype=torch.uint8), torch.zeros(0, dtype=torch.long)
            method.begin(TaskData(index, images, labels, protocol.classes_per_task, seed=0))
    kept = method.entries() + sum(tensor.numel() for tensor in trunk.tensors().values())
    if name == "agem":  # not part of its state, but the paper counts it
        kept += 3 * sum(parameter.numel() for parameter in method.parameters())
    return kept
