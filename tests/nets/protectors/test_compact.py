"""Compact adapters against their protector: the same features to rounding, whatever is cut out or folded together."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conftest import make_tiny_convnet, make_tiny_trunk
from oarlock.nets.protectors.hat import Hat, HatAdapterConfig
from oarlock.nets.trunks import Trunk

TASKS = 5


def grown_hat(trunk: Trunk) -> Hat:
    """Five finished tasks with norms of their own; the later ones have wings that the earlier never see."""
    hat = Hat(trunk, HatAdapterConfig(width=6, adapt_last=None, grow_below=0.5, wing=3))
    seen: set[torch.nn.Module] = set()
    for task in range(TASKS):
        random = torch.Generator().manual_seed(task)
        hat.begin_task(random)
        for values in hat.norms[-1].parameters():
            values.data += 0.1 * torch.randn(values.shape, generator=random)
        new = {bottleneck for layer in hat.layers for bottleneck in layer.bottlenecks} - seen
        for bottleneck in new:  # once each: weights of thousands would make much of a rounding
            bottleneck.fc2.bias.data += 0.3  # what a closed wing would still add
            bottleneck.fc1.weight.data *= 10
            bottleneck.fc2.weight.data *= 10
        seen |= new
        hat.finish_task()
    assert any(len(layer.bottlenecks) > 1 for layer in hat.layers)
    return hat


@pytest.fixture(scope="module", params=[make_tiny_trunk, make_tiny_convnet], ids=["transformer", "convnet"])
def hat(request: pytest.FixtureRequest) -> Hat:
    return grown_hat(request.param())


@pytest.fixture(scope="module")
def activations(hat: Hat) -> Tensor:
    images = torch.randint(0, 256, (7, 3, 16, 16), generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    return hat.below(images)


def one_by_one(hat: Hat, activations: Tensor, tasks: range | list[int]) -> Tensor:
    with torch.no_grad():
        return torch.stack([hat(activations, task) for task in tasks], 1)


@pytest.mark.parametrize("folded", [None, False, True])
@pytest.mark.parametrize("tasks", [range(TASKS), [3, 0], [4]])
def test_features_are_those_of_the_protector(hat: Hat, activations: Tensor, tasks, folded: bool | None) -> None:
    expected = one_by_one(hat, activations, tasks)
    assert (expected[:, 0] - one_by_one(hat, activations, [1])[:, 0]).abs().max() > 1e-2
    features = hat.compact()(activations, tasks, folded)
    assert (features - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_pass_holds_no_more_pairs_than_its_limit(
    hat: Hat, activations: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def count(original: Callable) -> Callable:
        def adapted(x: Tensor, *others: object) -> Tensor:
            sizes.append(len(x))
            return original(x, *others)

        return adapted

    monkeypatch.setattr(hat.trunk, "adapted", count(hat.trunk.adapted))
    monkeypatch.setattr("oarlock.nets.protectors._compact.FOLD_UP_TO", 15)
    hat.compact()(activations, range(TASKS))
    assert sizes == [14, 14, 7]
    sizes.clear()
    hat.compact()(activations[:1], range(TASKS))
    assert sizes == [5]


def test_every_image_can_have_a_task_of_its_own(
    hat: Hat, activations: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oarlock.nets.protectors._compact.FOLD_UP_TO", 3)
    tasks = torch.tensor([4, 0, 2, 2, 1, 0, 3])
    expected = one_by_one(hat, activations, range(TASKS))[torch.arange(7), tasks]
    assert (hat.compact().pairs(activations, tasks) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_only_open_units_are_kept(hat: Hat) -> None:
    compact = hat.compact()
    for site, layer in enumerate(compact.layers):
        opened = [int(sum((e > 0).sum() for e in gates.hidden[site])) for gates in hat.gates]
        assert layer.widths == opened
        assert layer.fc1.shape[2] == max(opened)
    assert compact.layers[0].fc1.shape[2] < sum(hat.layers[0].widths)


def test_a_task_whose_gates_are_all_closed_leaves_the_trunk_as_it_is(tiny_trunk: Trunk) -> None:
    hat = Hat(tiny_trunk, HatAdapterConfig(width=4, adapt_last=None))
    hat.begin_task(torch.Generator().manual_seed(0))
    for e in hat.gates[0].parameters():
        e.data.fill_(-1)
    hat.finish_task()
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    features = hat.compact()(hat.below(images), [0])[:, 0]
    assert torch.allclose(features, tiny_trunk(images), atol=1e-5)
