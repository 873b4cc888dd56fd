"""A trunk without anything: its own features, whatever was learned, and nothing to keep."""

import torch

from nets.protectors.conftest import images, learn, make_protector


def test_features_are_the_bare_trunks_whatever_was_learned(tiny_trunk) -> None:
    none = make_protector("none", tiny_trunk)
    for task in range(2):
        learn(none, task)
    with torch.no_grad():
        activations = none.below(images())
        assert torch.equal(none(activations, 0), none(activations, 1))
    torch.testing.assert_close(none(activations, 0), tiny_trunk(images()), rtol=1e-5, atol=1e-5)


def test_there_is_nothing_of_its_own(tiny_trunk) -> None:
    none = make_protector("none", tiny_trunk)
    learn(none, 0)
    assert (none.state_dict(), none.describe(), none.capacity()) == ({}, {}, None)
    assert none.parameter_groups() == [{"params": []}]


def test_all_tasks_cost_one_pass(tiny_trunk, monkeypatch) -> None:
    none, passes = make_protector("none", tiny_trunk), []
    adapted = tiny_trunk.adapted
    monkeypatch.setattr(tiny_trunk, "adapted", lambda x, *rest: passes.append(len(x)) or adapted(x, *rest))
    assert none.compact()(none.below(images()), range(9)).shape == (12, 9, tiny_trunk.dim)
    assert passes == [12]
