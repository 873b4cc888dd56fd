"""A memory that is given more room between two tasks."""

from pathlib import Path

import numpy as np
import pytest
import torch

import oarlock
from conftest import make_task
from contract.conftest import NewLearner, assert_same, rebuilt, snapshot
from oarlock import OarlockError
from oarlock.memory import Reservoir
from oarlock.methods import methods

NONE = torch.zeros(0, 3, 1, 1, dtype=torch.uint8)
WITH_MEMORY = sorted(name for name, cls in methods.all().items() if cls.needs_memory)


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_more_room_is_used_from_the_next_task_on(name: str, new_learner: NewLearner) -> None:
    learner = new_learner(name, memory=4).learn(*make_task([0, 1], 8))
    before = learner.method.memory.images.clone()
    assert len(before) == 4
    learner.enlarge_memory(10)
    assert torch.equal(learner.method.memory.images, before)
    again = rebuilt(snapshot(learner))
    for taught in (learner, again):
        taught.learn(*make_task([2, 3], 8))
    memory = learner.method.memory
    assert 4 < len(memory) <= 10
    assert set(memory.labels.tolist()) <= {0, 1, 2, 3}
    assert memory.images.flatten(1).any(1).all()  # no slot is empty
    assert_same(snapshot(learner), snapshot(again))


@pytest.mark.parametrize(("name", "images", "said"), [("row", 3, "can only grow"), ("hat", 9, "keeps no images")])
def test_less_room_and_room_for_nothing_are_refused(
    name: str, images: int, said: str, new_learner: NewLearner
) -> None:
    learner = new_learner(name, memory=4)
    with pytest.raises(OarlockError, match=said):
        learner.enlarge_memory(images)
    assert learner.method.budget == 4


def test_a_reservoir_fills_its_new_room_with_what_comes_next() -> None:
    reservoir, random = Reservoir(3, NONE), torch.Generator().manual_seed(0)

    def offer(*labels: int) -> None:
        images = torch.tensor(labels, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 1, 1)
        reservoir.offer(images, torch.tensor(labels), torch.zeros(len(labels), 2), torch.tensor(labels), random)

    offer(*range(1, 21))
    kept = reservoir.labels.tolist()
    reservoir.enlarge(5)
    offer(31, 32)
    assert reservoir.labels.tolist() == [*kept, 31, 32]
    assert reservoir.images[:, 0, 0, 0].tolist() == [*kept, 31, 32]
    offer(*range(41, 61))
    assert len(reservoir) == 5


def test_a_reservoir_that_is_given_the_room_it_has_goes_on_as_it_was() -> None:
    labels = torch.zeros(500, dtype=torch.long)
    images, logits = torch.zeros(500, 3, 1, 1, dtype=torch.uint8), torch.zeros(500, 2)
    reservoir = Reservoir(20, NONE)
    reservoir.offer(images, labels, logits, labels, torch.Generator().manual_seed(0))
    reservoir.enlarge(20)
    reservoir.offer(images[:50], labels[:50] + 1, logits[:50], labels[:50], torch.Generator().manual_seed(1))
    assert reservoir.labels.sum() < 10  # of the 50 among 550


def test_numbers_may_be_numpys(new_learner: NewLearner, tmp_path: Path) -> None:
    learner = new_learner("row", memory=np.int64(4), calibration=np.float32(0.25)).learn(*make_task([0, 1], 8))
    learner.enlarge_memory(np.int64(6))
    learner.save(tmp_path / "model.oar")
    again = oarlock.load(tmp_path / "model.oar")
    assert (again.method.budget, again.calibration_share) == (6, 0.25)
