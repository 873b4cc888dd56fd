"""Trunks that timm has in stages: ResNets, ConvNeXts, MobileNets, EfficientNets, RegNets and Swin transformers."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from timm.models.convnext import ConvNeXt
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.regnet import RegNet
from timm.models.resnet import ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2

from oarlock.nets.trunks import trunk_family
from oarlock.nets.trunks._base import Card
from oarlock.nets.trunks._sizes import Sizes
from oarlock.nets.trunks._staged import Parts, StagedTrunk
from oarlock.nets.trunks._timm import TimmTrunk, one_image, unsupported

PROBE = 64  # pixels of an image that asks for shapes, where the network takes any


def _resnet(model: Any) -> Parts:
    stages = [model.layer1, model.layer2, model.layer3, model.layer4]
    return Parts(lambda x: model.maxpool(model.act1(model.bn1(model.conv1(x)))), stages, model.forward_head)


def _convnext(model: Any) -> Parts:
    return Parts(model.stem, list(model.stages), lambda x: model.forward_head(model.norm_pre(x)))


def _efficientnet(model: Any) -> Parts:
    def tail(x: torch.Tensor) -> torch.Tensor:
        return model.forward_head(model.bn2(model.conv_head(x)))

    return Parts(lambda x: model.bn1(model.conv_stem(x)), list(model.blocks), tail)


def _mobilenet(model: Any) -> Parts:
    return Parts(lambda x: model.bn1(model.conv_stem(x)), list(model.blocks), model.forward_head)


def _regnet(model: Any) -> Parts:
    stages = [model.s1, model.s2, model.s3, model.s4]
    return Parts(model.stem, stages, lambda x: model.forward_head(model.final_conv(x)))


def _swin(model: Any) -> Parts:
    stages = list(model.layers)
    return Parts(model.patch_embed, stages, lambda x: model.forward_head(model.norm(x)), channels_last=True)


# By timm's class, not by a subclass, which may do something else on the way. MobileNetV4 is a MobileNetV3 there.
PARTS: dict[type, Callable[[Any], Parts]] = {
    ResNet: _resnet,
    ConvNeXt: _convnext,
    EfficientNet: _efficientnet,
    MobileNetV3: _mobilenet,
    RegNet: _regnet,
    SwinTransformer: _swin,
    SwinTransformerV2: _swin,
}


@trunk_family("stages")
class Stages(StagedTrunk, TimmTrunk):
    """Wrap one of timm's networks in stages, frozen.

    >>> import timm
    >>> from oarlock.nets.trunks._timm import timm_card
    >>> model = timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=0)
    >>> trunk = Stages(model, timm_card(model, "mobilenetv3_small_050", source="random"))
    >>> trunk.sites(4), trunk.dim
    ([48, 288], 1024)
    >>> trunk.resized(64)(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape
    torch.Size([2, 1024])
    """

    examples: ClassVar[Mapping[str, str]] = {
        "resnet50": "",
        "convnext_tiny": "",
        "mobilenetv3_large_100": "",
        "mobilenetv4_conv_small": "",
        "efficientnet_b0": "",
        "regnety_008": "",
        "swin_tiny_patch4_window7_224": "",
    }

    def __init__(self, model: Any, card: Card) -> None:
        if problem := self.problem(model):
            raise unsupported(card.name, problem)
        parts = PARTS[type(model)](model.eval())
        size = card.preprocessing.size if hasattr(model, "set_input_size") else PROBE
        channels, dim, self.stride = _shapes(model, parts, size)
        super().__init__(model, card, parts, channels, dim)

    @classmethod
    def problem(cls, model: Any) -> str | None:
        if type(model) not in PARTS:
            return f"it is a {type(model).__name__}, not one of {', '.join(kind.__name__ for kind in PARTS)}"
        return None

    @property
    def sizes(self) -> Sizes:
        """Return multiples of the pixels to one place of the last map. Not every version of timm can set windows that
        grow from stage to stage: such a Swin transformer keeps its size."""
        windows = _windows(self.model)
        if any(window > windows[0] for window in windows):
            return Sizes(self.size)
        return Sizes(self.size, step=self.stride, least=2 * self.stride)

    @classmethod
    def fit(cls, model: Any, size: int) -> None:
        """Keep a Swin transformer's windows as large as they are, whatever this version of timm would make of
        them."""
        if windows := _windows(model):
            model.set_input_size(img_size=(size, size), window_size=windows[0])


def _windows(model: Any) -> list[tuple[int, int]]:
    """Of a Swin transformer's stages; smaller where the map is."""
    return [stage.blocks[0].window_size for stage in getattr(model, "layers", ())]


@torch.no_grad()
def _shapes(model: Any, parts: Parts, size: int) -> tuple[list[int], int, int]:
    """Channels at the end of every stage, features, and pixels of the image to one place of the last map."""
    x, channels, side = parts.stem(one_image(model, size)), [], size
    for stage in parts.stages:
        x = stage(x)
        channels.append(x.shape[-1 if parts.channels_last else 1])
        side = x.shape[2]
    return channels, parts.tail(x).shape[1], size // side
