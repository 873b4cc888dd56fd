"""Trunks by name: the bundled one, EfficientNet-lite0, and timm's vision transformers."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
from torch import Tensor

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets import efficientnet
from oarlock.nets.base import Trunk
from oarlock.nets.card import LOCAL, Card, imagenet_classes, timm_card
from oarlock.nets.checkpoints import load_weights, read_weights
from oarlock.nets.cnn import ConvNet, efficientnet_lite
from oarlock.nets.vit import Transformer, check_supported, vision_transformer

BUNDLED = "vit_pico"


def load_trunk(name: str = BUNDLED, weights: str | Path | None = None) -> Trunk:
    """The bundled trunk, EfficientNet-lite0, or any of timm's vision transformers by name.

    `weights` is a local file (`.safetensors`, or a torch file with or without a `model` key); without it
    timm downloads its own, and EfficientNet-lite0's come from the package index.
    """
    if name == BUNDLED:
        if weights is not None:
            raise OarlockError(f"the trunk {BUNDLED!r} comes with its weights; leave out weights={str(weights)!r}")
        folder = files("oarlock.nets") / "weights"
        card = _bundled_card(json.loads((folder / f"{BUNDLED}.json").read_text()))
        tensors = safetensors.torch.load((folder / f"{BUNDLED}.safetensors").read_bytes())
        return build_trunk(card, tensors)
    path = None if weights is None else Path(weights)
    if name == efficientnet.NAME:
        return efficientnet.load_efficientnet(path)
    if not timm.is_model(name):
        raise OarlockError(
            f"there is no trunk {name!r}: use {BUNDLED!r}, {efficientnet.NAME!r} or the name of a timm vision "
            "transformer, such as 'deit_small_patch16_224'"
        )
    model = timm.create_model(name, pretrained=False, num_classes=0)
    check_supported(model, name)
    if path is not None:
        load_weights(model, read_weights(path), str(path))
        return Transformer(model, timm_card(model, name, source=f"{LOCAL}{path.name}"))
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as problem:
        raise OarlockError(
            f"timm could not provide the weights of {name!r} ({_first_line(problem)}); "
            "check the connection, or pass a local file with weights="
        ) from problem
    tag = model.pretrained_cfg.get("tag") or ""  # which of timm's weights
    # fb_in1k saw these; augreg_in21k_ft_in1k, say, saw more than what it was tuned on last.
    seen = imagenet_classes() if tag.endswith("in1k") and "ft" not in tag.split("_") else ()
    return Transformer(model, timm_card(model, name, f"timm {name.partition('.')[0]} {tag}".strip(), *seen))


def build_trunk(card: Card, tensors: dict[str, Tensor]) -> Trunk:
    """A trunk from its card and tensors; its architecture is in the card, or timm's under the card's name."""
    arguments = card.architecture or {}
    convolutional = "blocks" in arguments
    if convolutional:
        model = efficientnet_lite(**arguments)
    elif arguments:
        model = vision_transformer(**arguments)
    else:
        model = timm.create_model(card.name, pretrained=False, num_classes=0)
    load_weights(model, tensors, card.name)
    return ConvNet(model, card) if convolutional else Transformer(model, card)


def _bundled_card(card: dict[str, Any]) -> Card:
    size = card["architecture"]["img_size"]
    rule = Preprocessing(size, size, tuple(card["normalisation"]["mean"]), tuple(card["normalisation"]["std"]))
    words, wnids = (tuple(seen[key] for seen in card["classes"]) for key in ("words", "wnid"))
    return Card(card["name"], rule, card["architecture"], card["training"], words, wnids)


def _first_line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
