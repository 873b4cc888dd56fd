"""A trunk of a few thousand weights and images it can tell apart, so that whole runs take seconds."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import settings
from timm.models import register_model
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from oarlock.cli import main
from oarlock.data.images import Preprocessing
from oarlock.nets.trunks import Card, Trunk, build_trunk
from oarlock.nets.trunks.cnn import efficientnet_lite

Command = Callable[..., int]

# The same examples every time, and no seconds in tests.
settings.register_profile("everywhere", deadline=None, derandomize=True)
settings.load_profile("everywhere")

ARCHITECTURE = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
CARD = Card("tiny", Preprocessing(16, 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)), ARCHITECTURE, "random", ())


def make_tiny_trunk() -> Trunk:
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = VisionTransformer(num_classes=0, **ARCHITECTURE)
    torch.random.set_rng_state(state)
    for parameter in model.parameters():  # timm's own values are so small that all images look alike
        if parameter.ndim > 1:
            parameter.data *= 5
    return build_trunk(CARD, model.state_dict())


LITE = {"blocks": ["ds_r1_k3_s1_e1_c8", "ir_r2_k3_s2_e2_c16", "ir_r2_k3_s1_e2_c24"], "stem": 8, "features": 40}
LITE_CARD = Card("tiny lite", CARD.preprocessing, LITE, "random", (), family="cnn")


def make_tiny_convnet() -> Trunk:
    """A convolutional trunk whose batch norms have seen images; no two stages have the same number of channels."""
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = efficientnet_lite(**LITE).train()
    torch.random.set_rng_state(state)
    images = torch.from_numpy(np.concatenate([make_images(label, 8) for label in range(8)])).permute(0, 3, 1, 2)
    with torch.no_grad():
        for _ in range(30):
            model((images / 255 - 0.5) / 0.25)
    model.bn2.weight.data *= 4  # features as large as the real trunk's, so that heads learn from them in a few steps
    return build_trunk(LITE_CARD, model.state_dict())


def make_images(label: int, count: int, size: int = 16, seed: int = 0) -> np.ndarray:
    """Noisy images around a colour pattern of the class."""
    pattern = np.random.default_rng(label).integers(40, 215, (4, 4, 3)).repeat(size // 4, 0).repeat(size // 4, 1)
    noise = np.random.default_rng([label, seed]).normal(0, 20, (count, size, size, 3))
    return np.clip(pattern + noise, 0, 255).astype(np.uint8)


def make_task(labels: list, count: int = 10, size: int = 16, seed: int = 0) -> tuple[np.ndarray, list]:
    """(images, labels) of some classes; a class's pattern depends on its label."""
    numbers = [label if isinstance(label, int) else sum(map(ord, label)) for label in labels]
    images = np.concatenate([make_images(number, count, size, seed) for number in numbers])
    return images, [label for label in labels for _ in range(count)]


SWIN = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 2, 1), "num_heads": (1, 2, 4)}


@register_model
def tiny_swin(pretrained: bool = False, img_size: int = 64, num_classes: int = 0, **options: Any) -> SwinTransformer:
    """A Swin transformer by a name that timm knows: its own are all large."""
    model = SwinTransformer(**SWIN | {"img_size": img_size, "num_classes": num_classes})
    model.pretrained_cfg = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 1.0}
    return model


create_model = timm.create_model


@torch.no_grad()
def make_random_network(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
    """timm's network with made-up weights, the same every time, in which everything matters: also what begins as
    zero, and what batch norms have seen."""
    if not pretrained:
        return create_model(name, pretrained=False, **options)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = create_model(name, pretrained=False, **options)
    for parameter in model.parameters():
        if parameter.abs().max() < 1e-3:
            parameter.normal_(0, 0.2)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if norms:
        momentum = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        model.train()(torch.randn(8, 3, 64, 64))
        for norm, before in zip(norms, momentum, strict=True):
            norm.momentum = before
    torch.random.set_rng_state(state)
    return model.eval()


@pytest.fixture
def random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm makes up weights where it would download them."""
    monkeypatch.setattr(timm, "create_model", make_random_network)


@pytest.fixture(scope="session")
def tiny_trunk() -> Trunk:
    return make_tiny_trunk()


@pytest.fixture(scope="module", autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    """A run sets the number of threads of the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell has it ignored in what it starts in the background, which would make some tests wait for ever."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def oarlock(monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in this process; its exit code."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["oarlock", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
            raise SystemExit(0)
        return end.value.code or 0

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
