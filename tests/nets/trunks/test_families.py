"""Trunks by timm's names: every family's walk against timm's own pass, and the same network for other images."""

import copy

import pytest
import safetensors.torch
import timm
import torch
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import checkpoint_filter_fn

from conftest import SWIN, make_random_network
from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets.trunks import Card, Trunk, build_trunk, load_trunk
from oarlock.nets.trunks._sizes import Sizes
from oarlock.nets.trunks._timm import sketch
from oarlock.nets.trunks.features import Features
from oarlock.nets.trunks.stages import PARTS, Stages
from oarlock.nets.trunks.vit import Transformer, vision_transformer

pytestmark = pytest.mark.usefixtures("random_weights")

# A small one of each kind; the sizes are small for speed, and not their own.
STAGED = {
    "test_resnet": 64,
    "test_convnext": 64,
    "test_convnext2": 64,  # with its last norm before pooling
    "mobilenetv3_small_050": 64,
    "mobilenetv4_conv_small_035": 96,
    "test_efficientnet": 64,
    "regnetx_002": 64,
    "tiny_swin": 96,
}
OTHERS = {"mixer_s32_224": 224, "deit_tiny_distilled_patch16_224": 64, "test_nfnet": 64}
TRANSFORMERS = {"test_vit": 64, "vit_tiny_patch16_224": 48}


def make_images(size: int, count: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def by_timm(trunk: Trunk, images: torch.Tensor) -> torch.Tensor:
    rule = trunk.card.preprocessing
    channels = [(images[:, c].float() / 255 - rule.mean[c]) / rule.std[c] for c in range(3)]
    with torch.no_grad():
        return trunk.model(torch.stack(channels, 1))


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To 1e-5 of the largest value, if that is not below 1."""
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-5 * other.abs().max().clamp_min(1))


def check_walk(trunk: Trunk) -> None:
    images = make_images(trunk.size)
    expected = by_timm(trunk, images)
    assert expected.shape == (3, trunk.dim) and expected.std(0).mean() > 1e-3
    assert close(trunk(images), expected)
    for stages in range(len(trunk.stages) or 1):
        below, bare = trunk.below_and_bare(images, stages)
        assert close(trunk.below(images, stages), below)
        assert close(trunk.adapted(below, stages, lambda site, u: u, None), expected)
        assert close(trunk.adapted(below, stages, lambda site, u: u, trunk.new_norms(stages)), expected)
        seen: list[int] = []
        trunk.adapted(below, stages, lambda site, u, seen=seen: (seen.append(u.shape[-1]), u)[1], None)
        assert seen == trunk.sites(stages)
        assert bare.shape == (3, trunk.bare_rows, trunk.dim) and not bare.flatten(1)[:, trunk.bare_dim :].any()


@pytest.mark.parametrize(
    ("family", "name", "size"),
    [
        *((Stages, *one) for one in STAGED.items()),
        *((Features, *one) for one in OTHERS.items()),
        *((Transformer, *one) for one in TRANSFORMERS.items()),
    ],
)
def test_every_walk_is_timms_own_pass_and_a_card_builds_it_again(family: type, name: str, size: int) -> None:
    trunk = load_trunk(name, size=size)
    assert type(trunk) is family and trunk.size == size
    check_walk(trunk)
    again, images = build_trunk(Card.from_json(trunk.card.to_json()), trunk.tensors()), make_images(size)
    assert torch.equal(again(images), trunk(images)) and again.sha256 == trunk.sha256


def test_the_walk_of_a_swin_transformer_of_the_second_version_is_timms_own_pass() -> None:
    torch.manual_seed(0)
    model, rule = SwinTransformerV2(**SWIN, num_classes=0), Preprocessing(64, 64, (0.5,) * 3, (0.25,) * 3)
    trunk = Stages(model, Card("tiny", rule, family="stages"))
    assert trunk.sites(0) == [16, 32, 64] and trunk.sizes == Sizes(64, step=16, least=32)
    check_walk(trunk)


def test_every_class_with_stages_was_walked() -> None:
    walked = {type(sketch(name)) for name in STAGED}
    assert PARTS.keys() - walked == {SwinTransformerV2}


def test_a_network_that_has_no_stages_is_refused_by_the_name_of_its_class() -> None:
    model = make_random_network("mixer_s32_224", num_classes=0)
    card = Card("x", Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3), family="stages")
    with pytest.raises(OarlockError, match=r"'x' is not supported: it is a MlpMixer, not one of ResNet, ConvNeXt"):
        Stages(model, card)


def test_what_adapters_do_at_a_stages_end_goes_through_the_stages_above() -> None:
    """Written out on timm's own modules."""
    trunk, images = load_trunk("test_resnet", size=64), make_images(64)
    model = copy.deepcopy(trunk.model)
    model.layer3.register_forward_hook(lambda module, given, x: x * 1.5)
    model.layer4.register_forward_hook(lambda module, given, x: x + 0.25)
    expected = model((images / 255 - trunk.mean) / trunk.std)
    adapt = [lambda u: u * 1.5, lambda u: u + 0.25]
    assert close(trunk.adapted(trunk.below(images, 2), 2, lambda site, u: adapt[site](u), None), expected)


# -- local files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "mobilenetv3_small_050"])
def test_weights_of_a_file_go_into_a_network_whose_classifier_they_have_too(name: str, tmp_path) -> None:
    """A ConvNeXt keeps its last norm beside its classifier."""
    state = make_random_network(name, pretrained=True, num_classes=7).state_dict()
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(state, path)
    trunk = load_trunk(name, path, size=64)
    assert all(torch.equal(tensor, state[key]) for key, tensor in trunk.tensors().items())
    assert trunk.card.source == "local file w.safetensors" and trunk.card.family == "stages"


# -- other sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("vit_pico", 64, "32 only"),
        ("test_vit", 100, "multiples of 16 from 16 up"),
        ("vit_small_patch14_dinov2", 224 + 16, "multiples of 14 from 14 up"),
        ("resnet18", 100, "multiples of 32 from 64 up"),
        ("resnet18", 32, "multiples of 32 from 64 up"),
        ("swin_tiny_patch4_window7_224", 80, "multiples of 32 from 64 up"),
        ("swin_s3_tiny_224", 256, "224 only"),  # its third stage has larger windows than the first
        ("mixer_s32_224", 192, "224 only"),
    ],
)
def test_a_size_that_does_not_do_is_refused_before_weights_are_asked_for(
    name: str, size: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    create = timm.create_model

    def watched(name: str, pretrained: bool = False, **options: object) -> object:
        asked.append(pretrained)
        return create(name, pretrained=pretrained, **options)

    monkeypatch.setattr(timm, "create_model", watched)
    with pytest.raises(OarlockError, match=f"{said}$") as caught:
        load_trunk(name, size=size)
    assert f"size={size}" in str(caught.value) and name in str(caught.value) and not any(asked)


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "regnetx_002"])
def test_a_network_that_takes_any_size_is_shared(name: str) -> None:
    trunk = load_trunk(name)
    other = trunk.resized(96)
    assert other.model is trunk.model and other.sha256 == trunk.sha256 and other.size == 96
    assert close(other(make_images(96)), by_timm(trunk, make_images(96)))


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about how timm indexes
@pytest.mark.parametrize(
    ("name", "size", "computed"),
    [
        ("test_vit", 64, {"pos_embed"}),
        ("vit_small_patch14_reg4_dinov2", 56, {"pos_embed"}),
        # The map of its last stage is smaller than a window, which shrinks.
        ("tiny_swin", 32, {"layers.2.blocks.0.attn.relative_position_bias_table"}),
    ],
)
def test_a_network_that_depends_on_its_size_shares_all_tensors_but_those_computed_for_it(
    name: str, size: int, computed: set[str]
) -> None:
    trunk = load_trunk(name)
    other = trunk.resized(size)
    theirs, ours = trunk.tensors(), other.tensors()
    new = {key for key in theirs if theirs[key].data_ptr() != ours[key].data_ptr()}
    assert new == computed
    assert other.published().keys() == ours.keys() - new and trunk.published().keys() == theirs.keys()
    reference = timm.create_model(name, pretrained=False, num_classes=0, img_size=size).eval()
    assert {key: value.shape for key, value in reference.state_dict().items()} == {
        k: v.shape for k, v in ours.items()
    }
    images = make_images(size)
    reference.load_state_dict(ours)
    with torch.no_grad():
        assert close(other(images), reference((images / 255 - trunk.mean) / trunk.std))
    # Whichever way it came to its size, it is the same trunk.
    there = trunk.resized(2 * size).resized(size)
    assert there.card == other.card == load_trunk(name, size=size).card and there.sha256 == other.sha256
    assert torch.equal(there(images), other(images)) and there.resized(trunk.size).sha256 == trunk.sha256
    assert other.sha256 != trunk.sha256  # the computed ones are not in it


def test_positions_at_another_size_are_those_that_timm_interpolates_when_it_loads_weights() -> None:
    whole = load_trunk("test_vit")
    reference = timm.create_model("test_vit", pretrained=False, num_classes=0, img_size=64)
    expected = checkpoint_filter_fn(whole.tensors(), reference)["pos_embed"]
    assert expected.shape != whole.tensors()["pos_embed"].shape
    assert close(whole.resized(64).tensors()["pos_embed"], expected)


def test_a_transformer_that_only_a_card_describes_takes_another_size_too() -> None:
    architecture = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2, "reg_tokens": 4}
    rule = Preprocessing(16, 20, (0.5,) * 3, (0.25,) * 3)
    card = Card("tiny", rule, architecture | {"init_values": 0.5, "no_embed_class": True}, "random", ())
    trunk = build_trunk(card, vision_transformer(**card.architecture).state_dict())
    other = trunk.resized(32)
    assert other.card.architecture["img_size"] == other.size == 32 and other.card.preprocessing.resize == 40
    again = build_trunk(Card.from_json(other.card.to_json()), other.tensors())
    assert torch.equal(again(make_images(32)), other(make_images(32))) and again.sha256 == other.sha256
    assert again.resized(16).card == card
    with pytest.raises(OarlockError, match="multiples of 8 from 8 up"):
        trunk.resized(20)


def test_a_photo_is_cropped_as_much_at_every_size() -> None:
    trunk = load_trunk("vit_tiny_patch16_224")
    assert (trunk.card.preprocessing.resize, trunk.resized(112).card.preprocessing.resize) == (248, 124)
