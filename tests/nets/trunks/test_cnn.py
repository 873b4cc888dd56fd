"""The convolutional trunk against timm's own passes, and adapters on it against formulas written out by hand."""

import copy
from dataclasses import replace

import pytest
import timm
import torch
import torch.nn.functional as F

from conftest import LITE, LITE_CARD, make_tiny_convnet
from oarlock.nets.adapters import AdapterConfig, Adapters
from oarlock.nets.protectors.hat import Hat, HatAdapterConfig
from oarlock.nets.trunks import Card, build_trunk
from oarlock.nets.trunks.cnn import LITES, ConvNet, efficientnet_lite

WIDTH = 6


@pytest.fixture(scope="module")
def trunk() -> ConvNet:
    return make_tiny_convnet()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_images(size: int = 16, count: int = 5) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=seeded(9)).to(torch.uint8)


def by_timm(model, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model((images.float() / 255 - 0.5) / 0.25)


def scramble(module: torch.nn.Module, seed: int = 1, std: float = 0.3) -> None:
    random = seeded(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=random) * std)


# -- the bare trunk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 16, 37])
def test_features_are_timms_own_however_many_images_there_are(trunk, count):
    images = make_images(count=count)
    expected = by_timm(trunk.model, images)
    assert expected.shape == (count, trunk.dim) and expected.std() > 0.1
    torch.testing.assert_close(trunk(images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_what_lies_below_an_adapter_is_the_map_at_the_end_of_its_stage(trunk, stages):
    images = make_images(count=20)
    x = trunk.embed(images).permute(0, 3, 1, 2)
    for stage in trunk.model.blocks[: stages + 1]:
        x = stage(x)
    activations = trunk.below(images, stages)
    assert activations.shape[-1] == trunk.sites(stages)[0]
    torch.testing.assert_close(activations, x.permute(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
    assert torch.equal(trunk.below_and_bare(images, stages)[0], activations)


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_bare_features_are_the_features_and_the_mean_of_every_stages_map_then_zeros(trunk, stages):
    images, means = make_images(count=20), []
    hooks = [stage.register_forward_hook(lambda *seen: means.append(seen[2].mean((2, 3)))) for stage in trunk.stages]
    features = by_timm(trunk.model, images)
    for hook in hooks:
        hook.remove()
    bare = trunk.below_and_bare(images, stages)[1]
    assert bare.shape == (20, 3, trunk.dim) and trunk.bare_rows == 3 and trunk.bare_dim == 40 + 8 + 16 + 24
    expected = torch.cat([features, *means], 1)
    torch.testing.assert_close(bare.flatten(1)[:, : trunk.bare_dim], expected, rtol=1e-5, atol=1e-5)
    assert not bare.flatten(1)[:, trunk.bare_dim :].any()


@pytest.mark.parametrize("name", list(LITES))
def test_a_lites_card_builds_timms_tf_efficientnet_lite_and_not_its_namesake_with_other_padding(name):
    torch.manual_seed(0)
    reference = timm.create_model(f"tf_{name}", pretrained=False, num_classes=0).eval()
    namesake = timm.create_model(name, pretrained=False, num_classes=0).eval()
    ours = efficientnet_lite(**LITES[name].architecture).eval()
    namesake.load_state_dict(reference.state_dict())
    ours.load_state_dict(reference.state_dict())
    images = make_images(64, 2)
    expected = by_timm(reference, images)
    torch.testing.assert_close(by_timm(ours, images), expected, rtol=1e-6, atol=1e-6)
    assert (by_timm(namesake, images) - expected).abs().max() > 0.01 * expected.abs().max()


def test_batch_norms_keep_their_statistics_in_training_mode(trunk):
    before = {name: tensor.clone() for name, tensor in trunk.tensors().items()}
    assert any("running_var" in name and (tensor != 1).any() for name, tensor in before.items())
    images = make_images()
    features = trunk(images)
    trunk.train()
    assert torch.equal(trunk(images), features)
    assert not any(module.training for module in trunk.modules())
    assert not any(parameter.requires_grad for parameter in trunk.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in trunk.tensors().items())


def test_a_convolutional_trunk_comes_back_from_its_card_and_tensors(trunk):
    again = build_trunk(Card.from_json(trunk.card.to_json()), trunk.tensors())
    assert isinstance(again, ConvNet) and again.card == trunk.card == LITE_CARD and again.sha256 == trunk.sha256
    assert torch.equal(again(make_images()), trunk(make_images()))


# -- adapters ------------------------------------------------------------------------------------------------


def make_hat(trunk: ConvNet, adapt_last: int | None = None) -> Hat:
    return Hat(trunk, HatAdapterConfig(width=WIDTH, adapt_last=adapt_last))


def make_adapters(trunk: ConvNet, adapt_last: int | None = None) -> Adapters:
    return Adapters(trunk, AdapterConfig(width=WIDTH, adapt_last=adapt_last))


@pytest.mark.parametrize(
    ("adapt_last", "channels"), [(None, [8, 16, 24]), (2, [16, 24]), (1, [24]), (9, [8, 16, 24])]
)
def test_adapt_last_counts_stages_and_an_adapter_has_its_stages_channels(trunk, adapt_last, channels):
    hat, plain = make_hat(trunk, adapt_last), make_adapters(trunk, adapt_last)
    hat.begin_task(seeded())
    assert [layer.dim for layer in hat.layers] == channels == trunk.sites(hat.frozen_stages)
    assert [layer.fc1.in_features for layer in plain.layers] == channels
    assert hat.frozen_stages == plain.frozen_stages == len(LITE["blocks"]) - len(channels)
    assert [len(e) for e in hat.gates[0].output] == channels
    assert [len(scale) for scale in hat.norms[0].weight] == channels
    assert hat(hat.below(make_images()), 0).shape == (5, trunk.dim)
    assert plain(plain.below(make_images())).shape == (5, trunk.dim)


def reference_pass(network: Hat | Adapters, images: torch.Tensor, task: int | None = None) -> torch.Tensor:
    """A network written out on timm's own modules, adapters being 1×1 convolutions."""
    model = network.trunk.model
    x = model.bn1(model.conv_stem((images.float() / 255 - 0.5) / 0.25))
    for number, stage in enumerate(model.blocks):
        x, site = stage(x), number - network.frozen_stages
        if site < 0:
            continue
        bottlenecks, hidden_gates, output = [network.layers[site]], [1.0], 1.0
        if task is not None:
            norms, gates = network.norms[task], network.gates[task]
            x = x * norms.weight[site][:, None, None] + norms.bias[site][:, None, None]
            bottlenecks = network.layers[site].bottlenecks
            hidden_gates = [(e > 0)[:, None, None] for e in gates.hidden[site]]
            output = (gates.output[site] > 0)[:, None, None]
        change = 0
        for bottleneck, gate in zip(bottlenecks, hidden_gates, strict=False):
            hidden = F.conv2d(x, bottleneck.fc1.weight[:, :, None, None], bottleneck.fc1.bias)
            hidden = F.relu(hidden * gate)
            change = change + F.conv2d(hidden, bottleneck.fc2.weight[:, :, None, None], bottleneck.fc2.bias)
        x = x + output * change
    return model.bn2(model.conv_head(x)).mean((2, 3))


@pytest.mark.filterwarnings("ignore:an adapter has hardly a free unit left")  # six are few
@pytest.mark.parametrize("adapt_last", [None, 2, 1])
def test_a_tasks_features_are_gated_1x1_bottlenecks_after_its_own_scale_and_shift(trunk, adapt_last):
    hat = make_hat(trunk, adapt_last)
    for task in range(3):
        hat.config = replace(hat.config, grow_below=2.0 if task == 2 else 0.0, wing=3)
        hat.begin_task(seeded(task))
        scramble(hat, task)
        hat.finish_task()
    plain = make_adapters(trunk, adapt_last)
    scramble(plain, 2)
    images = make_images()
    results = [plain(plain.below(images)), *(hat(hat.below(images), task) for task in range(3))]
    torch.testing.assert_close(results[0], reference_pass(plain, images), rtol=1e-4, atol=1e-5)
    for task, result in enumerate(results[1:]):
        torch.testing.assert_close(result, reference_pass(hat, images, task), rtol=1e-4, atol=1e-5)
    assert all(not torch.allclose(results[-1], result, atol=0.05) for result in results[:-1])


@pytest.mark.parametrize("adapt_last", [None, 1])
def test_adapters_that_change_nothing_give_the_bare_trunks_features(trunk, adapt_last):
    hat, plain = make_hat(trunk, adapt_last), make_adapters(trunk, adapt_last)
    hat.begin_task(seeded())
    plain.reset(seeded())
    for bottleneck in (*(layer.bottlenecks[0] for layer in hat.layers), *plain.layers):
        torch.nn.init.zeros_(bottleneck.fc2.weight)
    images = make_images()
    activations = hat.below(images)
    for features in (hat(activations, 0), plain(activations), hat.below_and_bare(images)[1][:, 0]):
        torch.testing.assert_close(features, trunk(images), rtol=1e-5, atol=1e-6)


def test_every_part_of_the_newest_task_gets_a_gradient_and_the_trunk_none(trunk):
    hat = make_hat(trunk)
    hat.begin_task(seeded())
    scramble(hat.layers)
    trained = [parameter for group in hat.parameter_groups() for parameter in group["params"]]
    hat(hat.below(make_images()), 0, 1 / 400).square().sum().backward()  # where gates are soft: s is about 1
    assert len(trained) == 3 * (4 + 2 + 2)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trained)
    assert all(parameter.grad is None for parameter in trunk.parameters())


def test_copies_of_adapters_share_the_trunk(trunk):
    for network in (make_adapters(trunk), make_hat(trunk)):
        assert copy.deepcopy(network).trunk is trunk
        assert {name.split(".")[0] for name in network.state_dict()} == {"layers"}
