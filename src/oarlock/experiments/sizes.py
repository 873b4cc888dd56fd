"""The paper's table of model sizes, counted on the real modules, which the meta device builds without memory."""

import json
from importlib.resources import files
from typing import NamedTuple

import timm
import torch

from oarlock.experiments.protocols import DEIT, PAPER, Protocol
from oarlock.methods import configure, methods
from oarlock.nets.trunks import Trunk
from oarlock.nets.trunks._timm import timm_card
from oarlock.nets.trunks.vit import Transformer
from oarlock.training import TaskData

NEAR = 0.15  # million entries


class Size(NamedTuple):
    """Hold one cell of the table, in millions of entries; the paper has none for methods it does not compare."""

    method: str
    protocol: str
    ours: float
    paper: float | None

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.ours - self.paper

    @property
    def why(self) -> str:
        """Return what a difference comes from that rounding does not explain, or an empty text."""
        far = self.difference is not None and abs(self.difference) > NEAR
        return methods.find(self.method).size_note if far else ""


def sizes(protocols: list[str] | None = None) -> list[Size]:
    """Return the sizes of all methods on some of the paper's protocols.

    >>> [round(size.ours, 1) for size in sizes(["c10-5t"]) if size.method == "row"]
    [23.8]
    """
    paper = json.loads((files("oarlock.experiments") / "paper.json").read_text())["entries"]
    trunk = _meta_trunk()
    rows = []
    for name in sorted(methods.all()):
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
    config = configure(cls, protocol.options(name))
    with torch.device("meta"):
        method = cls(trunk, protocol.classes, config)
        for index in range(protocol.tasks):
            images, labels = trunk.blank(0), torch.zeros(0, dtype=torch.long)
            method.begin(TaskData(index, images, labels, protocol.classes_per_task, seed=0))
    kept = method.entries() + method.entries_while_training()
    return kept + sum(tensor.numel() for tensor in trunk.tensors().values())
