"""The frozen pre-trained network: a timm vision transformer, untouched, seen as embed → stages → pool.

Adapters walk the stages from outside (`adapters.py`), so a pass of the bare trunk needs no switch and the
trunk's tensors belong to no method.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import timm
import torch
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.files import fingerprint

BUNDLED = "vit_pico"
LOCAL = "local file "  # how the source of such weights begins


@dataclass(frozen=True)
class Card:
    """What must be known about a trunk's weights besides the weights."""

    name: str
    preprocessing: Preprocessing
    architecture: dict[str, Any] | None = None  # VisionTransformer's arguments; None: timm knows the name
    source: str = ""
    classes: tuple[str, ...] | None = None  # what it was pre-trained on; None: not known

    def overlap(self, names: list[str]) -> str:
        """Whether pre-training saw a class of one of these names: "yes", "no" or "unknown" (names without letters).

        >>> rule = Preprocessing(32, 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> Card("t", rule, classes=("sea slug, nudibranch",)).overlap(["slug"])
        'yes'
        """
        if self.classes is None or not all(any(c.isalpha() for c in name) for name in names):
            return "unknown"
        seen = {word for words in self.classes for word in _nouns(words)}
        return "yes" if any(seen.intersection(_nouns(name)) for name in names) else "no"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, card: dict[str, Any]) -> "Card":
        rule = card["preprocessing"]
        rule = Preprocessing(rule["size"], rule["resize"], tuple(rule["mean"]), tuple(rule["std"]))
        classes = None if card["classes"] is None else tuple(card["classes"])
        return cls(card["name"], rule, card["architecture"], card["source"], classes)


class Branch(NamedTuple):
    """One residual branch of a stage, `x + body(norm(x))`: attention, or the MLP."""

    norm: nn.LayerNorm
    body: Callable[[Tensor], Tensor]


class Trunk(nn.Module):
    """A timm `VisionTransformer` with plain blocks, frozen.

    >>> trunk = load_trunk("vit_pico")
    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> trunk(images).shape
    torch.Size([2, 192])
    """

    def __init__(self, model: VisionTransformer, card: Card) -> None:
        super().__init__()
        _check_supported(model, card.name)
        self.card = card
        self.model = model.eval().requires_grad_(False)
        rule = card.preprocessing
        self.register_buffer("mean", torch.tensor(rule.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(rule.std).view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor
        self.dim: int = model.embed_dim
        self.stages = [_branches(block) for block in model.blocks]
        # Where there is no last norm before pooling, timm has one after it.
        self.pool_first = isinstance(model.norm, nn.Identity)
        self.view_count = 2 if model.global_pool == "token" else 1
        self.last_norm: nn.LayerNorm = model.fc_norm if self.pool_first else model.norm

    def train(self, mode: bool = True) -> "Trunk":
        """Frozen means frozen: batch norms and dropout never enter training mode."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Trunk":
        return self  # never written to, so copies of a method share it

    def embed(self, images: Tensor) -> Tensor:
        """uint8 images [B, 3, S, S] → tokens [B, N, D] before the first stage."""
        x = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        return self.model.norm_pre(self.model._pos_embed(self.model.patch_embed(x)))

    def below(self, images: Tensor, stages: int) -> Tensor:
        """Tokens after the first `stages` stages."""
        return self.walk(self.embed(images), self.stages[:stages])

    def views(self, tokens: Tensor, stages: int) -> Tensor:
        """The bare trunk's features [B, views, D] from the tokens after its first `stages` stages: what it pools, and
        where that is the class token, the mean of the patch tokens too."""
        x = self.walk(tokens, self.stages[stages:])
        if self.view_count == 1:
            return self.pool(x, self.last_norm)[:, None]
        x = self.last_norm(x)
        return torch.stack([x[:, 0], x[:, self.model.num_prefix_tokens :].mean(1)], 1)

    def walk(self, x: Tensor, stages: list[tuple[Branch, Branch]]) -> Tensor:
        """Tokens through some of the stages, as pre-trained."""
        for stage in stages:
            for norm, body in stage:
                x = x + body(norm(x))
        return x

    def pooled(self, x: Tensor) -> Tensor:
        """The tokens that `pool` looks at."""
        return x[:, :1] if self.model.global_pool == "token" else x

    def pool(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """Tokens → features [B, D] with the last norm, which a task may have its own copy of."""
        if self.model.global_pool == "token":
            return norm(x[:, 0])
        return self.average(x[:, self.model.num_prefix_tokens :], norm)

    def average(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean of tokens, with the last norm where the trunk has it: before, or after."""
        return norm(x.mean(1)) if self.pool_first else norm(x).mean(1)

    def forward(self, images: Tensor) -> Tensor:
        """The bare trunk's features."""
        return self.pool(self.below(images, len(self.stages)), self.last_norm)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    @cached_property
    def sha256(self) -> str:
        return fingerprint(self.tensors())

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())


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


def load_trunk(name: str = BUNDLED, weights: str | Path | None = None) -> Trunk:
    """The bundled trunk, or any of timm's vision transformers by name.

    `weights` is a local file (`.safetensors`, or a torch file with or without a `model` key); without it
    timm downloads its own.
    """
    if name == BUNDLED:
        if weights is not None:
            raise OarlockError(f"the trunk {BUNDLED!r} comes with its weights; leave out weights={str(weights)!r}")
        folder = files("oarlock.nets") / "weights"
        card = _bundled_card(json.loads((folder / f"{BUNDLED}.json").read_text()))
        tensors = safetensors.torch.load((folder / f"{BUNDLED}.safetensors").read_bytes())
        return build_trunk(card, tensors)
    if not timm.is_model(name):
        raise OarlockError(
            f"there is no trunk {name!r}: use {BUNDLED!r} or the name of a timm vision transformer, "
            "such as 'deit_small_patch16_224'"
        )
    model = timm.create_model(name, pretrained=False, num_classes=0)
    _check_supported(model, name)
    if weights is not None:
        _load_weights(model, read_weights(Path(weights)), str(weights))
        return Trunk(model, timm_card(model, name, source=f"{LOCAL}{Path(weights).name}"))
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as problem:
        raise OarlockError(
            f"timm could not provide the weights of {name!r} ({_first_line(problem)}); "
            "check the connection, or pass a local file with weights="
        ) from problem
    return Trunk(model, timm_card(model, name, source=f"timm {name}"))


def build_trunk(card: Card, tensors: dict[str, Tensor]) -> Trunk:
    """A trunk from its card and tensors; its architecture is in the card, or timm's under the card's name."""
    if card.architecture is None:
        model = timm.create_model(card.name, pretrained=False, num_classes=0)
    else:
        arguments = dict(card.architecture)
        if arguments.pop("stem", None) == "convolutions":
            arguments["embed_layer"] = ConvStem
        model = VisionTransformer(num_classes=0, **arguments)
    _load_weights(model, tensors, card.name)
    return Trunk(model, card)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a local weights file; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
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


def _load_weights(model: VisionTransformer, tensors: dict[str, Tensor], origin: str) -> None:
    # The classifier of pre-training is of no use to a trunk; published checkpoints may have any number of them.
    wanted = model.state_dict()
    found = {
        name: value.to(wanted[name].dtype if name in wanted else value.dtype)
        for name, value in tensors.items()
        if not name.split(".")[0].startswith("head")
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


def _branches(block: Block) -> tuple[Branch, Branch]:
    return (
        Branch(block.norm1, lambda x: block.ls1(block.attn(x))),
        Branch(block.norm2, lambda x: block.ls2(block.mlp(x))),
    )


def _check_supported(model: Any, name: str) -> None:
    problem = None
    if type(model) is not VisionTransformer:
        problem = f"it is a {type(model).__name__}"
    elif any(type(block) is not Block or type(block.attn) is not Attention for block in model.blocks):
        problem = "its blocks are not plain ones"
    elif model.attn_pool is not None or model.global_pool not in ("token", "avg") or model.pool_include_prefix:
        problem = f"its pooling is {model.global_pool!r}, not a class token or the average of the patches"
    elif not all(isinstance(norm, nn.LayerNorm) for norm in _norms(model)):
        problem = "its norms are not LayerNorms"
    if problem:
        raise OarlockError(
            f"the trunk {name!r} is not supported: {problem}; supported are timm VisionTransformers with plain "
            "blocks, such as 'deit_small_patch16_224'"
        )


def _norms(model: Any) -> list[nn.Module]:
    last = model.fc_norm if isinstance(model.norm, nn.Identity) else model.norm
    return [norm for block in model.blocks for norm in (block.norm1, block.norm2)] + [last]


def _bundled_card(card: dict[str, Any]) -> Card:
    size = card["architecture"]["img_size"]
    rule = Preprocessing(size, size, tuple(card["normalisation"]["mean"]), tuple(card["normalisation"]["std"]))
    return Card(
        card["name"], rule, card["architecture"], card["training"], tuple(c["words"] for c in card["classes"])
    )


def timm_card(model: VisionTransformer, name: str, source: str) -> Card:
    facts = model.pretrained_cfg
    size = facts["input_size"][-1]
    rule = Preprocessing(size, math.floor(size / facts["crop_pct"]), tuple(facts["mean"]), tuple(facts["std"]))
    return Card(name, rule, source=source)


def _nouns(text: str) -> Iterator[str]:
    """Every synonym, and the noun at its end: a sea slug is a slug and not a sea."""
    for synonym in text.lower().replace("_", " ").split(","):
        if synonym.strip():
            yield synonym.strip()
            yield synonym.split()[-1]


def _first_line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
