"""The trunk against timm's own passes; weights from files; what is refused."""

import copy
import os

import pytest
import safetensors.torch
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets.trunks import Card, Trunk, build_trunk, load_trunk
from oarlock.nets.trunks._base import read_weights
from oarlock.nets.trunks.vit import Transformer

TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
RULE = Preprocessing(16, 16, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
CARD = Card("tiny", RULE, TINY, "random", ())
DEIT = "deit_tiny_patch16_224"


def make_images(size: int, count: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def make_model(seed: int = 0, **options) -> VisionTransformer:
    """A tiny transformer whose every tensor matters: also norms, biases and layer scales are random."""
    model = VisionTransformer(num_classes=0, **{**TINY, **options}).eval()
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=random) * 0.2
    return model


def by_timm(model: VisionTransformer, images: torch.Tensor, rule: Preprocessing) -> torch.Tensor:
    """timm's features of images normalised channel by channel."""
    channels = [(images[:, c].float() / 255 - rule.mean[c]) / rule.std[c] for c in range(3)]
    with torch.no_grad():
        return model.forward_head(model.forward_features(torch.stack(channels, 1)), pre_logits=True)


@pytest.fixture(scope="module")
def pico() -> Trunk:
    return load_trunk("vit_pico")


@pytest.fixture(scope="module")
def deit_state() -> dict[str, torch.Tensor]:
    """Synthetic weights in timm's names, with a classifier of 611 classes as in the published checkpoint."""
    torch.manual_seed(0)
    return dict(timm.create_model(DEIT, pretrained=False, num_classes=611).state_dict())


@pytest.fixture
def no_network(monkeypatch):
    """timm's download fails; models without weights can still be made."""
    create = timm.create_model

    def offline(name, pretrained=False, **options):
        if pretrained:
            raise OSError("We couldn't connect to 'https://huggingface.co'\nsecond line")
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", offline)


# -- the same features as timm -------------------------------------------------------------------------------


def test_embed_stages_and_pool_of_the_bundled_trunk_give_timms_own_features(pico):
    images = make_images(32, 5)
    x = pico.embed(images)
    assert x.shape == (5, 1 + 64, 192)
    for stage in pico.stages:
        for norm, body in stage:
            x = x + body(norm(x))
    expected = by_timm(pico.model, images, pico.card.preprocessing)
    assert expected.std() > 0.1
    torch.testing.assert_close(pico.pool(x, pico.last_norm), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pico(images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"init_values": 0.1},  # LayerScale
        {"global_pool": "avg"},  # timm then normalises after pooling
        {"global_pool": "avg", "fc_norm": False},
        {"global_pool": "token", "fc_norm": True},
        {"global_pool": "avg", "class_token": False},
        {"reg_tokens": 2},
        {"reg_tokens": 2, "global_pool": "avg", "init_values": 0.5},
        {"reg_tokens": 2, "no_embed_class": True, "init_values": 0.5},  # as DINOv2's
        {"global_pool": "map", "class_token": False},  # as SigLIP's
        {"global_pool": "map", "reg_tokens": 2},
        {"global_pool": "map", "fc_norm": True},
        {"pre_norm": True},  # as CLIP's
        {"qk_norm": True, "qkv_bias": False},
        {"dynamic_img_size": True},
        {"drop_rate": 0.5, "proj_drop_rate": 0.5, "drop_path_rate": 0.5, "patch_drop_rate": 0.5},
    ],
    ids=str,
)
def test_every_supported_kind_of_transformer_gives_timms_own_features(options):
    model = make_model(**options)
    trunk = Transformer(copy.deepcopy(model), CARD)
    images = make_images(16)
    expected = by_timm(model, images, RULE)
    torch.testing.assert_close(trunk(images), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)
    for stages in range(len(trunk.stages) + 1):
        below, bare = trunk.below_and_bare(images, stages)
        unchanged = trunk.adapted(below, stages, lambda site, change: change, None)
        torch.testing.assert_close(unchanged, expected, rtol=1e-5, atol=1e-5)
        assert bare.shape == (3, trunk.bare_rows, trunk.dim) and bare.isfinite().all()


def test_layer_scale_makes_a_difference():
    model = make_model(init_values=0.1)
    images = make_images(16)
    before = Transformer(copy.deepcopy(model), CARD)(images)
    model.blocks[1].ls2.gamma.data *= 2
    assert not torch.allclose(Transformer(model, CARD)(images), before, atol=1e-3)


def test_activations_below_a_stage_are_timms_blocks_up_to_it(pico):
    images = make_images(32)
    x = pico.embed(images)
    for count, block in enumerate(pico.model.blocks):
        torch.testing.assert_close(pico.below(images, count), x, rtol=1e-5, atol=1e-5)
        x = block(x)


@pytest.mark.parametrize("stages", [0, 2, 3])
def test_bare_features_are_the_normed_class_token_and_the_mean_of_the_normed_patches_of_three_stages(stages):
    model = make_model(reg_tokens=1, depth=6)
    trunk, images = Transformer(copy.deepcopy(model), CARD), make_images(16)
    below, bare = trunk.below_and_bare(images, stages)
    assert torch.equal(below, trunk.below(images, stages))
    normalised = (images / 255 - torch.tensor(RULE.mean).view(3, 1, 1)) / trunk.std
    assert bare.shape == (3, trunk.bare_rows, 24) and trunk.bare_rows == 6
    for pair, last in zip(bare.split(2, dim=1), (1, 3, 5), strict=True):
        with torch.no_grad():
            _, [(patches, prefix)] = model.forward_intermediates(
                normalised, [last], True, norm=True, output_fmt="NLC"
            )
        torch.testing.assert_close(pair[:, 0], prefix[:, 0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(pair[:, 1], patches.mean(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(bare[:, -2], trunk(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("depth", "stages"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (12, [4, 8, 12])])
def test_a_trunk_of_few_stages_is_seen_at_each_once(depth, stages):
    assert Transformer(make_model(depth=depth), CARD).seen_after == stages


@pytest.mark.parametrize("fc_norm", [False, True])
def test_a_trunk_that_pools_patches_is_seen_once_a_stage_and_the_last_is_its_features(fc_norm):
    trunk, images = Transformer(make_model(global_pool="avg", fc_norm=fc_norm), CARD), make_images(16)
    _, bare = trunk.below_and_bare(images, 1)
    assert bare.shape == (3, 3, 24)
    torch.testing.assert_close(bare[:, -1], trunk(images), rtol=1e-5, atol=1e-5)


def test_a_trunk_that_pools_by_attention_is_seen_by_the_mean_of_three_stages_and_by_its_features():
    trunk, images = Transformer(make_model(global_pool="map", class_token=False), CARD), make_images(16)
    _, bare = trunk.below_and_bare(images, 1)
    assert bare.shape == (3, 4, 24) and trunk.bare_dim == 4 * 24
    torch.testing.assert_close(bare[:, -1], trunk(images), rtol=1e-5, atol=1e-5)
    for row, stage in enumerate((1, 2, 3)):
        mean = trunk.last_norm(trunk.below(images, stage)).mean(1)
        torch.testing.assert_close(bare[:, row], mean, rtol=1e-5, atol=1e-5)


# -- frozen --------------------------------------------------------------------------------------------------


def test_no_parameter_of_a_trunk_takes_a_gradient(pico):
    assert not any(parameter.requires_grad for parameter in pico.parameters())
    assert not pico(make_images(32)).requires_grad


def test_training_mode_does_not_reach_the_trunk_nor_its_batch_norms(pico):
    before = {name: tensor.clone() for name, tensor in pico.model.state_dict().items()}
    assert any("running_mean" in name for name in before)
    images = make_images(32)
    features = pico(images)
    pico.train()
    assert not any(module.training for module in pico.modules())
    assert torch.equal(pico(images), features)
    after = pico.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_model_given_in_training_mode_with_dropout_is_frozen_too():
    model = make_model(proj_drop_rate=0.9, drop_path_rate=0.9).train()
    trunk = Transformer(model, CARD)
    trunk.train(True)
    images = make_images(16)
    assert torch.equal(trunk(images), trunk(images))


def test_copies_share_the_trunk(pico):
    assert copy.deepcopy([pico])[0] is pico


# -- weights from a file -------------------------------------------------------------------------------------


def test_the_bundled_weights_are_the_cards(pico):
    assert pico.card.name == "vit_pico" and pico.dim == 192 and len(pico.stages) == 6
    rule = pico.card.preprocessing
    assert (rule.size, rule.resize) == (32, 32)
    assert rule.mean == (0.485, 0.456, 0.406) and rule.std == (0.229, 0.224, 0.225)
    assert len(pico.card.classes) == 107


def test_the_bundled_trunk_takes_no_other_weights(tmp_path):
    with pytest.raises(OarlockError, match="weights="):
        load_trunk("vit_pico", tmp_path / "x.pth")


def without_head(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("head.")}


@pytest.mark.parametrize("form", ["safetensors", "pth", "pth with model", "pt with more"])
def test_deit_takes_weights_from_a_local_file_and_skips_the_head_of_611_classes(
    form, deit_state, tmp_path, no_network
):
    assert deit_state["head.weight"].shape == (611, 192)
    if form == "safetensors":
        path = tmp_path / "w.safetensors"
        safetensors.torch.save_file(deit_state, path)
    elif form == "pth":
        path = tmp_path / "w.pth"
        torch.save(deit_state, path)
    else:
        path = tmp_path / f"w.{form.split()[0]}"
        torch.save({"model": deit_state} | ({"epoch": 3, "lr": [0.1]} if "more" in form else {}), path)
    trunk = load_trunk(DEIT, path if form != "pth" else str(path))
    tensors = trunk.tensors()
    assert tensors.keys() == without_head(deit_state).keys()
    assert all(torch.equal(tensors[name], deit_state[name]) for name in tensors)
    if form == "safetensors":
        reference = timm.create_model(DEIT, pretrained=False, num_classes=611).eval()
        reference.load_state_dict(deit_state)
        images = make_images(224, 1)
        expected = by_timm(reference, images, trunk.card.preprocessing)
        torch.testing.assert_close(trunk(images), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_weights_are_widened(tmp_path, no_network, deit_state):
    path = tmp_path / "w.safetensors"
    halves = {name: tensor.half() for name, tensor in without_head(deit_state).items()}
    safetensors.torch.save_file(halves, path)
    tensors = load_trunk(DEIT, path).tensors()
    assert all(torch.equal(tensors[name], half.float()) for name, half in halves.items())


def test_deit_small_has_the_papers_size_and_preprocessing(tmp_path, no_network):
    name = "deit_small_patch16_224"
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(timm.create_model(name, pretrained=False).state_dict(), path)
    trunk = load_trunk(name, path)
    rule = trunk.card.preprocessing
    assert (rule.size, rule.resize) == (224, 248)
    assert rule.mean == (0.485, 0.456, 0.406) and rule.std == (0.229, 0.224, 0.225)
    assert trunk.dim == 384 and len(trunk.stages) == 12
    assert sum(tensor.numel() for tensor in trunk.tensors().values()) == 21_665_664
    assert trunk.card.overlap(["dog"]) == "unknown"


def test_a_trunk_comes_back_from_its_card_and_tensors():
    trunk = build_trunk(CARD, make_model().state_dict())
    again = build_trunk(Card.from_json(trunk.card.to_json()), trunk.tensors())
    images = make_images(16)
    assert again.card == trunk.card and again.sha256 == trunk.sha256
    assert torch.equal(again(images), trunk(images))


def test_the_bundled_trunk_comes_back_from_its_card_and_tensors(pico):
    again = build_trunk(Card.from_json(pico.card.to_json()), pico.tensors())
    images = make_images(32)
    assert torch.equal(again(images), pico(images))
    assert again.card == pico.card


def test_the_hash_of_a_trunk_tells_weights_apart():
    one, other = (build_trunk(CARD, make_model(seed).state_dict()) for seed in (0, 1))
    assert one.sha256 != other.sha256
    assert one.size_bytes == 4 * sum(parameter.numel() for parameter in one.parameters())


# -- what is refused -----------------------------------------------------------------------------------------


def refused(path, match: str) -> None:
    with pytest.raises(OarlockError, match=match):
        load_trunk(DEIT, path)


def test_weights_of_wrong_shape_or_with_missing_or_foreign_tensors_are_refused_by_the_tensors_name(
    deit_state, tmp_path
):
    good = without_head(deit_state)
    variants = [
        ({**good, "blocks.3.mlp.fc1.weight": torch.zeros(768, 191)}, r"blocks\.3\.mlp\.fc1\.weight"),
        ({name: tensor for name, tensor in good.items() if name != "blocks.7.norm2.bias"}, r"blocks\.7\.norm2\.bias"),
        ({**good, "blocks.12.norm1.weight": torch.zeros(192)}, r"blocks\.12\.norm1\.weight"),
        ({f"module.{name}": tensor for name, tensor in good.items()}, "do not fit"),
        ({"head.weight": torch.zeros(611, 192)}, "do not fit"),
        ({}, "do not fit"),
    ]
    for number, (state, match) in enumerate(variants):
        path = tmp_path / f"{number}.safetensors"
        safetensors.torch.save_file(state, path)
        refused(path, match)


def test_a_model_of_another_size_does_not_fit(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(make_model().state_dict(), path)
    refused(path, "do not fit")


@pytest.mark.parametrize(
    "content", [[1, 2], torch.zeros(3), "text", {"a": 1}, {"model": [torch.zeros(1)]}, {"model": {"a": "b"}}, 5]
)
def test_a_torch_file_that_holds_no_dictionary_of_tensors_is_refused(content, tmp_path):
    path = tmp_path / "w.pth"
    torch.save(content, path)
    refused(path, r"w\.pth holds no dictionary of tensors")


def test_truncated_foreign_and_missing_weights_are_refused(deit_state, tmp_path):
    small = {name: deit_state[name] for name in ("cls_token", "norm.weight", "pos_embed")}
    torch.save(small, tmp_path / "whole.pth")
    safetensors.torch.save_file(small, tmp_path / "whole.safetensors")
    for suffix in (".pth", ".safetensors"):
        whole = (tmp_path / f"whole{suffix}").read_bytes()
        path = tmp_path / f"cut{suffix}"
        for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            refused(path, "cannot be read as weights")
        path.write_bytes(b"not weights at all, only text")
        refused(path, "cannot be read as weights")
        refused(tmp_path / f"absent{suffix}", "no weights file")
    refused(tmp_path, "cannot be read")


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    path = tmp_path / "w.pth"
    torch.save({"model": {"a": torch.zeros(1)}, "extra": Payload()}, path)
    refused(path, "cannot be read as weights")
    torch.save(Payload(), path)
    refused(path, "cannot be read as weights")
    assert not (tmp_path / "pwned").exists()


def test_reading_weights_unwraps_the_model_key(tmp_path):
    torch.save({"model": {"a": torch.arange(3)}, "epoch": 9}, tmp_path / "w.pth")
    assert {name: tensor.tolist() for name, tensor in read_weights(tmp_path / "w.pth").items()} == {"a": [0, 1, 2]}


@pytest.mark.parametrize("given", ["a file", "nothing"])
def test_a_network_without_a_feature_vector_is_refused_by_name_before_anything_is_downloaded(
    given, tmp_path, monkeypatch
):
    asked, create = [], timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *a, **o: asked.append(o) or create(*a, **{**o, "pretrained": False})
    )
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(OarlockError, match="not supported") as caught:
        load_trunk("mobilenetv5_300m_enc", path if given == "a file" else None)
    assert "mobilenetv5_300m_enc" in str(caught.value) and "MobileNetV5Encoder" in str(caught.value)
    assert not any(options["pretrained"] for options in asked)


@pytest.mark.parametrize("name", ["vit_piko", "", "hf-hub:somebody/model", "../weights"])
def test_an_unknown_trunk_is_refused_with_an_example_of_a_known_one(name):
    with pytest.raises(OarlockError, match="vit_pico") as caught:
        load_trunk(name)
    assert repr(name) in str(caught.value)


def test_a_failed_download_is_told_in_one_line_with_the_way_around_it(no_network):
    with pytest.raises(OarlockError, match="weights=") as caught:
        load_trunk(DEIT)
    message = str(caught.value)
    assert DEIT in message and "couldn't connect" in message and "\n" not in message


@pytest.mark.parametrize(
    ("name", "source", "overlap"),
    [
        (DEIT, f"timm {DEIT} fb_in1k", "yes"),
        (f"{DEIT}.fb_in1k", f"timm {DEIT} fb_in1k", "yes"),
        ("vit_tiny_patch16_224", "timm vit_tiny_patch16_224 augreg_in21k_ft_in1k", "unknown"),
        ("vit_small_patch8_224", "timm vit_small_patch8_224 dino", "unknown"),
    ],
)
def test_timms_weights_say_which_they_are_and_what_they_saw(name, source, overlap, monkeypatch):
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **options: create(name, **options))
    card = load_trunk(name).card
    assert card.source == source
    assert card.overlap(["dog", "airplane"]) == overlap


def test_weights_from_a_file_are_never_downloaded(deit_state, tmp_path, no_network):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(deit_state, path)
    assert load_trunk(DEIT, path).dim == 192
    with pytest.raises(OarlockError, match="could not provide"):
        load_trunk(DEIT)


# -- overlap with a stream's classes -------------------------------------------------------------------------

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple motorcycle mountain mouse mushroom oak orange
    orchid otter palm pear pickup_truck pine plain plate poppy porcupine possum rabbit raccoon ray
    road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower
    sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe
    whale willow wolf woman worm
""".split()  # noqa: SIM905 (a list would take a hundred lines)


def test_the_bundled_trunk_saw_no_class_of_cifar(pico):
    assert [name for name in CIFAR10 + CIFAR100 if pico.card.overlap([name]) != "no"] == []
    assert pico.card.overlap(CIFAR10) == "no"


@pytest.mark.parametrize("name", ["trilobite", "Trilobite", "sea_slug", "nudibranch", "brain coral"])
def test_the_bundled_trunk_says_which_classes_it_saw(pico, name):
    assert pico.card.overlap([name]) == "yes"
    assert pico.card.overlap([*CIFAR10, name]) == "yes"


def test_a_stream_without_names_of_seen_classes_and_an_empty_card():
    assert Card("t", RULE, classes=("trilobite",)).overlap([]) == "no"
    assert Card("t", RULE, classes=()).overlap(["trilobite"]) == "no"
    assert Card("t", RULE, classes=None).overlap(["trilobite"]) == "unknown"


@pytest.mark.parametrize(
    "options",
    [
        {"norm_layer": timm.layers.RmsNorm},
        {"final_norm": False},
        {"global_pool": "avg", "pool_include_prefix": True},
    ],
)
def test_norms_and_pooling_that_adapters_cannot_follow_are_refused(options):
    with pytest.raises(OarlockError, match="not supported"):
        Transformer(make_model(**options), CARD)


@pytest.mark.parametrize("names", [["0", "1"], ["dog", "17"]])
def test_names_without_letters_say_nothing_about_overlap(pico, names):
    assert pico.card.overlap(names) == "unknown"
