"""A tuned trunk: half of the changes, a network that shares all else, and layers found by walking."""

import pytest
import torch

from conftest import make_tiny_trunk
from oarlock.nets.trunks import load_trunk
from oarlock.nets.tuning import Tuning, layers_above


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def changed(tuning: Tuning) -> Tuning:
    for change in tuning.changes:
        torch.nn.init.normal_(change.change, std=0.1)
    return tuning


def test_a_changed_weight_is_the_old_one_and_half_of_the_change() -> None:
    trunk, tuning = make_tiny_trunk(), Tuning()
    tuning.begin(trunk, 1)
    changed(tuning)
    trained = [change.change.detach().clone() for change in tuning.changes]
    tuning.finish()
    tuned = tuning.tuned(trunk)
    for name, change in zip(tuning.names, trained, strict=True):
        difference = tuned.model.get_submodule(name).weight - trunk.model.get_submodule(name).weight
        assert torch.allclose(difference.flatten(1), change / 2, atol=1e-6)
    shared = dict(trunk.model.state_dict(keep_vars=True))
    for name, value in tuned.model.state_dict(keep_vars=True).items():
        assert (value is shared[name]) != (name.removesuffix(".weight") in tuning.names)


def test_in_training_it_is_what_it_will_be_afterwards_and_gradients_reach_the_changes_only() -> None:
    trunk, tuning = make_tiny_trunk(), Tuning()
    tuning.begin(trunk, 1)
    changed(tuning)
    images = torch.randint(0, 256, (2, 3, trunk.size, trunk.size), dtype=torch.uint8, generator=generator())
    training = tuning.trainable(trunk)
    features = training.adapted(training.below(images, 1), 1, lambda _, x: x, None)
    assert torch.allclose(features, tuning.tuned(trunk)(images), atol=1e-5)
    features.sum().backward()
    assert all(change.change.grad is not None for change in tuning.changes)
    assert all(parameter.grad is None for parameter in trunk.model.parameters())


@pytest.mark.parametrize("stages", [4, 5])
def test_of_a_convolutional_trunk_layers_above_the_stages_are_found(stages: int) -> None:
    trunk = load_trunk("efficientnet_lite0", size=64)
    names = list(layers_above(trunk, stages))
    below = [name for name in names if name.startswith("blocks.") and int(name.split(".")[1]) <= stages]
    assert below == [] and names[-1] == "conv_head"
    assert any("conv_dw" in name for name in names)


def test_described_shapes_are_enough_to_rebuild() -> None:
    tuning = Tuning()
    tuning.begin(make_tiny_trunk(), 2)
    tuning.finish()
    again = Tuning()
    again.rebuild(tuning.describe())
    again.load_state_dict(tuning.state_dict())
    assert again.describe() == tuning.describe() and not any(p.requires_grad for p in again.parameters())
