"""EEIL: both objectives by hand, and balanced batches that are balanced."""

import torch
from torch import Tensor

from conftest import make_task
from oarlock import Learner
from oarlock.methods.eeil import FinetuneBalanced, TrainDistilled
from oarlock.training import TaskData, balanced

OPTIONS = {"epochs": 2, "width": 8, "batch": 8, "lr": 0.1}


def begun(trunk) -> tuple[Learner, TaskData]:
    """Two tasks learned, of two classes and one; the third, of two classes, begun."""
    learner = Learner("eeil", trunk=trunk, memory=12, calibration=0.0, **OPTIONS)
    learner.learn(*make_task([0, 1])).learn(*make_task([2]))
    images, labels = make_task([3, 4])
    task = TaskData(2, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels) - 3, 2, seed=0)
    learner.method.begin(task)
    return learner, task


def entropy_to(student: Tensor, teacher: Tensor) -> Tensor:
    """−Σ t log s with both softened by 2, by hand."""
    t, s = (teacher / 2).exp(), (student / 2).exp()
    t, s = t / t.sum(), s / s.sum()
    return -(t * s.log()).sum()


def by_hand(logits: Tensor, taught: Tensor, labels: Tensor, tasks: list[list[int]]) -> Tensor:
    total = torch.zeros(())
    for z, old, label in zip(logits, taught, labels, strict=True):
        total = total + z.exp().sum().log() - z[label]
        for classes in tasks:
            total = total + entropy_to(z[classes], old[classes])
    return total / len(logits)


def test_the_loss_distils_every_earlier_task_by_itself(tiny_trunk):
    learner, task = begun(tiny_trunk)
    phase = TrainDistilled(learner.method, task)
    phase.start()
    phase.prepare()
    rows = torch.tensor([0, 11, 20, 27, 31])
    taught = phase.logits(rows).detach()
    with torch.no_grad():
        learner.method.network.head.weight.mul_(1.5)
    logits = phase.logits(rows)
    ours = phase.objective(logits, phase.labels[rows], rows)
    torch.testing.assert_close(ours, by_hand(logits, taught, phase.labels[rows], [[0, 1], [2]]), rtol=1e-4, atol=1e-4)


def test_balanced_fine_tuning_distils_the_newest_task_too(tiny_trunk):
    learner, task = begun(tiny_trunk)
    remember = learner.method.phases(task)[1]
    remember.start()
    phase = FinetuneBalanced(learner.method, task)
    phase.start()
    phase.prepare()
    rows = torch.arange(6)
    taught = phase.logits(rows).detach()
    with torch.no_grad():
        learner.method.network.head.weight.mul_(1.5)
    logits = phase.logits(rows)
    tasks = [[0, 1], [2], [3, 4]]
    ours = phase.objective(logits, phase.labels[rows], rows)
    torch.testing.assert_close(ours, by_hand(logits, taught, phase.labels[rows], tasks), rtol=1e-4, atol=1e-4)
    assert phase.optimiser().param_groups[0]["lr"] == learner.method.config.balanced_lr


def test_balanced_fine_tuning_sees_all_classes_equally_often(tiny_trunk):
    learner, task = begun(tiny_trunk)
    learner.method.phases(task)[1].start()
    phase = FinetuneBalanced(learner.method, task)
    phase.start()
    phase.prepare()
    for (rows,) in phase.batches(task.generator("test")):
        counts = phase.labels[rows].bincount(minlength=5)
        assert counts.max() - counts.min() <= 1


def test_batches_are_balanced_however_uneven_the_classes_are():
    labels = torch.tensor([0] * 50 + [1] * 3 + [4] * 20)
    batches = balanced(labels, 9, torch.Generator().manual_seed(0))
    assert all((labels[rows].bincount()[[0, 1, 4]] == 3).all() for rows in batches[:-1])
    assert abs(sum(map(len, batches)) - len(labels)) < 3
    seen = torch.cat(batches)
    assert len(seen[labels[seen] == 0].unique()) == (labels[seen] == 0).sum()  # none twice where there are enough


def test_no_teacher_is_left_when_the_task_is_over(tiny_trunk):
    learner = Learner("eeil", trunk=tiny_trunk, memory=12, calibration=0.0, **OPTIONS)
    learner.learn(*make_task([0, 1])).learn(*make_task([2]))
    assert not len(learner.method.copies)
