"""DER++: the loss by hand, two independent draws, and a reservoir that is fair."""

import copy

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare

from conftest import make_task
from oarlock import Learner
from oarlock.memory import Reservoir
from oarlock.methods.derpp import TrainDark
from oarlock.training import Step, TaskData, generator

NONE = torch.zeros(0, 3, 2, 2, dtype=torch.uint8)
OPTIONS = {"epochs": 2, "width": 8, "batch": 6, "lr": 0.1, "alpha": 0.7, "beta": 0.4}


def test_every_image_offered_is_held_with_the_same_probability():
    """40 images offered in uneven batches, 8 held, 3,000 times: how often each is held, by a chi-square test."""
    images, logits = torch.zeros(40, 3, 2, 2, dtype=torch.uint8), torch.zeros(40, 1)
    held = torch.zeros(40)
    for trial in range(3000):
        reservoir, random = Reservoir(8, NONE), generator("fair", trial)
        for rows in torch.arange(40).split([3, 13, 1, 23]):
            reservoir.offer(images[rows], rows, logits[rows], rows, random)
        held[reservoir.labels] += 1
    assert held.sum() == 3000 * 8
    # Draws without replacement vary less than a chi-square distribution says, so its quantiles are generous.
    assert chisquare(held.numpy()).pvalue > 0.01


def test_an_image_stays_with_its_label_and_its_logits_as_classes_are_added():
    reservoir, random = Reservoir(5, NONE), generator(0)
    for start, classes in ((0, 2), (30, 4)):
        labels = torch.arange(start, start + 30)
        images = labels.to(torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
        reservoir.offer(images, labels, labels[:, None].float().expand(-1, classes), labels, random)
    assert len(reservoir) == 5 and int(reservoir.offered) == 60
    for image, label, logits, known in zip(
        reservoir.images, reservoir.labels, reservoir.logits, reservoir.known, strict=True
    ):
        assert (image == label).all()
        assert known == (2 if label < 30 else 4)
        assert logits.tolist() == [float(label)] * int(known) + [0.0] * (4 - int(known))


def test_the_loss_by_hand(tiny_trunk):
    learner = Learner("derpp", trunk=tiny_trunk, memory=16, calibration=0.0, **OPTIONS).learn(*make_task([0, 1]))
    method = learner.method
    images, labels = make_task([2, 3])
    task = TaskData(1, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels) - 2, 2, seed=0)
    method.begin(task)
    phase = TrainDark(method, task)
    phase.prepare()
    rows = torch.tensor([1, 4, 12])
    ours = phase.loss(Step((rows,), 1.0, generator("draws"))).value

    random = generator("draws")
    dark, labelled = (torch.randperm(16, generator=random)[:6] for _ in range(2))
    assert set(dark.tolist()) != set(labelled.tolist())
    network, memory = method.network, method.memory
    answers = network(network.adapters.below(memory.images))
    squared = [(answers[i, c] - memory.logits[i, c]) ** 2 for i in dark for c in range(2)]  # stored with two classes
    expected = F.cross_entropy(network(phase.activations[rows]), phase.labels[rows])
    expected = expected + 0.7 * torch.stack(squared).mean()
    expected = expected + 0.4 * F.cross_entropy(answers[labelled], memory.labels[labelled])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_what_is_stored_are_the_logits_before_the_step(tiny_trunk):
    learner = Learner("derpp", trunk=tiny_trunk, memory=16, calibration=0.0, **OPTIONS)
    images, labels = make_task([0, 1])
    task = TaskData(0, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels), 2, seed=0)
    learner.method.begin(task)
    phase = TrainDark(learner.method, task)
    phase.prepare()
    step, before = Step((torch.tensor([3, 15]),), 1.0, generator(0)), copy.deepcopy(learner.method.network)
    phase.gradients(step)
    phase.optimiser().step()
    phase.after_step(step)
    memory = learner.method.memory
    torch.testing.assert_close(memory.logits, before(phase.activations[step.batch[0]]).detach())
    assert torch.equal(memory.images, task.images[[3, 15]])
    assert memory.labels.tolist() == [0, 1]


@pytest.mark.parametrize("adapt_last", [1, None])
def test_tokens_of_the_memory_are_those_of_its_images_and_bit_for_bit_those_of_a_resumed_run(tiny_trunk, adapt_last):
    """Half-way through a task, when images of it have taken the places of earlier ones."""
    learner = Learner("derpp", trunk=tiny_trunk, memory=16, calibration=0.0, **OPTIONS | {"adapt_last": adapt_last})
    method = learner.learn(*make_task([0, 1])).method
    images, labels = make_task([2, 3])
    task = TaskData(1, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels) - 2, 2, seed=0)
    method.begin(task)
    phase = TrainDark(method, task)
    phase.prepare()
    for rows in torch.arange(len(labels)).split(6):
        step = Step((rows,), 1.0, generator("step", int(rows[0])))
        phase.gradients(step)
        phase.after_step(step)
    memory, slots = method.memory, torch.randperm(16, generator=generator("slots"))
    assert 0 < (memory.rows >= 0).sum() < 16
    found = phase.activations_of_memory(slots)
    torch.testing.assert_close(found, method.network.adapters.below(memory.images[slots]), rtol=1e-4, atol=1e-5)

    resumed = TrainDark(copy.deepcopy(method), task)
    resumed.prepare()
    assert torch.equal(resumed.activations_of_memory(slots), found)
