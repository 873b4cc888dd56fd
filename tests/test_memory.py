"""Class-balanced replay: how much is kept, of what, and that rows stay together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.errors import OarlockError
from oarlock.memory import EncodedImages, Memory, PackedImages, at_random, fair_quota, herding
from oarlock.training import generator

SIZE, FEATURES = 4, 3
NONE = torch.zeros(0, 3, SIZE, SIZE, dtype=torch.uint8)

# A stream: for every task, how many images each of its classes has.
streams = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=5)


def make_images(first: int, count: int) -> torch.Tensor:
    """Images numbered from `first`: two pixels spell the number, so it can be read back."""
    images = torch.zeros(count, 3, SIZE, SIZE, dtype=torch.uint8)
    numbers = torch.arange(first, first + count)
    images[:, 0, 0, 0], images[:, 1, 2, 3] = (numbers // 256).byte(), (numbers % 256).byte()
    return images


def number_of(images: torch.Tensor) -> torch.Tensor:
    return images[:, 0, 0, 0].long() * 256 + images[:, 1, 2, 3].long()


def encode(images: torch.Tensor, tasks: list[int]) -> torch.Tensor:
    """Stands for a network: a feature says which image and which task it belongs to."""
    return torch.stack([(number_of(images) * 100 + task)[:, None].expand(-1, FEATURES).float() for task in tasks], 1)


class StandIn:
    """As much of a method as a memory asks for."""

    features_frozen = True

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def feature_sets(self, tasks: int) -> range:
        return range(tasks)

    def encode(self, images: torch.Tensor, sets: range) -> torch.Tensor:
        self.asked.append(list(sets))
        return encode(images, list(sets))


def learn(memory: Memory, stream: list[list[int]], seed: int = 0, after_task=lambda task, label_of: None) -> None:
    """What a method does at the end of every task."""
    label_of: dict[int, int] = {}
    classes = 0
    for task, counts in enumerate(stream):
        local = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        local = local[torch.randperm(len(local), generator=generator(seed, task))]
        images = make_images(len(label_of), len(local))
        label_of |= {len(label_of) + row: classes + int(label) for row, label in enumerate(local)}
        kept, chosen = memory.choose(local, classes + len(counts), at_random(generator(seed, task, "memory")))
        memory.keep(kept)
        memory.refresh(StandIn(), task + 1)
        taken = images[chosen]
        memory.add_images(taken, local[chosen] + classes, encode(taken, list(range(task + 1))))
        classes += len(counts)
        after_task(task, label_of)


@given(streams, st.integers(15, 40))
@settings(deadline=None, max_examples=60)
def test_every_class_has_its_quota_or_all_its_images_and_the_budget_is_never_exceeded(stream, budget):
    memory = Memory(budget, NONE, FEATURES)

    def check(task, label_of):
        seen = [count for counts in stream[: task + 1] for count in counts]
        quota = budget // len(seen)
        assert len(memory) <= budget
        counts = torch.bincount(memory.labels, minlength=len(seen)).tolist()
        assert counts == [min(quota, offered) for offered in seen]

    learn(memory, stream, after_task=check)


@given(streams, st.integers(15, 40), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_labels_and_features_under_every_task_stay_with_their_image(stream, budget, seed):
    memory = Memory(budget, NONE, FEATURES)

    def check(task, label_of):
        numbers = number_of(memory.images).tolist()
        assert len(set(numbers)) == len(numbers)
        assert memory.labels.tolist() == [label_of[number] for number in numbers]
        assert memory.encoded.shape == (len(memory), task + 1, FEATURES)
        assert memory.encoded.tolist() == [
            [[float(number * 100 + t)] * FEATURES for t in range(task + 1)] for number in numbers
        ]

    learn(memory, stream, seed, check)


@given(streams, st.integers(15, 40))
@settings(deadline=None, max_examples=60)
def test_what_is_kept_of_earlier_tasks_was_there_before(stream, budget):
    memory = Memory(budget, NONE, FEATURES)
    before: set[int] = set()
    first_new = 0

    def check(task, label_of):
        nonlocal before, first_new
        now = set(number_of(memory.images).tolist())
        assert {number for number in now if number < first_new} <= before
        before, first_new = now, len(label_of)

    learn(memory, stream, after_task=check)


def test_quotas_by_hand():
    memory = Memory(10, NONE, FEATURES)
    counts = []
    stream = [[20, 3], [20], [20, 20]]
    learn(memory, stream, after_task=lambda *_: counts.append(torch.bincount(memory.labels).tolist()))
    assert counts == [[5, 3], [3, 3, 3], [2, 2, 2, 2, 2]]


def test_a_budget_smaller_than_the_number_of_classes_takes_nothing_rather_than_too_much():
    kept, chosen = Memory(2, NONE, FEATURES).choose(torch.tensor([0, 1, 2]), 3, at_random(generator(0)))
    assert len(kept) == len(chosen) == 0


def test_choosing_changes_nothing():
    memory = Memory(6, NONE, FEATURES)
    learn(memory, [[9, 9]])
    before = memory.images.clone(), memory.labels.clone(), memory.encoded.clone()
    memory.choose(torch.tensor([0] * 9), 3, at_random(generator(0)))
    assert all(map(torch.equal, before, (memory.images, memory.labels, memory.encoded)))


def test_the_choice_is_random_and_follows_its_generator():
    labels = torch.zeros(100, dtype=torch.long)
    chosen = [
        Memory(10, NONE, FEATURES).choose(labels, 1, at_random(generator(seed)))[1].tolist() for seed in (0, 0, 1)
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    often = torch.zeros(20)
    for seed in range(400):
        often[Memory(5, NONE, FEATURES).choose(labels[:20], 1, at_random(generator("fair", seed)))[1]] += 1
    assert often.min() > 60 and often.max() < 140  # 100 expected, standard deviation 8.7


def test_every_image_of_a_class_is_as_likely_to_survive_shrinking():
    often = torch.zeros(12)
    for seed in range(400):
        memory = Memory(6, NONE, FEATURES)
        learn(memory, [[12], [3], [3]], seed=seed)
        numbers = number_of(memory.images)
        often[numbers[numbers < 12]] += 1
    assert often.sum() == 400 * 2
    assert often.min() > 30 and often.max() < 110  # 67 expected, standard deviation 7.5


@given(streams, st.integers(15, 40))
@settings(deadline=None, max_examples=20)
def test_a_rebuilt_memory_has_the_same_shapes_and_takes_the_same_tensors(stream, budget):
    memory, again = Memory(budget, NONE, FEATURES), Memory(budget, NONE, FEATURES)
    learn(memory, stream)
    again.rebuild(memory.describe())
    assert {n: (t.shape, t.dtype) for n, t in again.state_dict().items()} == {
        n: (t.shape, t.dtype) for n, t in memory.state_dict().items()
    }
    again.load_state_dict(memory.state_dict())
    for name, tensor in memory.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_an_empty_memory_can_be_described_and_rebuilt():
    images = EncodedImages(NONE, FEATURES)
    images.rebuild(images.describe())
    assert len(images) == 0 and images.encoded.shape == (0, 0, FEATURES)


def test_only_missing_views_are_computed_and_all_of_them_where_features_do_not_last():
    memory = Memory(4, NONE, FEATURES)
    memory.add_images(make_images(0, 4), torch.arange(4), encode(make_images(0, 4), [0]))
    features_frozen, passing = StandIn(), StandIn()
    passing.features_frozen = False
    memory.refresh(features_frozen, 3)
    memory.refresh(features_frozen, 3)
    memory.refresh(passing, 3)
    assert features_frozen.asked == [[1, 2]] and passing.asked == [[0, 1, 2]]
    assert torch.equal(memory.encoded, encode(memory.images, [0, 1, 2]))


def test_herding_equals_brute_force():
    """Every next image is the one with which the mean of those chosen is nearest to the mean of all."""
    features = torch.randn(12, 5, generator=generator("herding"))
    rows = torch.tensor([0, 2, 3, 5, 8, 9, 11])
    unit = features.double() / features.double().norm(dim=1, keepdim=True)
    goal, chosen = unit[rows].mean(0), []
    for _ in range(4):
        left = [int(row) for row in rows if int(row) not in chosen]
        chosen.append(min(left, key=lambda row: float((unit[[*chosen, row]].mean(0) - goal).norm())))
    assert herding(features)(rows, 4).tolist() == chosen
    assert sorted(herding(features)(rows, 99).tolist()) == rows.tolist()  # no more than there are, none twice


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 100))
@settings(deadline=None)
def test_a_fair_quota_is_the_largest_that_keeps_the_limit(counts, limit):
    counts = torch.tensor(counts)
    quota = fair_quota(counts, limit)
    if quota > 1:
        assert counts.clamp_max(quota).sum() <= limit
    if quota < counts.max():
        assert counts.clamp_max(quota + 1).sum() > limit


# Packed


def photos(count: int, size: int = 64) -> torch.Tensor:
    """Smooth images with some noise, as photographs are."""
    random = generator("photos")
    coarse = torch.rand(count, 3, 4, 4, generator=random) * 255
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="bicubic")
    return (smooth + 4 * torch.randn(smooth.shape, generator=random)).clamp(0, 255).byte()


def mean_colours(images: torch.Tensor) -> torch.Tensor:
    return images.float().mean((2, 3))[:, None]


def packed(count: int) -> PackedImages:
    store = PackedImages(photos(1)[:0], features=3)
    store.take_in(photos(count), torch.arange(count), mean_colours)
    return store


def test_packed_images_look_alike_and_take_a_fraction_of_the_room():
    store = packed(6)
    assert (store.images.float() - photos(6).float()).abs().mean() < 4
    assert len(store.files) < photos(6).numel() / 4
    assert torch.equal(store.encoded, mean_colours(store.images))  # of what is kept, not of what was given


def test_packed_images_are_found_again_bit_for_bit_and_can_be_given_up():
    store = packed(6)
    store.keep(torch.tensor([1, 4, 5]))
    store.take_in(photos(2), torch.tensor([7, 8]), mean_colours)
    again = PackedImages(photos(1)[:0], features=3)
    again.rebuild(store.describe())
    again.load_state_dict(store.state_dict())
    assert "images" not in store.state_dict()
    for one, other in ((again.images, store.images), (again.labels, store.labels), (again.encoded, store.encoded)):
        assert torch.equal(one, other)
    assert again.labels.tolist() == [1, 4, 5, 7, 8]


@pytest.mark.parametrize("harm", ["lengths", "below zero", "content", "size"])
def test_what_is_no_image_of_the_right_size_is_refused(harm: str):
    store, state = packed(2), packed(2).state_dict()
    if harm == "lengths":
        state["lengths"] = state["lengths"] + 1
    elif harm == "below zero":
        state["lengths"] = torch.tensor([-5, len(state["files"]) + 5])
    elif harm == "content":
        state["files"] = torch.zeros_like(state["files"])
    else:
        store = PackedImages(photos(1)[:0, :, :32, :32], features=3)
        store.rebuild(packed(2).describe())
    with pytest.raises(OarlockError, match="keeps"):
        store.load_state_dict(state)
