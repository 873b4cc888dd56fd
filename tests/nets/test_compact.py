"""Compact adapters against plain ones: the same features to rounding, whatever is cut out or folded together."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conftest import make_tiny_convnet, make_tiny_trunk
from oarlock.nets.adapters import Adapters
from oarlock.nets.compact import CompactAdapters
from oarlock.nets.trunk import Trunk

TASKS = 5


def grown_adapters(trunk: Trunk, adapt_last: int | None = None) -> Adapters:
    """Five finished tasks with norms of their own; the later ones have wings that the earlier never see."""
    adapters = Adapters(trunk, 6, adapt_last)
    seen: set[torch.nn.Module] = set()
    for task in range(TASKS):
        random = torch.Generator().manual_seed(task)
        adapters.begin_task(random, grow_below=0.5, wing=3)
        for values in adapters.norms[-1].parameters():
            values.data += 0.1 * torch.randn(values.shape, generator=random)
        new = {bottleneck for layer in adapters.layers for bottleneck in layer.bottlenecks} - seen
        for bottleneck in new:  # once each: weights of thousands would make much of a rounding
            bottleneck.fc2.bias.data += 0.3  # what a closed wing would still add
            bottleneck.fc1.weight.data *= 10
            bottleneck.fc2.weight.data *= 10
        seen |= new
        adapters.finish_task()
    assert any(len(layer.bottlenecks) > 1 for layer in adapters.layers)
    return adapters


@pytest.fixture(scope="module", params=[make_tiny_trunk, make_tiny_convnet], ids=["transformer", "convnet"])
def adapters(request: pytest.FixtureRequest) -> Adapters:
    return grown_adapters(request.param())


@pytest.fixture(scope="module")
def tokens(adapters: Adapters) -> Tensor:
    images = torch.randint(0, 256, (7, 3, 16, 16), generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    return adapters.below(images)


def one_by_one(adapters: Adapters, tokens: Tensor, tasks: range | list[int]) -> Tensor:
    with torch.no_grad():
        return torch.stack([adapters(tokens, task) for task in tasks], 1)


@pytest.mark.parametrize("folded", [None, False, True])
@pytest.mark.parametrize("tasks", [range(TASKS), [3, 0], [4]])
def test_features_are_those_of_plain_adapters(adapters: Adapters, tokens: Tensor, tasks, folded: bool | None) -> None:
    expected = one_by_one(adapters, tokens, tasks)
    assert (expected[:, 0] - one_by_one(adapters, tokens, [1])[:, 0]).abs().max() > 1e-2
    features = CompactAdapters(adapters)(tokens, tasks, folded)
    assert (features - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_pass_holds_no_more_pairs_than_its_limit(
    adapters: Adapters, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def count(original: Callable) -> Callable:
        def adapted(x: Tensor, *others: object) -> Tensor:
            sizes.append(len(x))
            return original(x, *others)

        return adapted

    monkeypatch.setattr(adapters.trunk, "adapted", count(adapters.trunk.adapted))
    monkeypatch.setattr("oarlock.nets.compact.FOLD_UP_TO", 15)
    CompactAdapters(adapters)(tokens, range(TASKS))
    assert sizes == [14, 14, 7]
    sizes.clear()
    CompactAdapters(adapters)(tokens[:1], range(TASKS))
    assert sizes == [5]


def test_every_image_can_have_a_task_of_its_own(
    adapters: Adapters, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oarlock.nets.compact.FOLD_UP_TO", 3)
    tasks = torch.tensor([4, 0, 2, 2, 1, 0, 3])
    expected = one_by_one(adapters, tokens, range(TASKS))[torch.arange(7), tasks]
    assert (CompactAdapters(adapters).pairs(tokens, tasks) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_only_open_units_are_kept(adapters: Adapters) -> None:
    compact = CompactAdapters(adapters)
    for site, layer in enumerate(compact.layers):
        opened = [int(sum((e > 0).sum() for e in gates.hidden[site])) for gates in adapters.gates]
        assert layer.widths == opened
        assert layer.fc1.shape[2] == max(opened)
    assert compact.layers[0].fc1.shape[2] < sum(adapters.layers[0].widths)


def test_a_task_whose_gates_are_all_closed_leaves_the_trunk_as_it_is(tiny_trunk: Trunk) -> None:
    adapters = Adapters(tiny_trunk, 4)
    adapters.begin_task(torch.Generator().manual_seed(0))
    for e in adapters.gates[0].parameters():
        e.data.fill_(-1)
    adapters.finish_task()
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    features = CompactAdapters(adapters)(adapters.below(images), [0])[:, 0]
    assert torch.allclose(features, tiny_trunk(images), atol=1e-5)
