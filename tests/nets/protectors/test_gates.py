"""HAT's gates against the closed form, the published formula in float64, and hand-made cases."""

import math

import pytest
import torch

from oarlock.nets.protectors.hat import CLAMP, CLOSED, Gates, anneal, gate, regulariser

S_MAX = 400.0
EMBEDDINGS = torch.linspace(-12, 12, 241, dtype=torch.float64)


def embedding_gradient(e: torch.Tensor, s: float, upstream: torch.Tensor) -> torch.Tensor:
    e = e.clone().requires_grad_()
    (gate(e, s, S_MAX) * upstream).sum().backward()
    return e.grad


def published_gradient(e: torch.Tensor, s: float, upstream: torch.Tensor) -> torch.Tensor:
    """HAT's own way: autograd through σ(s·e), then times s_max/s · (cosh(s·e)+1)/(cosh(e)+1)."""
    e = e.clone().requires_grad_()
    (torch.sigmoid(s * e) * upstream).sum().backward()
    e_ = e.detach()
    return e.grad * S_MAX / s * (torch.cosh(s * e_) + 1) / (torch.cosh(e_) + 1)


def some_upstream(e: torch.Tensor) -> torch.Tensor:
    return torch.randn(e.shape, generator=torch.Generator().manual_seed(3), dtype=e.dtype)


@pytest.mark.parametrize("s", [1 / S_MAX, 0.3, 1.0, 17.0, S_MAX])
def test_the_gate_is_the_sigmoid_of_s_times_e(s):
    expected = [1 / (1 + math.exp(-min(max(s * e, -700), 700))) for e in EMBEDDINGS.tolist()]
    assert gate(EMBEDDINGS, s, S_MAX).tolist() == pytest.approx(expected, rel=1e-12, abs=CLOSED)


@pytest.mark.parametrize("s", [1 / S_MAX, 17.0, 40.0, 100.0, S_MAX])
def test_a_gate_is_never_so_small_that_its_products_are_subnormal_and_still_has_a_gradient(s):
    e = torch.linspace(-CLAMP, CLAMP, 10_001)
    found = gate(e, s, S_MAX)
    assert torch.all((found == 0) | (found >= CLOSED))
    if s > 20:
        assert (found == 0).any()
    assert torch.all(embedding_gradient(e, s, torch.ones_like(e)) > 0.9)


@pytest.mark.parametrize("s", [1 / S_MAX, 1.0, S_MAX])
def test_the_gradient_of_an_embedding_is_s_max_times_the_sigmoids_slope_at_e(s):
    upstream = some_upstream(EMBEDDINGS)
    slope = [1 / (4 * math.cosh(e / 2) ** 2) for e in EMBEDDINGS.tolist()]  # σ' without a difference of near equals
    expected = S_MAX * torch.tensor(slope, dtype=torch.float64) * upstream
    torch.testing.assert_close(embedding_gradient(EMBEDDINGS, s, upstream), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("s", [1 / S_MAX, 1.0, 20.0, S_MAX])
def test_the_gradient_is_the_published_compensation_wherever_that_one_can_be_computed(s):
    e = EMBEDDINGS[(s * EMBEDDINGS).abs() < 14]  # beyond, a·(1−a) has lost its digits even in float64
    assert len(e) >= 1 + 2 * (s < 100)
    e = torch.cat([e, torch.linspace(-13 / s, 13 / s, 41, dtype=torch.float64).clamp(-12, 12)])
    upstream = some_upstream(e)
    ours, published = embedding_gradient(e, s, upstream), published_gradient(e, s, upstream)
    torch.testing.assert_close(ours, published, rtol=1e-6, atol=0)


def test_the_gradient_has_no_hole_where_the_published_way_has_one_in_single_precision():
    e = torch.tensor([0.2, 0.5, 1.0, 3.0, 6.0])
    ones = torch.ones_like(e)
    assert not torch.any(torch.nan_to_num(published_gradient(e, S_MAX, ones), posinf=0) != 0)
    ours = embedding_gradient(e, S_MAX, ones)
    assert torch.all(ours > 0)
    expected = [S_MAX / (4 * math.cosh(value / 2) ** 2) for value in e.tolist()]
    assert ours.tolist() == pytest.approx(expected, rel=1e-4)


def test_the_gradient_is_alive_in_single_precision_everywhere_within_the_clamp():
    e = torch.linspace(-CLAMP, CLAMP, 1001)
    for s in (1 / S_MAX, 1.0, S_MAX):
        assert torch.all(embedding_gradient(e, s, torch.ones_like(e)) > 0.9)  # S_MAX · σ'(6) is 0.98


@pytest.mark.parametrize("s_max", [400.0, 500.0, 7.0])
def test_annealing_is_linear_from_the_inverse_of_s_max_to_s_max(s_max):
    assert anneal(0.0, s_max) == 1 / s_max
    assert anneal(1.0, s_max) == pytest.approx(s_max, rel=1e-15)
    assert anneal(0.5, s_max) == pytest.approx((s_max + 1 / s_max) / 2, rel=1e-12)
    assert anneal(0.75, s_max) - anneal(0.5, s_max) == pytest.approx(anneal(0.25, s_max) - anneal(0, s_max), rel=1e-9)


def make_gates(seed: int = 0) -> Gates:
    gates = Gates([[5], [5, 2]], [3, 3], [0, 0])
    gates.reset(torch.Generator().manual_seed(seed))
    return gates


def test_a_task_has_a_hidden_gate_for_every_bottleneck_and_one_output_gate_for_every_adapter():
    values = make_gates().values(1.0, 1.0)
    assert [([len(h) for h in hidden], len(output)) for hidden, output, _ in values] == [([5], 3), ([5, 2], 3)]


def test_embeddings_start_as_standard_normal_numbers_of_their_generator():
    gates = Gates([[4000]], [4000], [0])
    gates.reset(torch.Generator().manual_seed(1))
    drawn = torch.cat([e.detach() for e in gates.parameters()])
    assert abs(drawn.mean()) < 0.05 and abs(drawn.std() - 1) < 0.05
    assert all(torch.equal(a, b) for a, b in zip(make_gates(2).parameters(), make_gates(2).parameters(), strict=True))
    assert not torch.equal(make_gates(2).output[0], make_gates(3).output[0])
    assert not torch.equal(make_gates(2).output[0], make_gates(2).output[1])


def test_finished_gates_are_exactly_zero_or_one_as_the_embedding_says_whatever_s_is():
    gates = make_gates()
    undecided = torch.tensor([0.0, 1e-30, -1e-30])  # soft gates would be one half
    gates.output[1].data.copy_(undecided)
    soft = gates.values(S_MAX, S_MAX)[1].output
    assert torch.equal(soft, torch.full((3,), 0.5))
    gates.finish()
    for s in (1 / S_MAX, 1.0, S_MAX):
        for index, (hidden, output, _) in enumerate(gates.values(s, S_MAX)):
            for e, value in [*zip(gates.hidden[index], hidden, strict=True), (gates.output[index], output)]:
                assert value.tolist() == [1.0 if number > 0 else 0.0 for number in e.tolist()]
    assert gates.values(1.0, 1.0)[1].output.tolist() == [0.0, 1.0, 0.0]


def test_finished_gates_take_no_gradient_and_stay_finished_when_loaded():
    gates = make_gates()
    assert not gates.finished
    gates.finish()
    assert not any(e.requires_grad for e in gates.parameters())
    again = Gates([[5], [5, 2]], [3, 3], [0, 0])
    again.load_state_dict(gates.state_dict())
    for (hidden, output, _), (hidden_, output_, _) in zip(gates.values(1, 1), again.values(1, 1), strict=True):
        assert torch.equal(output, output_) and all(map(torch.equal, hidden, hidden_))


def test_clamping_keeps_every_embedding_within_six_and_leaves_the_others():
    gates = make_gates()
    gates.hidden[1][0].data.copy_(torch.tensor([-100.0, -6.5, -5.5, 5.5, 7.0]))
    gates.output[0].data.copy_(torch.tensor([1e9, 0.25, -1e9]))
    gates.clamp()
    assert gates.hidden[1][0].tolist() == [-6.0, -6.0, -5.5, 5.5, 6.0]
    assert gates.output[0].tolist() == [6.0, 0.25, -6.0]


def test_the_regulariser_is_the_mean_opening_of_the_free_units():
    soft = [torch.tensor([0.9, 0.8, 0.1]), torch.tensor([0.5, 0.3])]
    used = [torch.tensor([True, False, False]), torch.tensor([False, True])]
    assert regulariser(soft, used).item() == pytest.approx((0.8 + 0.1 + 0.5) / 3)


def test_the_regulariser_pushes_on_free_units_only():
    a = torch.tensor([0.9, 0.8, 0.1], requires_grad=True)
    b = torch.tensor([0.5], requires_grad=True)
    regulariser([a, b], [torch.tensor([True, False, False]), torch.tensor([False])]).backward()
    assert a.grad.tolist() == pytest.approx([0, 1 / 3, 1 / 3])
    assert b.grad.tolist() == pytest.approx([1 / 3])


def test_the_regulariser_is_zero_when_nothing_is_free():
    a = torch.tensor([0.9, 0.8], requires_grad=True)
    value = regulariser([a], [torch.tensor([True, True])])
    assert value.item() == 0
    value.backward()
    assert a.grad.tolist() == [0, 0]
