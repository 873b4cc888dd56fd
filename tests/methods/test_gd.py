"""GD: the joint teacher and the objective by hand, the task's teacher, the balanced head."""

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_task
from oarlock import Learner
from oarlock.methods.gd import BalanceHead, TrainStudent, TrainTaskTeacher, joint_teacher
from oarlock.training import NoCallback, Position, TaskData, run_phases

OPTIONS = {"epochs": 2, "width": 8, "batch": 8, "lr": 0.1}


def begun(trunk, epochs: int = 2) -> tuple[Learner, TaskData]:
    learner = Learner("gd", trunk=trunk, memory=12, calibration=0.0, **(OPTIONS | {"epochs": epochs}))
    learner.learn(*make_task([0, 1, 2]))
    images, labels = make_task([3, 4])
    task = TaskData(1, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels) - 3, 2, seed=0)
    learner.method.begin(task)
    return learner, task


def logits(size: int):
    return st.lists(st.floats(-8, 8), min_size=size, max_size=size).map(lambda z: torch.tensor([z]).double())


@given(logits(4), logits(3))
def test_the_joint_teacher_is_a_distribution_that_keeps_the_old_one_s_answer(old, new):
    joint, p, u = joint_teacher(old, new), old.softmax(1), new.softmax(1)
    torch.testing.assert_close(joint.sum(1), torch.ones(1).double())
    best = int(p.argmax())
    assert torch.isclose(joint[0, best], p[0, best])
    left = 1 - p[0, best]
    for k in range(4):  # (l − 1) / (r − 1) = 3 / 6, c / (r − 1) = 3 / 6
        if k != best:
            assert torch.isclose(joint[0, k], p[0, k] * 3 / 6)
    torch.testing.assert_close(joint[0, 4:], u[0] * left * 3 / 6)


def test_the_objective_by_hand(tiny_trunk):
    learner, task = begun(tiny_trunk)
    method = learner.method
    TrainTaskTeacher(method, task).start()
    with torch.no_grad():
        method.copies["task"].head.weight.mul_(1.3)
    phase = TrainStudent(method, task)
    phase.start()
    with torch.no_grad():
        method.network.head.weight.mul_(1.5)
    phase.prepare()
    rows = torch.tensor([2, 13, 21, 30])  # two new images, two of the memory
    activations = phase.activations[rows]
    p, c = method.copies["before"](activations)[:, :3], method.copies["task"](activations)[:, 3:]
    z, labels = phase.logits(rows), phase.labels[rows]
    expected = torch.zeros(())
    for i in range(4):
        expected = expected + z[i].logsumexp(0) - z[i, labels[i]]
        for teacher, student, share in ((p[i], z[i, :3], 3 / 5), (c[i], z[i, 3:], 2 / 5)):
            soft = (teacher / 2).softmax(0)
            expected = expected - 4 * share * (soft * (student / 2).log_softmax(0)).sum()
        if i >= 2:
            expected = expected - (joint_teacher(p[i : i + 1], c[i : i + 1])[0] * z[i].log_softmax(0)).sum()
    torch.testing.assert_close(phase.objective(z, labels, rows), expected / 4, rtol=1e-4, atol=1e-4)


def test_the_task_s_teacher_learns_and_the_network_waits(tiny_trunk):
    learner, task = begun(tiny_trunk, epochs=6)
    method = learner.method
    before = copy.deepcopy(method.network.state_dict())
    run_phases([TrainTaskTeacher(method, task)], task, NoCallback(), Position(1, 0, 0))
    assert all(torch.equal(value, before[name]) for name, value in method.network.state_dict().items())
    teacher, activations = method.copies["task"], method.network.adapters.below(task.images)
    assert (teacher(activations)[:, 3:].argmax(1) == task.labels).float().mean() > 0.8
    assert torch.equal(teacher.head.weight[:3], before["head.weight"][:3])  # it has nothing to say about old classes


def test_balancing_moves_the_head_alone_on_balanced_batches(tiny_trunk):
    learner, task = begun(tiny_trunk)
    method = learner.method
    run_phases(method.phases(task)[:2], task, NoCallback(), Position(1, 0, 0))
    before = copy.deepcopy(method.network.state_dict())
    phase = BalanceHead(method, task)
    run_phases([phase], task, NoCallback(), Position(1, 0, 0))
    moved = {name for name, value in method.network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias"}
    for (rows,) in phase.batches(task.generator("test")):
        counts = phase.labels[rows].bincount(minlength=5)
        assert counts.max() - counts.min() <= 1
    assert not len(method.copies)
