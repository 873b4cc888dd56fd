"""A whole adapter for each task: the published formula, and nothing in common."""

import torch

from nets.protectors.conftest import images, learn, make_protector


def test_the_adapter_is_the_published_bottleneck(tiny_trunk) -> None:
    own = make_protector("own", tiny_trunk)
    learn(own, 0)
    layer, u = own.layers[0][0], torch.randn(5, tiny_trunk.dim)
    with torch.no_grad():
        hidden = (u @ layer.fc1.weight.T + layer.fc1.bias).clamp_min(0)
        torch.testing.assert_close(layer(u), hidden @ layer.fc2.weight.T + layer.fc2.bias)


def test_a_task_begins_as_the_bare_trunk_and_its_adapters_move_at_once(tiny_trunk) -> None:
    own = make_protector("own", tiny_trunk)
    own.begin_task(torch.Generator().manual_seed(0))
    activations = own.below(images())
    torch.testing.assert_close(own(activations, 0), tiny_trunk(images()), rtol=1e-5, atol=1e-5)
    own(activations, 0).square().sum().backward()
    assert all(layer.fc2.weight.grad.abs().max() > 0 for layer in own.layers[0])
    assert all(layer.fc1.weight.abs().max() > 0 for layer in own.layers[0])


def test_what_other_tasks_have_is_not_touched(tiny_trunk, optimiser: str) -> None:
    own = make_protector("own", tiny_trunk)
    learn(own, 0, optimiser)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    learn(own, 1, optimiser)
    now = own.state_dict()
    assert all(torch.equal(value, now[name]) for name, value in before.items())
    new = {name: value for name, value in now.items() if name not in before}
    assert {name.split(".")[:2][1] for name in new} == {"1"}  # the second task's


def test_every_task_has_as_much_and_a_closed_one_only_its_norms(tiny_trunk) -> None:
    own, counts = make_protector("own", tiny_trunk, width=6), []
    for task in range(3):
        before = sum(value.numel() for value in own.state_dict().values())
        own.begin_task(torch.Generator().manual_seed(task))
        own.close_task() if task == 1 else own.finish_task()
        counts.append(sum(value.numel() for value in own.state_dict().values()) - before)
    norms = sum(parameter.numel() for parameter in own.norms[0].parameters())
    adapters = sum(2 * 6 * dim + 6 + dim for dim in own.sites())
    assert counts == [norms + adapters, norms, norms + adapters]
    assert own.describe() == {"adapted": [True, False, True]}
