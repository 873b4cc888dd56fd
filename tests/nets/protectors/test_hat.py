"""HAT over adapters: formulas written out by hand, and the promise that finished tasks keep their features."""

import copy
import itertools
import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from oarlock.nets.protectors.hat import CLAMP, GatedAdapter, GatedBottleneck, Hat, HatAdapterConfig, anneal

WIDTH = 6
S_MAX = 400.0

pytestmark = pytest.mark.filterwarnings("ignore:an adapter has hardly a free unit left")  # six units are few


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_images(count: int = 5, size: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=seeded(9)).to(torch.uint8)


def make_hat(trunk, tasks: int = 0, adapt_last: int | None = None, **options) -> Hat:
    """Build one that does not grow, unless it is told to when a task begins."""
    config = HatAdapterConfig(width=WIDTH, adapt_last=adapt_last, s_max=S_MAX, grow_below=0.0, **options)
    hat = Hat(trunk, config)
    for task in range(tasks):
        hat.begin_task(seeded(task))
        hat.finish_task()
    return hat


def begin_task(hat: Hat, seed: int, grow_below: float, wing: int) -> None:
    """Begin a task with a limit of its own for growing."""
    hat.config = replace(hat.config, grow_below=grow_below, wing=wing)
    hat.begin_task(seeded(seed))


def fraction_with(s: float) -> float:
    """Return where in an epoch gates are so hard."""
    fraction = (s - 1 / S_MAX) / (S_MAX - 1 / S_MAX)
    assert anneal(fraction, S_MAX) == pytest.approx(s, rel=1e-12)
    return fraction


def scramble(module: nn.Module, seed: int = 1, std: float = 0.5) -> None:
    """Values of ordinary size everywhere, so that nothing holds only because it is near zero."""
    random = seeded(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=random) * std)


def trained(hat: Hat) -> list[nn.Parameter]:
    return [parameter for group in hat.parameter_groups() for parameter in group["params"]]


def open_units(hat: Hat, hidden: set[int], output: set[int], task: int = -1) -> None:
    """Set a task's gate embeddings by hand: these units open, all others closed; a wing is open whole."""
    gates = hat.gates[task]
    for widths, out in zip(gates.hidden, gates.output, strict=True):
        for number, e in enumerate(widths):
            e.data.copy_(torch.tensor([2.0 if number or unit in hidden else -2.0 for unit in range(len(e))]))
        out.data.copy_(torch.tensor([2.0 if unit in output else -2.0 for unit in range(len(out))]))


# -- one adapter ---------------------------------------------------------------------------------------------


def by_hand(bottleneck: GatedBottleneck, u: torch.Tensor, gate: list[float]) -> list[float]:
    """fc2(relu(g ⊙ fc1(u))) of one vector, unit by unit."""
    fc1, fc2 = bottleneck.fc1, bottleneck.fc2
    hidden = [
        max(0.0, g * (sum(w * x for w, x in zip(row, u.tolist(), strict=True)) + b))
        for g, row, b in zip(gate, fc1.weight.tolist(), fc1.bias.tolist(), strict=True)
    ]
    return [
        sum(w * h for w, h in zip(row, hidden, strict=True)) + b
        for row, b in zip(fc2.weight.tolist(), fc2.bias.tolist(), strict=True)
    ]


def test_an_adapter_adds_fc2_of_relu_of_gated_fc1():
    adapter, u = GatedAdapter(4, 3), torch.randn(7, 4, generator=seeded())
    scramble(adapter)
    bottleneck, gate = adapter.bottlenecks[0], torch.tensor([1.0, 0.3, 0.0])
    expected = u + torch.tensor([by_hand(bottleneck, row, gate.tolist()) for row in u])
    torch.testing.assert_close(adapter(u, [gate], torch.ones(4)), expected, rtol=1e-5, atol=1e-6)
    expected = u + torch.tensor([by_hand(bottleneck, row, [1.0] * 3) for row in u])
    torch.testing.assert_close(adapter(u, [torch.ones(3)], torch.ones(4)), expected, rtol=1e-5, atol=1e-6)


def test_a_closed_gate_gets_the_gradient_it_would_have_if_it_were_open_a_little():
    """It could never open again without; relu(g ⊙ z) computed as it is written has none at g = 0."""
    adapter, u = GatedAdapter(4, 3), torch.randn(7, 4, generator=seeded())
    scramble(adapter)
    gradients = []
    for closed in (0.0, 1e-6):
        hidden = torch.tensor([1.0, 0.3, closed], requires_grad=True)
        output = torch.tensor([1.0, closed, 0.5, 1.0], requires_grad=True)
        adapter(u, [hidden], output).square().sum().backward()
        gradients.append(torch.cat([hidden.grad, output.grad]))
    assert gradients[0].abs().min() > 0
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_an_adapter_adds_the_gated_change_of_its_bottleneck_and_wings():
    adapter, u = GatedAdapter(4, 3), torch.randn(5, 4, generator=seeded())
    adapter.bottlenecks.append(GatedBottleneck(4, 2))
    scramble(adapter)
    first, wing = adapter.bottlenecks
    output = torch.tensor([1.0, 0.25, 0.0, 1.0])
    changes = [
        [a + b for a, b in zip(by_hand(first, x, [1, 0, 0.5]), by_hand(wing, x, [0.5, 1]), strict=True)] for x in u
    ]
    expected = u + output * torch.tensor(changes)
    hidden = [torch.tensor([1, 0, 0.5]), torch.tensor([0.5, 1])]
    torch.testing.assert_close(adapter(u, hidden, output), expected, rtol=1e-5, atol=1e-6)


def test_a_task_older_than_a_wing_does_not_evaluate_it():
    adapter, u = GatedAdapter(4, 3), torch.randn(5, 4, generator=seeded())
    scramble(adapter)
    gates = [torch.ones(3)], torch.ones(4)
    before = adapter(u, *gates)
    adapter.bottlenecks.append(GatedBottleneck(4, 2))
    for parameter in adapter.bottlenecks[1].parameters():
        parameter.data.fill_(float("nan"))
    assert torch.equal(adapter(u, *gates), before)


# -- what is protected ---------------------------------------------------------------------------------------


def test_protected_weights_are_those_between_units_that_finished_tasks_use():
    bottleneck = GatedBottleneck(5, 4)
    hidden = [torch.tensor([1.0, 0, 0, 1]), torch.tensor([0, 0, 1.0, 1])]
    output = [torch.tensor([1.0, 0, 0, 0, 0]), torch.tensor([0, 1.0, 0, 0, 1])]
    for h, o in zip(hidden, output, strict=True):
        bottleneck.occupy(h, o)
    used_hidden = [max(a, b) for a, b in zip(*(h.tolist() for h in hidden), strict=True)]
    used_output = [max(a, b) for a, b in zip(*(o.tolist() for o in output), strict=True)]
    used_input = [1.0] * 5  # the trunk's units, which every task uses
    found = {id(parameter): mask for parameter, mask in bottleneck.protected()}
    assert found.keys() == {id(parameter) for parameter in bottleneck.parameters()}
    fc1, fc2 = found[id(bottleneck.fc1.weight)], found[id(bottleneck.fc2.weight)]
    for i, j in itertools.product(range(4), range(5)):
        assert float(fc1[i, j]) == min(used_hidden[i], used_input[j])
    for i, j in itertools.product(range(5), range(4)):
        assert float(fc2[i, j]) == min(used_output[i], used_hidden[j])
    assert found[id(bottleneck.fc1.bias)].float().tolist() == used_hidden
    assert found[id(bottleneck.fc2.bias)].float().tolist() == used_output


OPTIMISERS = {
    "sgd": lambda parameters: SGD(parameters, 0.1, momentum=0.9, weight_decay=0.05),
    "adamw": lambda parameters: AdamW(parameters, 0.05, weight_decay=0.3),
}


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_free_weights_move_and_protected_ones_do_not_under_momentum_and_weight_decay(tiny_trunk, kind):
    hat = make_hat(tiny_trunk)
    hat.begin_task(seeded())
    for layer in hat.layers:
        scramble(layer, std=0.1)  # biases too: what is zero does not decay
    open_units(hat, {0, 1}, {0, 2, 4})
    hat.finish_task()
    hat.begin_task(seeded(1))
    hat.guard()
    before = copy.deepcopy(hat.layers)
    optimiser = OPTIMISERS[kind](trained(hat))
    activations = hat.below(make_images())
    for _ in range(3):
        optimiser.zero_grad()
        hat(activations, 1, fraction_with(1.0)).square().sum().backward()
        optimiser.step()
        hat.after_step()
    for layer, old in zip(hat.layers, before, strict=True):
        now, then = layer.bottlenecks[0], old.bottlenecks[0]
        moved = now.fc1.weight != then.fc1.weight
        assert not moved[:2].any() and moved[2:].all()
        assert (now.fc1.bias != then.fc1.bias).tolist() == [False, False, True, True, True, True]
        moved = now.fc2.weight != then.fc2.weight
        for i, j in itertools.product(range(tiny_trunk.dim), range(WIDTH)):
            assert moved[i, j].item() == (not (i in {0, 2, 4} and j in {0, 1})), (i, j)
        assert [i for i, m in enumerate(now.fc2.bias != then.fc2.bias) if not m] == [0, 2, 4]


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_without_protection_the_same_steps_move_what_is_protected(tiny_trunk, kind):
    hat = make_hat(tiny_trunk, 1)
    hat.begin_task(seeded(1))
    weight, mask = next(hat.layers[0].bottlenecks[0].protected())
    before = weight.detach().clone()
    optimiser = OPTIMISERS[kind](trained(hat))
    hat(hat.below(make_images()), 1, fraction_with(1.0)).square().sum().backward()
    optimiser.step()
    assert mask.any() and (weight != before)[mask].all()


def test_fresh_adapters_receive_gradients_and_move_in_the_first_step(tiny_trunk):
    """The released code starts from 1e-24, where matrices never learn."""
    hat = make_hat(tiny_trunk)
    hat.begin_task(seeded())
    before = copy.deepcopy(hat.layers)
    optimiser = SGD(trained(hat), 0.01)
    features = hat(hat.below(make_images()), 0, fraction_with(1.0))
    (features * torch.randn(features.shape, generator=seeded(4))).sum().backward()
    optimiser.step()
    for layer, old in zip(hat.layers, before, strict=True):
        now, then = layer.bottlenecks[0], old.bottlenecks[0]
        for a, b in zip(now.parameters(), then.parameters(), strict=True):
            assert (a - b).abs().max() > 1e-7
        # A unit may be silent for all activations of a few images, but not most of them.
        assert ((now.fc1.weight - then.fc1.weight).abs().amax(1) > 1e-9).float().mean() > 0.5
        assert ((now.fc2.weight - then.fc2.weight).abs().amax(0) > 1e-9).float().mean() > 0.5


def test_gates_norms_and_matrices_of_the_newest_task_are_all_that_is_trained(tiny_trunk):
    hat = make_hat(tiny_trunk, 2)
    hat.begin_task(seeded(2))
    names = {id(parameter): name for name, parameter in hat.named_parameters()}
    found = {names[id(parameter)] for parameter in trained(hat)}
    assert found == {
        name for name in names.values() if name.startswith(("layers.", "norms.2.", "gates.2."))
    } and not any(name.startswith("trunk") for name in names.values())
    assert all(parameter.requires_grad for parameter in trained(hat))
    assert len(found) == len(trained(hat))


def test_gates_are_trained_at_a_rate_of_their_own_and_do_not_decay(tiny_trunk):
    hat = make_hat(tiny_trunk, 1, gate_lr=0.07)
    hat.begin_task(seeded(1))
    weights, gates = hat.parameter_groups()
    assert gates == {"params": list(hat.gates[1].parameters()), "lr": 0.07, "weight_decay": 0.0}
    assert weights.keys() == {"params"}  # the method's rate


def test_after_a_step_the_newest_tasks_embeddings_are_within_the_clamp(tiny_trunk):
    hat = make_hat(tiny_trunk, 1)
    hat.begin_task(seeded(1))
    hat.guard()
    for gates in hat.gates:
        gates.hidden[0][0].data.copy_(torch.tensor([-100.0, -6.5, -5.5, 5.5, 7.0, 1e9]))
        gates.output[5].data.fill_(-6.5)
    hat.after_step()
    assert hat.gates[1].hidden[0][0].tolist() == [-CLAMP, -CLAMP, -5.5, 5.5, CLAMP, CLAMP]
    assert hat.gates[1].output[5].unique().tolist() == [-CLAMP]
    assert hat.gates[0].output[5].unique().tolist() == [-6.5]  # a finished task's stay as they are


# -- the whole network ---------------------------------------------------------------------------------------


def reference_pass(hat: Hat, images: torch.Tensor, task: int) -> torch.Tensor:
    """The network of a finished task, written out on timm's own modules (class token, no pre-norm)."""
    trunk, norms, gates = hat.trunk, hat.norms[task], hat.gates[task]
    model = trunk.model

    def norm(index, x):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        eps = model.blocks[0].norm1.eps
        return (x - mean) / (variance + eps).sqrt() * norms.weight[index] + norms.bias[index]

    def adapt(index, u):
        layer, change = hat.layers[index], 0
        for bottleneck, e in zip(layer.bottlenecks, gates.hidden[index], strict=False):
            hidden = u @ bottleneck.fc1.weight.T + bottleneck.fc1.bias
            hidden = (hidden * (e > 0)).clamp_min(0)
            change = change + hidden @ bottleneck.fc2.weight.T + bottleneck.fc2.bias
        return u + change * (gates.output[index] > 0)

    x = model.patch_embed((images / 255 - trunk.mean) / trunk.std)
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1) + model.pos_embed
    for index, block in enumerate(model.blocks):
        x = x + adapt(2 * index, block.attn(norm(2 * index, x)))
        x = x + adapt(2 * index + 1, block.mlp(norm(2 * index + 1, x)))
    return norm(2 * len(model.blocks), x)[:, 0]


def test_a_tasks_features_are_the_houlsby_formula_with_its_own_norms_and_gates(tiny_trunk):
    hat = make_hat(tiny_trunk, 2)
    scramble(hat, std=0.3)
    begin_task(hat, 5, grow_below=2.0, wing=3)
    scramble(hat, seed=2, std=0.3)
    hat.finish_task()
    images = make_images()
    activations = hat.below(images)
    results = [hat(activations, task) for task in range(3)]
    for task, result in enumerate(results):
        torch.testing.assert_close(result, reference_pass(hat, images, task), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(results[0], results[1], atol=0.1)


def test_a_tasks_norms_start_as_the_trunks(tiny_trunk):
    hat = make_hat(tiny_trunk, 1)
    blocks = tiny_trunk.model.blocks
    expected = [norm for block in blocks for norm in (block.norm1, block.norm2)] + [tiny_trunk.model.norm]
    hat.norms[0].weight.data.fill_(7)  # another task's are its own
    hat.begin_task(seeded(1))
    assert torch.equal(hat.norms[1].weight, torch.stack([norm.weight for norm in expected]))
    assert torch.equal(hat.norms[1].bias, torch.stack([norm.bias for norm in expected]))
    hat.norms[1].weight.data.fill_(9)
    assert expected[0].weight.unique().tolist() == [1.0]  # the trunk's stay as they are


@pytest.mark.parametrize("adapt_last", [None, 1, 2])
def test_adapters_that_change_nothing_give_the_bare_trunks_features(tiny_trunk, adapt_last):
    hat = make_hat(tiny_trunk, adapt_last=adapt_last)
    hat.begin_task(seeded())
    for layer in hat.layers:
        nn.init.zeros_(layer.bottlenecks[0].fc2.weight)
    images = make_images()
    torch.testing.assert_close(hat(hat.below(images), 0), tiny_trunk(images), rtol=1e-5, atol=1e-6)


def test_closed_gates_give_the_bare_trunks_features(tiny_trunk):
    hat = make_hat(tiny_trunk)
    hat.begin_task(seeded())
    scramble(hat.layers)
    open_units(hat, set(range(WIDTH)), set())
    hat.finish_task()
    images = make_images()
    torch.testing.assert_close(hat(hat.below(images), 0), tiny_trunk(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("adapt_last", [1, 2, 3, 99])
def test_what_lies_below_late_adapters_is_the_bare_trunk_and_what_lies_above_is_the_same_network(
    tiny_trunk, adapt_last
):
    """Against adapters in all stages, the lower ones of which change nothing."""
    late = make_hat(tiny_trunk, adapt_last=adapt_last)
    everywhere = make_hat(tiny_trunk)
    frozen = max(0, 3 - adapt_last)
    assert late.frozen_stages == frozen and len(late.layers) == 6 - 2 * frozen
    for hat in (late, everywhere):
        hat.begin_task(seeded())
        hat.finish_task()
    scramble(late, std=0.3)
    for index, layer in enumerate(everywhere.layers):
        lower = index < 2 * frozen
        if lower:
            everywhere.gates[0].output[index].data.fill_(-1.0)
            continue
        layer.load_state_dict(late.layers[index - 2 * frozen].state_dict())
        everywhere.gates[0].hidden[index][0].data.copy_(late.gates[0].hidden[index - 2 * frozen][0])
        everywhere.gates[0].output[index].data.copy_(late.gates[0].output[index - 2 * frozen])
    everywhere.norms[0].weight.data[2 * frozen :] = late.norms[0].weight
    everywhere.norms[0].bias.data[2 * frozen :] = late.norms[0].bias
    images = make_images()
    cached = late.below(images)
    torch.testing.assert_close(late(cached, 0), everywhere(everywhere.below(images), 0), rtol=1e-4, atol=1e-5)
    x = tiny_trunk.embed(images)
    for block in tiny_trunk.model.blocks[:frozen]:
        x = block(x)
    torch.testing.assert_close(cached, x, rtol=1e-5, atol=1e-5)


def test_no_gradient_is_kept_below_the_first_adapter_nor_for_the_trunk(tiny_trunk):
    hat = make_hat(tiny_trunk, adapt_last=1)
    hat.begin_task(seeded())
    activations = hat.below(make_images())
    assert not activations.requires_grad
    hat(activations, 0).sum().backward()
    assert all(parameter.grad is None for parameter in tiny_trunk.parameters())


def test_the_trunk_is_not_among_the_tensors(tiny_trunk):
    hat = make_hat(tiny_trunk, 1)
    own = {tensor.data_ptr() for tensor in hat.state_dict().values()}
    assert own.isdisjoint(tensor.data_ptr() for tensor in tiny_trunk.model.state_dict().values())
    assert {name.split(".")[0] for name in hat.state_dict()} == {"layers", "norms", "gates"}


def test_the_penalty_is_lambda_times_the_regulariser_of_hidden_and_output_gates_of_all_layers(tiny_trunk):
    hat = make_hat(tiny_trunk, lamb=0.6)
    dim, layers = tiny_trunk.dim, 6
    hat.begin_task(seeded())
    open_units(hat, {0, 1}, {0, 2, 4})
    hat.finish_task()
    begin_task(hat, 1, grow_below=2.0, wing=3)
    embeddings = torch.tensor(0.8)
    for e in hat.gates[1].parameters():
        e.data.fill_(embeddings)
    hat.gates[1].hidden[0][0].data[0] = 5.0  # in use: costs nothing
    hat.gates[1].hidden[0][0].data[3] = -0.4
    hat.gates[1].hidden[2][1].data[2] = 0.1  # a wing's unit
    hat.gates[1].output[5].data[1] = 0.3
    hat.gates[1].output[5].data[2] = 5.0  # in use
    s = 1.7
    free = layers * (WIDTH - 2 + 3 + dim - 3)
    total = (free - 3) * torch.sigmoid(s * embeddings)
    total += sum(torch.sigmoid(torch.tensor(s * e)) for e in (-0.4, 0.1, 0.3))
    assert hat.penalty(fraction_with(s)).item() == pytest.approx(0.6 * total.item() / free, rel=1e-5)


def test_the_penalty_is_zero_when_no_unit_is_free(tiny_trunk):
    hat = make_hat(tiny_trunk)
    hat.begin_task(seeded())
    open_units(hat, set(range(WIDTH)), set(range(tiny_trunk.dim)))
    hat.finish_task()
    hat.begin_task(seeded(1))
    assert hat.penalty(fraction_with(1.0)).item() == 0


# -- growth --------------------------------------------------------------------------------------------------


def test_the_free_share_counts_hidden_units_no_task_uses(tiny_trunk):
    hat = make_hat(tiny_trunk)
    hat.begin_task(seeded())
    assert hat.capacity().free == [1.0] * 6
    open_units(hat, {0, 1}, set(range(tiny_trunk.dim)))
    hat.gates[0].hidden[4][0].data.fill_(-1.0)
    assert hat.capacity().free == [1.0] * 6  # an unfinished task holds nothing yet
    hat.finish_task()
    assert hat.capacity().free == pytest.approx([4 / 6] * 4 + [1.0] + [4 / 6])
    begin_task(hat, 1, grow_below=0.7, wing=2)
    assert hat.capacity().free == pytest.approx([6 / 8] * 4 + [1.0] + [6 / 8])
    open_units(hat, {1, 2}, {0})  # overlaps in unit 1; the wing is open whole
    hat.finish_task()
    assert hat.capacity().free == pytest.approx([3 / 8] * 4 + [4 / 6] + [3 / 8])


def test_a_layer_grows_a_wing_exactly_when_its_free_share_is_below_the_limit(tiny_trunk):
    def grown(grow_below):
        hat = make_hat(tiny_trunk)
        begin_task(hat, 0, grow_below, 5)
        assert [layer.widths for layer in hat.layers] == [[WIDTH]] * 6  # never at the first task
        open_units(hat, {0, 1, 2}, {0})
        hat.gates[0].hidden[1][0].data.fill_(1.0)
        hat.gates[0].hidden[2][0].data.fill_(-1.0)
        hat.finish_task()
        begin_task(hat, 1, grow_below, 5)
        return [layer.widths for layer in hat.layers]

    half, wing = [WIDTH], [WIDTH, 5]  # half of the units are free in all layers but 1 (none) and 2 (all)
    assert grown(0.0) == [half] * 6
    assert grown(0.5) == [half, wing, half, half, half, half]
    assert grown(0.51) == [wing, wing, half, wing, wing, wing]
    assert grown(1.01) == [wing] * 6


@pytest.mark.parametrize(("grow_below", "opened", "warned"), [(0.0, 6, True), (0.0, 5, False), (0.1, 6, False)])
def test_an_adapter_that_is_full_and_will_not_grow_is_warned_about(tiny_trunk, recwarn, grow_below, opened, warned):
    hat = make_hat(tiny_trunk)
    begin_task(hat, 0, grow_below, 5)
    open_units(hat, {0}, {0})
    hat.gates[0].hidden[3][0].data[:opened] = 1.0
    hat.finish_task()
    assert [str(warning.message) for warning in recwarn if "hardly a free unit" in str(warning.message)] == (
        ["an adapter has hardly a free unit left for the next task; with grow_below it would grow"] if warned else []
    )


def test_capacity_counts_the_wings_of_every_layer(tiny_trunk):
    hat = make_hat(tiny_trunk, 1)
    assert hat.capacity().wings == [0] * 6
    hat.layers[3].bottlenecks[0].hidden_used.fill_(False)  # nothing is in use there
    begin_task(hat, 1, grow_below=1.0, wing=2)
    assert hat.capacity().wings == [1, 1, 1, 0, 1, 1]


def test_features_of_finished_tasks_are_the_same_bits_after_growth_and_whatever_the_wing_learns(tiny_trunk):
    hat = make_hat(tiny_trunk, 2)
    scramble(hat.layers)
    activations = hat.below(make_images())
    before = [hat(activations, task).clone() for task in range(2)]
    begin_task(hat, 3, grow_below=2.0, wing=4)
    assert all(len(layer.bottlenecks) == 2 for layer in hat.layers)
    assert all(torch.equal(hat(activations, task), before[task]) for task in range(2))
    grown = hat(activations, 2)
    for value in (3.0, -1e30, float("nan")):
        for layer in hat.layers:
            for parameter in layer.bottlenecks[1].parameters():
                parameter.data.fill_(value)
        assert all(torch.equal(hat(activations, task), before[task]) for task in range(2))
        assert not torch.equal(hat(activations, 2), grown)  # the new task does use its wing


# -- the promise ---------------------------------------------------------------------------------------------

MASKS = [
    ({0, 1, 2}, {0, 1, 2, 3, 4, 5, 6, 7}),
    ({1, 2, 3}, {4, 5, 6, 7, 8, 9}),  # overlaps the first
    ({0, 3, 4}, {0, 9, 10, 11, 23}),  # made of used and free units, and a wing
    (set(range(WIDTH)), set(range(24))),  # everything
]


def learn_by_force(hat: Hat, task: int, kind: str, steps: int = 4) -> None:
    """A task learned by steps of an optimiser on an arbitrary loss, then given its masks by hand."""
    begin_task(hat, task, grow_below=2.0 if task == 2 else 0.0, wing=3)
    open_units(hat, *MASKS[task])
    hat.guard()
    optimiser = OPTIMISERS[kind](trained(hat))
    activations = hat.below(make_images(6))
    for step in range(steps):
        optimiser.zero_grad()
        features = hat(activations, task, fraction_with(1.0 + step))
        target = torch.randn(features.shape, generator=seeded(100 * task + step))
        ((features - 3 * target).square().sum() + hat.penalty(fraction_with(1.0 + step))).backward()
        optimiser.step()
        if step == 1:  # arbitrary: no optimiser at all
            for parameter in hat.layers.parameters():
                parameter.data += torch.randn(parameter.shape, generator=seeded(step)) * 0.5
        hat.after_step()
    open_units(hat, *MASKS[task])
    hat.finish_task()


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("adapt_last", [None, 1])
def test_features_of_every_finished_task_never_change_a_bit(tiny_trunk, kind, adapt_last):
    hat = make_hat(tiny_trunk, adapt_last=adapt_last)
    activations = hat.below(make_images())
    promised: list[torch.Tensor] = []
    for task in range(len(MASKS)):
        weights = [parameter.detach().clone() for parameter in hat.layers.parameters()]
        learn_by_force(hat, task, kind)
        for earlier, features in enumerate(promised):
            assert torch.equal(hat(activations, earlier), features), (earlier, task)
        moved = any(not torch.equal(a, b) for a, b in zip(weights, hat.layers.parameters(), strict=False))
        assert moved  # something was learned
        promised.append(hat(activations, task).detach().clone())
    assert [len(layer.bottlenecks) for layer in hat.layers] == [2] * len(hat.layers)
    assert all(not torch.allclose(a, b) for a, b in itertools.combinations(promised, 2))
    assert min(features.isfinite().all() for features in promised)


def test_the_promise_would_break_without_protection(tiny_trunk, monkeypatch):
    monkeypatch.setattr(Hat, "guard", lambda self: None)
    hat = make_hat(tiny_trunk)
    activations = hat.below(make_images())
    learn_by_force(hat, 0, "sgd")
    before = hat(activations, 0).detach().clone()
    learn_by_force(hat, 1, "sgd")
    assert not torch.allclose(hat(activations, 0), before)


# -- rebuilding ----------------------------------------------------------------------------------------------


def shapes(module: nn.Module) -> dict[str, tuple]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("tasks", [0, 1, 4])
@pytest.mark.parametrize("adapt_last", [None, 2])
def test_a_rebuilt_network_has_the_same_shapes_and_after_loading_the_same_features(tiny_trunk, tasks, adapt_last):
    hat = make_hat(tiny_trunk, adapt_last=adapt_last)
    for task in range(tasks):
        learn_by_force(hat, task, "sgd", steps=1)
    again = make_hat(tiny_trunk, adapt_last=adapt_last)
    again.rebuild(hat.describe())
    assert shapes(again) == shapes(hat)
    again.load_state_dict(hat.state_dict())
    activations = hat.below(make_images())
    assert again.capacity().free == hat.capacity().free
    for task in range(tasks):
        assert torch.equal(again(activations, task), hat(activations, task))


def test_a_network_rebuilt_in_the_middle_of_a_task_goes_on_as_the_original_would(tiny_trunk):
    hat = make_hat(tiny_trunk)
    learn_by_force(hat, 0, "sgd", steps=1)
    begin_task(hat, 1, grow_below=2.0, wing=2)
    again = make_hat(tiny_trunk)
    again.rebuild(hat.describe())
    again.load_state_dict(hat.state_dict())
    activations = hat.below(make_images())
    results = []
    for network in (hat, again):
        network.guard()
        optimiser = OPTIMISERS["sgd"](trained(network))
        optimiser.zero_grad()
        network(activations, 1, fraction_with(2.0)).square().sum().backward()
        optimiser.step()
        network.after_step()
        network.finish_task()
        results.append([network(activations, task) for task in range(2)])
    assert all(map(torch.equal, *results))
    assert shapes(again) == shapes(hat)


def test_the_description_is_json(tiny_trunk):
    hat = make_hat(tiny_trunk, 1)
    begin_task(hat, 1, grow_below=2.0, wing=2)
    assert json.loads(json.dumps(hat.describe())) == hat.describe()


# -- reach ---------------------------------------------------------------------------------------------------


@pytest.fixture
def reaching(tiny_trunk, monkeypatch) -> Hat:
    """Five tasks, each with a wing of its own, that use two bottlenecks of a layer at most."""
    monkeypatch.setattr("oarlock.nets.protectors.hat.REACH", 2)
    hat = make_hat(tiny_trunk)
    for task in range(5):
        begin_task(hat, task, grow_below=2.0, wing=3)
        hat.finish_task()
    scramble(hat.layers, std=0.3)
    return hat


def uses(hat: Hat, task: int) -> list[list[int]]:
    """By hand: a layer's bottlenecks without which a task's features are others."""
    images, used = make_images(), []
    activations = hat.below(images)
    before = hat(activations, task)
    for layer in hat.layers:
        used.append([])
        for number, bottleneck in enumerate(layer.bottlenecks):
            kept = bottleneck.fc2.bias.data.clone()
            bottleneck.fc2.bias.data += 1
            if not torch.equal(hat(activations, task), before):
                used[-1].append(number)
            bottleneck.fc2.bias.data = kept
    return used


def test_a_task_uses_the_youngest_bottlenecks_up_to_a_limit(reaching: Hat) -> None:
    assert [len(layer.bottlenecks) for layer in reaching.layers] == [5] * 6
    assert [uses(reaching, task)[0] for task in range(5)] == [[0], [0, 1], [1, 2], [2, 3], [3, 4]]
    newest = {id(parameter) for parameter in trained(reaching)}
    for layer in reaching.layers:
        ours = [id(part.fc1.weight) in newest for part in layer.bottlenecks]
        assert ours == [False, False, False, True, True]


def test_only_units_within_reach_are_free_for_tasks_to_come(reaching: Hat) -> None:
    layer = reaching.layers[0]
    for bottleneck, used in zip(layer.bottlenecks, (0, 0, 0, 3, 1), strict=True):
        bottleneck.hidden_used.copy_(torch.arange(len(bottleneck.hidden_used)) < used)
    assert layer.free == pytest.approx(1 - 4 / 6)


def test_tasks_that_leave_out_bottlenecks_are_rebuilt_and_compact(reaching: Hat, tiny_trunk) -> None:
    again = Hat(tiny_trunk, reaching.config)
    again.rebuild(json.loads(json.dumps(reaching.describe())))
    again.load_state_dict(reaching.state_dict())
    activations = reaching.below(make_images())
    compact = reaching.compact()(activations, range(5))
    for task in range(5):
        assert torch.equal(again(activations, task), reaching(activations, task))
        torch.testing.assert_close(compact[:, task], reaching(activations, task), rtol=1e-4, atol=1e-5)


def test_tasks_of_an_earlier_format_use_all_there_were(reaching: Hat, tiny_trunk) -> None:
    description = {"bottlenecks": [[6, 3, 3, 3]] * 6, "tasks": [[1] * 6, [4] * 6], "first": [[0] * 6] * 2}
    old = Hat(tiny_trunk, reaching.config)
    old.rebuild(description)
    old.gates[1].reset(seeded())
    old.finish_task()
    scramble(old.layers)
    assert old.describe() == description and uses(old, 1)[0] == [0, 1, 2, 3]


def test_what_a_forgotten_task_alone_used_is_drawn_anew_where_others_leave_out_bottlenecks(reaching: Hat) -> None:
    activations = reaching.below(make_images())
    before = [reaching(activations, task) for task in range(5)]
    first = reaching.layers[0].bottlenecks[0].fc1.weight.clone()
    reaching.forget_task(1, seeded(9))
    for task, features in enumerate(before[:1] + before[2:]):
        assert torch.equal(reaching(activations, task), features)
    kept = (reaching.layers[0].bottlenecks[0].fc1.weight == first).all(1)
    assert torch.equal(kept, reaching.gates[0].hidden[0][0] > 0)  # of those that use it only the first is left
