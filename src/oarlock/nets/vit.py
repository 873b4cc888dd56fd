"""Trunks that are vision transformers: two residual branches per stage, an adapter at the end of each."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn

from oarlock.errors import OarlockError
from oarlock.nets.base import At, TaskNorms, Trunk
from oarlock.nets.card import Card
from oarlock.nets.class_token import attend_by_class_token, is_linear


class Branch(NamedTuple):
    """One residual branch of a stage, `x + body(norm(x))`: attention, or the MLP."""

    norm: nn.LayerNorm
    body: Callable[[Tensor], Tensor]


class LayerNorms(TaskNorms):
    """One task's copy of the scale and shift of every norm above the first adapted stage."""

    def __init__(self, norms: list[nn.LayerNorm]) -> None:
        super().__init__()
        self.eps = norms[0].eps
        self.weight = nn.Parameter(torch.stack([norm.weight.detach() for norm in norms]))
        self.bias = nn.Parameter(torch.stack([norm.bias.detach() for norm in norms]))

    def normalise(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)

    def forward(self, index: int, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight[index], self.bias[index], self.eps)


class Transformer(Trunk):
    """A timm `VisionTransformer` with plain blocks, frozen. Tokens are [B, N, D].

    >>> from oarlock.nets.trunk import load_trunk
    >>> trunk = load_trunk("vit_pico")
    >>> trunk(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 192])
    """

    model: VisionTransformer
    stages: list[tuple[Branch, Branch]]

    def __init__(self, model: VisionTransformer, card: Card) -> None:
        check_supported(model, card.name)
        super().__init__(model, card)
        self.dim: int = model.embed_dim
        self.stages = [_branches(block) for block in model.blocks]
        # Where there is no last norm before pooling, timm has one after it.
        self.pool_first = isinstance(model.norm, nn.Identity)
        # Lower stages see what the last one has dropped as of no use for the classes of pre-training.
        self.viewed = sorted({math.ceil(len(self.stages) * third / 3) for third in (1, 2, 3)})
        self.view_dim = self.dim * len(self.viewed) * (2 if model.global_pool == "token" else 1)
        self.last_norm: nn.LayerNorm = model.fc_norm if self.pool_first else model.norm
        self.last_attention = self._last_attention(model.blocks[-1])

    def embed(self, images: Tensor) -> Tensor:
        x = self.normalised(images)
        return self.model.norm_pre(self.model._pos_embed(self.model.patch_embed(x)))

    def below(self, images: Tensor, stages: int) -> Tensor:
        """Tokens after the first `stages` stages."""
        return self.walk(self.embed(images), self.stages[:stages])

    def below_and_views(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        """Views are what the trunk pools, and where that is the class token, the mean of the patch tokens too; each a
        third, two thirds and all the way up."""
        x = tokens = self.below(images, 0)
        views = []
        for number, stage in enumerate(self.stages, 1):
            x = self.walk(x, [stage])
            if number == stages:
                tokens = x
            if number in self.viewed:
                views += self._views(x)
        return tokens, torch.stack(views, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.below(images, len(self.stages)), self.last_norm)

    def walk(self, x: Tensor, stages: list[tuple[Branch, Branch]]) -> Tensor:
        """Tokens through some of the stages, as pre-trained."""
        for stage in stages:
            for norm, body in stage:
                x = x + body(norm(x))
        return x

    def pool(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """Tokens → features [B, D] with the last norm, which a task may have its own copy of."""
        if self.model.global_pool == "token":
            return norm(x[:, 0])
        return self.average(x[:, self.model.num_prefix_tokens :], norm)

    def average(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean of tokens, with the last norm where the trunk has it: before, or after."""
        return norm(x.mean(1)) if self.pool_first else norm(x).mean(1)

    def sites(self, stages: int) -> list[int]:
        """After attention and after the MLP of every stage."""
        return [self.dim] * 2 * (len(self.stages) - stages)

    def new_norms(self, stages: int) -> LayerNorms:
        return LayerNorms(self._norms(stages))

    def adapted(self, tokens: Tensor, stages: int, adapt: At, norms: At | None) -> Tensor:
        own = self._norms(stages)
        norm = norms or (lambda index, x: own[index](x))
        x, last = tokens, len(own) - 1
        for index, (_, body) in enumerate(chain(*self.stages[stages:])):
            normed = norm(index, x)
            if index == last - 2:  # tokens do not mix after the last attention: the rest is only for what is pooled
                x, change = self._pooled(x), self.last_attention(normed)
            else:
                change = body(normed)
            x = x + adapt(index, change)
        return self.pool(x, lambda pooled: norm(last, pooled))

    def _views(self, x: Tensor) -> list[Tensor]:
        if self.model.global_pool != "token":
            return [self.pool(x, self.last_norm)]
        x = self.last_norm(x)
        return [x[:, 0], x[:, self.model.num_prefix_tokens :].mean(1)]

    def _norms(self, stages: int) -> list[nn.LayerNorm]:
        return [norm for stage in self.stages[stages:] for norm, _ in stage] + [self.last_norm]

    def _last_attention(self, block: Block) -> Callable[[Tensor], Tensor]:
        """Of normed tokens, for the tokens that `pool` looks at."""
        if self.model.global_pool == "token" and is_linear(block.attn):
            return lambda x: block.ls1(attend_by_class_token(block.attn, x))
        return lambda x: self._pooled(block.ls1(block.attn(x)))

    def _pooled(self, x: Tensor) -> Tensor:
        """The tokens that `pool` looks at."""
        return x[:, :1] if self.model.global_pool == "token" else x


class ConvStem(nn.Module):
    """`vit_pico`'s stand-in for the patch projection: three 3×3 convolutions and a 1×1, patches of 4 pixels."""

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int, **_: Any) -> None:
        super().__init__()
        self.num_patches = (img_size // patch_size) ** 2

        def layer(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            return [conv, nn.BatchNorm2d(outputs), nn.GELU()]

        quarter, half = embed_dim // 4, embed_dim // 2
        self.proj = nn.Sequential(
            *layer(in_chans, quarter, 2),
            *layer(quarter, half, 2),
            *layer(half, embed_dim, 1),
            nn.Conv2d(embed_dim, embed_dim, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


def vision_transformer(stem: str = "", **arguments: Any) -> VisionTransformer:
    """timm's transformer from what a card says, without a classifier."""
    if stem == "convolutions":
        arguments["embed_layer"] = ConvStem
    return VisionTransformer(num_classes=0, **arguments)


def check_supported(model: Any, name: str) -> None:
    """Refuse what adapters cannot follow."""
    problem = None
    if type(model) is not VisionTransformer:
        problem = f"it is a {type(model).__name__}"
    elif any(type(block) is not Block or type(block.attn) is not Attention for block in model.blocks):
        problem = "its blocks are not plain ones"
    elif model.attn_pool is not None or model.global_pool not in ("token", "avg") or model.pool_include_prefix:
        problem = f"its pooling is {model.global_pool!r}, not a class token or the average of the patches"
    elif not all(isinstance(norm, nn.LayerNorm) for norm in _all_norms(model)):
        problem = "its norms are not LayerNorms"
    if problem:
        raise OarlockError(
            f"the trunk {name!r} is not supported: {problem}; supported are timm VisionTransformers with plain "
            "blocks, such as 'deit_small_patch16_224', and 'efficientnet_lite0'"
        )


def _branches(block: Block) -> tuple[Branch, Branch]:
    return (
        Branch(block.norm1, lambda x: block.ls1(block.attn(x))),
        Branch(block.norm2, lambda x: block.ls2(block.mlp(x))),
    )


def _all_norms(model: Any) -> list[nn.Module]:
    last = model.fc_norm if isinstance(model.norm, nn.Identity) else model.norm
    return [norm for block in model.blocks for norm in (block.norm1, block.norm2)] + [last]
