"""Random numbers by name."""

import itertools

import torch

from oarlock.training import generator


def draw(*key, count: int = 8) -> list[int]:
    return torch.randint(2**62, (count,), generator=generator(*key)).tolist()


def test_the_same_key_draws_the_same_numbers():
    assert draw(3, "task", 1) == draw(3, "task", 1)


def test_a_keys_seed_is_the_same_in_every_process_and_for_ever():
    # printf "(3, 'task', 1)" | sha256sum; anything salted by the process would break resumed runs
    assert generator(3, "task", 1).initial_seed() == 0x76514E4D58230A89 // 2


def test_keys_that_differ_anywhere_draw_different_numbers():
    keys = [*itertools.product((0, 1), (0, 1, 11), ("features", "OOD heads"), (0, 1, 2))]
    keys += [(1,), ("1",), (1, 1), (11,), ("a", "b"), ("ab",), ("a, b",), ("a', 'b",), (), ("",), (-1,)]
    drawn = {tuple(draw(*key)) for key in keys}
    assert len(drawn) == len(set(keys)) == len(keys)


def test_the_order_of_a_keys_parts_matters():
    assert draw(0, 1) != draw(1, 0)
    assert draw(0, "a", 1) != draw("a", 0, 1)


def test_generators_are_independent_of_each_other_and_of_torchs_own():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = draw(0, "x")
    one, other = generator(0, "x"), generator(0, "y")
    torch.randint(2**62, (100,), generator=other)
    assert torch.randint(2**62, (8,), generator=one).tolist() == first
    assert torch.equal(torch.random.get_rng_state(), before)


def test_numbers_of_neighbouring_keys_look_uniform_and_unrelated():
    numbers = torch.stack([torch.rand(400, generator=generator(0, epoch)) for epoch in range(20)])
    assert abs(numbers.mean() - 0.5) < 0.02
    correlations = torch.corrcoef(numbers) - torch.eye(20)
    assert correlations.abs().max() < 0.25  # 5 standard deviations
