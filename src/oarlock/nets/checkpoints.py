"""Weights from local files, and into the networks they are for."""

import argparse
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from oarlock.errors import OarlockError

CLASSIFIERS = ("head", "classifier")  # how timm's names of them begin


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a local weights file; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # DeiT's own scripts put their arguments in
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as problem:
        raise OarlockError(f"there is no weights file {path}") from problem
    except Exception as problem:  # torch raises many kinds, and advises to load unsafe files anyway
        raise OarlockError(
            f"{path} cannot be read as weights; expected .safetensors or a torch file that holds tensors only"
        ) from problem
    for key in ("model", "state_dict"):
        content = content.get(key, content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise OarlockError(f"{path} holds no dictionary of tensors, plain or under 'model' or 'state_dict'")
    return content


def load_weights(model: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Put tensors into a model; every one of its must be there, and no other."""
    # The classifier of pre-training is of no use to a trunk; published checkpoints may have any number of them.
    wanted = model.state_dict()
    found = {
        name: value.to(wanted[name].dtype if name in wanted else value.dtype)
        for name, value in tensors.items()
        if not name.split(".")[0].startswith(CLASSIFIERS)
    }
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    expected = {name: tuple(value.shape) for name, value in wanted.items()}
    wrong = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
    if wrong:
        name = wrong[0]
        raise OarlockError(
            f"the weights in {origin} do not fit the architecture: {len(wrong)} tensors differ, for example "
            f"{name!r} (file: {shapes.get(name, 'absent')}, wanted: {expected.get(name, 'absent')})"
        )
    model.load_state_dict(found)
