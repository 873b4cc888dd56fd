"""What every protector does, whatever keeps its promise."""

import json

import pytest
import torch
from torch import Tensor

from conftest import make_tiny_convnet, make_tiny_trunk
from nets.protectors.conftest import images, learn, make_protector, rebuilt
from oarlock.errors import OarlockError
from oarlock.nets.protectors import Protector, protectors
from oarlock.nets.trunks import Trunk
from oarlock.schema import record

pytestmark = [
    pytest.mark.filterwarnings("ignore:an adapter has hardly a free unit left"),  # six units are few
    pytest.mark.filterwarnings("ignore:finished tasks look almost everywhere"),
]

every_protector = pytest.mark.parametrize("name", sorted(protectors.all()))
both_trunks = pytest.mark.parametrize("new_trunk", [make_tiny_trunk, make_tiny_convnet], ids=["vit", "convnet"])


@torch.no_grad()
def features(protector: Protector, task: int, seed: int = 100) -> Tensor:
    return protector(protector.below(images(seed)), task)


@torch.no_grad()
def bare(protector: Protector, seed: int = 100) -> Tensor:
    return protector.trunk(images(seed))


@every_protector
@both_trunks
def test_a_finished_task_keeps_its_features_as_it_is_promised(name: str, new_trunk, optimiser: str) -> None:
    energy = {"energy": 0.9999} if name == "project" else {}  # steps are large here
    protector, before = make_protector(name, new_trunk(), **energy), []
    for task in range(3):
        learn(protector, task, optimiser)
        before.append((features(protector, task, task), features(protector, task)))
        for earlier, answers in enumerate(before):
            # What nothing was learned from may move further where the promise is a tolerance.
            now = features(protector, earlier, earlier), features(protector, earlier)
            if protector.tolerance:
                size = answers[0].abs().max()
                assert (now[0] - answers[0]).abs().max() <= protector.tolerance * size
            else:
                assert all(torch.equal(*pair) for pair in zip(now, answers, strict=True))
    if name != "none":
        assert not torch.allclose(before[0][1], bare(protector), rtol=1e-2), "nothing was learned"
        assert not torch.allclose(before[0][1], before[1][1], rtol=1e-3)


@every_protector
def test_it_survives_its_description_at_any_moment(name: str, tiny_trunk: Trunk) -> None:
    protector = make_protector(name, tiny_trunk)
    learn(protector, 0)
    protector.begin_task(torch.Generator().manual_seed(1))
    protector.close_task()
    protector.begin_task(torch.Generator().manual_seed(2))
    for again in (rebuilt(protector), rebuilt(rebuilt(protector))):
        described = json.loads(json.dumps(protector.describe()))
        assert record(protector.described)(described, "it") == described
        assert again.describe() == described
        for task in range(3):
            assert torch.equal(features(again, task), features(protector, task))
        assert again.capacity() == protector.capacity()
    one, other = learn_on(protector), learn_on(again)
    assert torch.equal(one, other)


def learn_on(protector: Protector) -> Tensor:
    protector.finish_task([protector.below(images(2))])
    learn(protector, 3)
    return features(protector, 3)


@every_protector
@both_trunks
def test_a_task_that_was_closed_is_the_bare_trunk(name: str, new_trunk) -> None:
    protector = make_protector(name, new_trunk())
    learn(protector, 0)
    capacity = protector.capacity()
    protector.begin_task(torch.Generator().manual_seed(1))
    protector.close_task()
    assert protector.capacity() == capacity
    torch.testing.assert_close(features(protector, 1), bare(protector), rtol=1e-4, atol=1e-5)
    learn(protector, 2)
    torch.testing.assert_close(features(protector, 1), bare(protector), rtol=1e-4, atol=1e-5)


@every_protector
def test_a_task_can_be_taken_out_and_the_others_stay_as_they_are(name: str, tiny_trunk: Trunk) -> None:
    protector = make_protector(name, tiny_trunk)
    for task in range(3):
        learn(protector, task)
    others = [features(protector, task) for task in (0, 2)]
    if name == "project":  # its bases are of all tasks together
        with pytest.raises(OarlockError, match="project cannot take a task out again"):
            protector.forget_task(1, torch.Generator())
        return
    size = sum(tensor.numel() for tensor in protector.state_dict().values())
    protector.forget_task(1, torch.Generator().manual_seed(9))
    for again in (protector, rebuilt(protector)):
        assert all(torch.equal(features(again, task), kept) for task, kept in enumerate(others))
    assert name == "none" or sum(tensor.numel() for tensor in protector.state_dict().values()) < size
    learn(protector, 2)
    assert all(torch.equal(features(protector, task), kept) for task, kept in enumerate(others))


@every_protector
@both_trunks
@pytest.mark.parametrize("folded", [None, False, True])
def test_its_compact_form_has_the_same_features(name: str, new_trunk, folded: bool | None) -> None:
    protector = make_protector(name, new_trunk())
    learn(protector, 0)
    protector.begin_task(torch.Generator().manual_seed(1))
    protector.close_task()
    learn(protector, 2)
    activations, compact = protector.below(images(100)), protector.compact()
    for tasks in ([0, 1, 2], [2], [2, 0]):
        expected = torch.stack([features(protector, task) for task in tasks], 1)
        torch.testing.assert_close(compact(activations, tasks, folded), expected, rtol=1e-4, atol=1e-4)
    tasks = torch.arange(12) % 3
    expected = torch.stack([features(protector, task) for task in range(3)], 1)[torch.arange(12), tasks]
    torch.testing.assert_close(compact.pairs(activations, tasks), expected, rtol=1e-4, atol=1e-4)


@every_protector
def test_its_plain_matrices_are_what_it_does_at_every_site(name: str, tiny_trunk: Trunk) -> None:
    protector = make_protector(name, tiny_trunk)
    learn(protector, 0)
    learn(protector, 1)
    for task in range(2):
        weights = protector.task_weights(task)
        norms = protector.norms[task] if len(protector.norms) else None

        def adapt(site: int, u: Tensor, weights=weights) -> Tensor:
            fc1, bias1, fc2, bias2 = weights[site]
            return u + torch.relu(u @ fc1 + bias1) @ fc2 + bias2

        with torch.no_grad():
            by_hand = protector.adapted(protector.below(images(100)), adapt, norms)
        torch.testing.assert_close(by_hand, features(protector, task), rtol=1e-4, atol=1e-4)


@every_protector
def test_only_what_the_newest_task_may_move_is_trained(name: str, tiny_trunk: Trunk) -> None:
    protector = make_protector(name, tiny_trunk)
    learn(protector, 0)
    protector.begin_task(torch.Generator().manual_seed(1))
    groups = protector.parameter_groups()
    trained = [parameter for group in groups for parameter in group["params"]]
    assert len({id(parameter) for parameter in trained}) == len(trained)
    assert {id(p) for p in protector.parameters() if p.requires_grad} == {id(p) for p in trained}
    assert all(not parameter.requires_grad for parameter in protector.trunk.parameters())
