"""Trunks that are vision transformers: two residual branches per stage, an adapter at the end of each."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import safetensors.torch
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets.trunks import BUNDLED, trunk_family
from oarlock.nets.trunks._base import Card, SiteFunction, TaskNorms, Trunk
from oarlock.nets.trunks._listing import Listing
from oarlock.nets.trunks._sizes import LARGEST, Sizes
from oarlock.nets.trunks._timm import TimmTrunk, unsupported
from oarlock.schema import boolean, integer, maybe, number, one_of, record

WEIGHTS = files("oarlock.nets") / "weights"
# What a card may say of a network: numbers and switches. Timm finds layers by their names too, which no card needs.
ARCHITECTURE = record(
    {},
    {
        "img_size": integer(1, LARGEST),
        "patch_size": integer(1, LARGEST),
        "embed_dim": integer(1, 2**14),
        "depth": integer(1, 256),
        "num_heads": integer(1, 256),
        "mlp_ratio": number(0.01, 64),
        "qkv_bias": boolean,
        "qk_norm": boolean,
        "init_values": maybe(number()),
        "class_token": boolean,
        "reg_tokens": integer(0, 256),
        "no_embed_class": boolean,
        "pre_norm": boolean,
        "global_pool": one_of("token", "avg", "map"),
        "stem": one_of("", "convolutions"),
    },
    others=False,
)


class Branch(NamedTuple):
    """Hold one residual branch of a stage, `x + body(norm(x))`: attention, or the MLP."""

    norm: nn.LayerNorm
    body: Callable[[Tensor], Tensor]


class LayerNorms(TaskNorms):
    """Hold one task's copy of the scale and shift of every norm above the first adapted stage."""

    def __init__(self, norms: list[nn.LayerNorm]) -> None:
        super().__init__()
        self.eps = norms[0].eps
        self.weight = nn.Parameter(torch.stack([norm.weight.detach() for norm in norms]))
        self.bias = nn.Parameter(torch.stack([norm.bias.detach() for norm in norms]))

    def normalise(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)

    def forward(self, index: int, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight[index], self.bias[index], self.eps)


@trunk_family("vit")
class Transformer(TimmTrunk):
    """Wrap a timm `VisionTransformer` with plain blocks, frozen. Activations are [B, N, D].

    >>> from oarlock.nets.trunks import load_trunk
    >>> trunk = load_trunk("vit_pico")
    >>> trunk(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 192])
    """

    names = (BUNDLED,)
    adapters = "after attention and after the MLP of a stage"
    examples: ClassVar[Mapping[str, str]] = {
        "vit_small_patch14_reg4_dinov2": "on a GPU, at 224 pixels",
        "vit_small_patch14_dinov2": "",
        "deit_small_patch16_224": "",
        "vit_base_patch16_siglip_224": "",
    }
    model: VisionTransformer
    stages: list[tuple[Branch, Branch]]

    def __init__(self, model: VisionTransformer, card: Card) -> None:
        if problem := what_hinders(model):
            raise unsupported(card.name, problem)
        super().__init__(model, card)
        self.dim: int = model.embed_dim
        # What it pools by, if not by the average of the patches.
        self.by_token, self.by_attention = model.global_pool == "token", model.attn_pool is not None
        self.stages = [_branches(block) for block in model.blocks]
        # Where there is no last norm before pooling, timm has one after it.
        self.pool_first = isinstance(model.norm, nn.Identity)
        # Lower stages see what the last one has dropped as of no use for the classes of pre-training.
        self.seen_after = sorted({math.ceil(len(self.stages) * third / 3) for third in (1, 2, 3)})
        self.bare_dim = self.dim * (len(self.seen_after) * (1 + self.by_token) + self.by_attention)
        self.features_row = -2 if self.by_token else -1  # the mean of the patches comes after the token
        self.last_norm: nn.LayerNorm = model.fc_norm if self.pool_first else model.norm
        self.last_attention = self._last_attention(model.blocks[-1])

    @classmethod
    def problem(cls, model: Any) -> str | None:
        return what_hinders(model)

    @classmethod
    def load(cls, name: str, weights: Path | None, size: int | None) -> Trunk:
        if name != BUNDLED:
            return super().load(name, weights, size)
        trunk = cls._load_bundled(weights)
        return trunk if size is None else trunk.resized(size)

    @classmethod
    def check_architecture(cls, architecture: Any, place: str) -> None:
        maybe(ARCHITECTURE)(architecture, place)

    @classmethod
    def is_ours(cls, card: Card) -> bool:
        ours = _bundled_card()
        return (card.name, card.architecture, card.preprocessing.size) == (
            ours.name,
            ours.architecture,
            ours.preprocessing.size,
        )

    @classmethod
    def network(cls, card: Card) -> VisionTransformer:
        if not card.architecture:
            return super().network(card)
        return vision_transformer(**card.architecture, weight_init="skip")  # others take their place

    @property
    def sizes(self) -> Sizes:
        """Return multiples of the patch size: positions are interpolated. The bundled stem has no other positions."""
        patches = self.model.patch_embed
        patch = patches.feat_ratio() if hasattr(patches, "set_input_size") else 0
        return Sizes(self.size, step=patch, least=patch)

    def _card_at(self, size: int) -> Card:
        if self.card.architecture is None:
            return super()._card_at(size)
        return replace(self.card.at(size), architecture={**self.card.architecture, "img_size": size})

    @classmethod
    def _load_bundled(cls, weights: Path | None) -> Trunk:
        if weights is not None:
            raise OarlockError(f"the trunk {BUNDLED!r} comes with its weights; leave out weights={str(weights)!r}")
        return cls.build(_bundled_card(), safetensors.torch.load((WEIGHTS / f"{BUNDLED}.safetensors").read_bytes()))

    @classmethod
    def listed(cls) -> list[Listing]:
        card = _bundled_card()
        with torch.device("meta"):
            bundled = cls(cls.network(card), card)
        return [
            Listing.of(bundled, f"{len(card.classes or ())} classes of Tiny-ImageNet", "bundled"),
            *super().listed(),
        ]

    # -- passes ----------------------------------------------------------------------------------------------

    def embed(self, images: Tensor) -> Tensor:
        x = self.normalised(images)
        return self.model.norm_pre(self.model._pos_embed(self.model.patch_embed(x)))

    def below(self, images: Tensor, stages: int) -> Tensor:
        """Return the activations after the first `stages` stages."""
        return self.walk(self.embed(images), self.stages[:stages])

    def below_and_bare(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        """Return as bare values what the trunk pools, and where that is the class token, the mean of the patch tokens
        too; each a third, two thirds and all the way up. Attention that pools knows the last stage only: below it is
        the mean, too."""
        x = activations = self.below(images, 0)
        seen = []
        for passed, stage in enumerate(self.stages, 1):
            x = self.walk(x, [stage])
            if passed == stages:
                activations = x
            if passed in self.seen_after:
                seen += self._seen(x)
        if self.by_attention:
            seen.append(self.pool(x, self.last_norm))
        return activations, torch.stack(seen, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.below(images, len(self.stages)), self.last_norm)

    def walk(self, x: Tensor, stages: list[tuple[Branch, Branch]]) -> Tensor:
        """Return activations passed through some of the stages, as pre-trained."""
        for stage in stages:
            for norm, body in stage:
                x = x + body(norm(x))
        return x

    def pool(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """Return features [B, D] from activations, with the last norm, of which a task may have its own copy."""
        if self.by_token:
            return norm(x[:, 0])
        patches = x[:, self.model.num_prefix_tokens :]
        if self.by_attention:
            pool = self.model.attn_pool
            return norm(pool(patches)) if self.pool_first else pool(norm(patches))
        return self.average(patches, norm)

    def average(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean of tokens, with the last norm where the trunk has it: before the mean, or after it."""
        return norm(x.mean(1)) if self.pool_first else norm(x).mean(1)

    def sites(self, stages: int) -> list[int]:
        """Return two sites for every stage: after attention and after the MLP."""
        return [self.dim] * 2 * (len(self.stages) - stages)

    def new_norms(self, stages: int) -> LayerNorms:
        return LayerNorms(self._norms(stages))

    def adapted(self, activations: Tensor, stages: int, adapt: SiteFunction, norms: SiteFunction | None) -> Tensor:
        own = self._norms(stages)
        norm = norms or (lambda index, x: own[index](x))
        x, last = activations, len(own) - 1
        for index, (_, body) in enumerate(chain(*self.stages[stages:])):
            normed = norm(index, x)
            if index == last - 2:  # tokens do not mix after the last attention: the rest is only for what is pooled
                x, change = self._pooled(x), self.last_attention(normed)
            else:
                change = body(normed)
            x = x + adapt(index, change)
        return self.pool(x, lambda pooled: norm(last, pooled))

    def _seen(self, x: Tensor) -> list[Tensor]:
        if not self.by_token:
            return [self.average(x[:, self.model.num_prefix_tokens :], self.last_norm)]
        x = self.last_norm(x)
        return [x[:, 0], x[:, self.model.num_prefix_tokens :].mean(1)]

    def _norms(self, stages: int) -> list[nn.LayerNorm]:
        return [norm for stage in self.stages[stages:] for norm, _ in stage] + [self.last_norm]

    def _last_attention(self, block: Block) -> Callable[[Tensor], Tensor]:
        """Of normed tokens, for the tokens that `pool` looks at."""
        if self.by_token and is_linear(block.attn):
            return lambda x: block.ls1(attend_by_class_token(block.attn, x))
        return lambda x: self._pooled(block.ls1(block.attn(x)))

    def _pooled(self, x: Tensor) -> Tensor:
        """The tokens that `pool` looks at."""
        return x[:, :1] if self.by_token else x


class ConvStem(nn.Module):
    """Stand in for the patch projection in `vit_pico`: three 3×3 convolutions and a 1×1, patches of 4 pixels."""

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
    """Return timm's transformer from what a card says, without a classifier."""
    if stem == "convolutions":
        arguments["embed_layer"] = ConvStem
    return VisionTransformer(num_classes=0, **arguments)


def what_hinders(model: Any) -> str | None:
    """Return what adapters cannot follow in a network, or None."""
    if type(model) is not VisionTransformer:
        return f"it is a {type(model).__name__}"
    if any(type(block) is not Block or type(block.attn) is not Attention for block in model.blocks):
        return "its blocks are not plain ones"
    if model.global_pool not in ("token", "avg", "map") or model.pool_include_prefix:
        return f"its pooling is {model.global_pool!r}, not a class token, the average of the patches or attention"
    if not all(isinstance(norm, nn.LayerNorm) for norm in _all_norms(model)):
        return "its norms are not LayerNorms"
    return None


def _branches(block: Block) -> tuple[Branch, Branch]:
    return (
        Branch(block.norm1, lambda x: block.ls1(block.attn(x))),
        Branch(block.norm2, lambda x: block.ls2(block.mlp(x))),
    )


def _all_norms(model: Any) -> list[nn.Module]:
    last = model.fc_norm if isinstance(model.norm, nn.Identity) else model.norm
    return [norm for block in model.blocks for norm in (block.norm1, block.norm2)] + [last]


def is_linear(attention: Attention) -> bool:
    """Return whether keys and values are linear in the tokens and nothing else happens to them."""
    normed = [getattr(attention, name, None) for name in ("q_norm", "k_norm", "norm")]
    return getattr(attention, "gate", None) is None and all(
        norm is None or isinstance(norm, nn.Identity) for norm in normed
    )


def attend_by_class_token(attention: Attention, x: Tensor) -> Tensor:
    """Return `attention(x)[:, :1]`, up to rounding, for a small part of its cost: tokens [B, N, D] → [B, 1, D].

    With one query, keys and values need not be computed for each token: q·(K x) = (Kᵀ q)·x and Σ a (V x) = V (Σ a x).
    A bias of the keys adds the same to the scores of all tokens, which softmax does not see.
    """
    heads, (batch, _, width) = attention.num_heads, x.shape
    query, key, value = attention.qkv.weight.view(3, heads, -1, width)
    bias = attention.qkv.bias
    of_query, _, of_value = (0, 0, 0) if bias is None else bias.view(3, heads, -1)
    q = torch.einsum("bc,hdc->bhd", x[:, 0], query) + of_query
    scores = torch.einsum("bhd,hdc->bhc", q * attention.scale, key) @ x.transpose(1, 2)
    pooled = scores.softmax(-1) @ x
    answer = torch.einsum("bhc,hdc->bhd", pooled, value) + of_value
    projected: Tensor = attention.proj(answer.reshape(batch, 1, -1))
    return projected


def _bundled_card() -> Card:
    card = json.loads((WEIGHTS / f"{BUNDLED}.json").read_text())
    size = card["architecture"]["img_size"]
    rule = Preprocessing(size, size, tuple(card["normalisation"]["mean"]), tuple(card["normalisation"]["std"]))
    words, wnids = (tuple(seen[key] for seen in card["classes"]) for key in ("words", "wnid"))
    return Card(card["name"], rule, card["architecture"], card["training"], words, wnids)
