"""Trunks that are convolutional: EfficientNet-lites, with an adapter at the end of every stage.

Batch norms are frozen whole: statistics, scales and shifts. What a task has of its own instead of norms is a scale
and a shift of every channel where an adapter stands.
"""

from functools import partial

import torch
import torch.nn.functional as F
from timm.models.efficientnet import EfficientNet, decode_arch_def
from torch import Tensor, nn

from oarlock.nets.base import At, TaskNorms, Trunk
from oarlock.nets.card import Card

PART = 16  # images in one pass of the lower stages, whose maps are large: faster, and less memory


class Scales(TaskNorms):
    """One task's scale and shift of the channels that every adapter gets."""

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.weight = nn.ParameterList(nn.Parameter(torch.ones(count)) for count in channels)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(count)) for count in channels)

    def normalise(self, x: Tensor) -> Tensor:
        return x

    def forward(self, index: int, x: Tensor) -> Tensor:
        return x * self.weight[index] + self.bias[index]


class ConvNet(Trunk):
    """A timm `EfficientNet`, frozen. Tokens are maps with the channels last, [B, H, W, C], which is both how a linear
    layer wants them and how convolutions are fast on CPUs.

    >>> blocks = ["ds_r1_k3_s1_e1_c8", "ir_r1_k3_s2_e2_c16"]
    >>> from oarlock.data.images import Preprocessing
    >>> card = Card("small", Preprocessing(16, 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
    >>> trunk = ConvNet(efficientnet_lite(blocks, stem=8, features=24), card)
    >>> trunk(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 24])
    >>> trunk.sites(0)
    [8, 16]
    """

    model: EfficientNet
    stages: list[nn.Module]

    def __init__(self, model: EfficientNet, card: Card) -> None:
        super().__init__(model, card)
        self.dim: int = model.num_features
        self.stages = list(model.blocks)
        self.view_dim = self.dim + sum(self.sites(0))

    def embed(self, images: Tensor) -> Tensor:
        x = self.normalised(images).contiguous(memory_format=torch.channels_last)
        return _channels_last(self.model.bn1(self.model.conv_stem(x)))

    def below(self, images: Tensor, stages: int) -> Tensor:
        """The maps after the first `stages` stages and one more: its adapter stands at its end."""
        return torch.cat([self.walk(self.embed(part), self.stages[: stages + 1]) for part in _parts(images)])

    def below_and_views(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        """Seen are its features, and the mean of the map after every stage: lower ones hold what the last has dropped
        as of no use for the classes of pre-training."""
        lower = [self._walk_and_means(self.embed(part), self.stages[: stages + 1]) for part in _parts(images)]
        tokens = torch.cat([x for x, _ in lower])
        means = torch.cat([torch.cat(of_part, 1) for _, of_part in lower])
        last, more = self._walk_and_means(tokens, self.stages[stages + 1 :])
        views = torch.cat([self.pool(last), means, *more], 1)
        return tokens, F.pad(views, (0, self.view_count * self.dim - self.view_dim)).unflatten(1, (-1, self.dim))

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.below(images, len(self.stages) - 1))

    def walk(self, x: Tensor, stages: list[nn.Module]) -> Tensor:
        """Maps through some of the stages, as pre-trained."""
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
        """The last stage's maps → features [B, D]."""
        return self.model.global_pool(self.model.bn2(self.model.conv_head(_channels_first(x))))

    def sites(self, stages: int) -> list[int]:
        return [_outputs(stage) for stage in self.stages[stages:]]

    def new_norms(self, stages: int) -> Scales:
        return Scales(self.sites(stages))

    def adapted(self, tokens: Tensor, stages: int, adapt: At, norms: At | None) -> Tensor:
        x = tokens
        for site, stage in enumerate(self.stages[stages:]):
            if site:  # `below` went through the first
                x = self.walk(x, [stage])
            x = adapt(site, x if norms is None else norms(site, x))
        return self.pool(x)


def efficientnet_lite(blocks: list[str], stem: int, features: int) -> EfficientNet:
    """timm's EfficientNet as its `tf_efficientnet_lite` models are, without a classifier, from what a card says:
    stages in timm's notation, channels of the stem, and features."""
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
