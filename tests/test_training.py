"""The training loop: batches, the calls a phase gets, and resuming bit for bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW

from oarlock.errors import OarlockError
from oarlock.training import (
    Loss,
    NoCallback,
    Optimisation,
    Position,
    Step,
    TaskData,
    cycled,
    dump_optimiser,
    generator,
    load_optimiser,
    run_phases,
    shuffled,
)

# -- batches -------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 70), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_shuffled_batches_hold_every_index_once_and_only_the_last_is_smaller(count, size, seed):
    batches = shuffled(count, size, generator(seed))
    assert sorted(torch.cat(batches).tolist()) == list(range(count))
    assert len(batches) == math.ceil(count / size)
    assert all(len(batch) == size for batch in batches[:-1]) and 1 <= len(batches[-1]) <= size


def test_shuffling_is_random_and_follows_its_generator():
    first, same, other = (torch.cat(shuffled(50, 8, generator(seed))).tolist() for seed in (0, 0, 1))
    assert first == same != other
    assert first != list(range(50))
    again = generator(0)
    assert torch.cat(shuffled(50, 8, again)).tolist() != torch.cat(shuffled(50, 8, again)).tolist()


@given(st.integers(1, 30), st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_cycled_batches_have_their_sizes_and_run_through_whole_permutations(count, sizes, seed):
    batches = cycled(count, sizes, generator(seed))
    assert [len(batch) for batch in batches] == sizes
    drawn = torch.cat(batches).tolist()
    for first in range(0, len(drawn), count):
        once = drawn[first : first + count]
        assert len(set(once)) == len(once) and set(once) <= set(range(count))
    if len(drawn) >= count:
        assert set(drawn[:count]) == set(range(count))


def test_cycling_draws_a_new_permutation_every_round():
    drawn = torch.cat(cycled(20, [60], generator(0))).reshape(3, 20).tolist()
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


# -- a toy task ----------------------------------------------------------------------------------------------

EPOCHS = [2, 0, 3]  # of three phases; the middle one trains nothing
TASK = TaskData(4, torch.zeros(0), torch.zeros(0), 2, seed=7)
START = Position(TASK.index, 0, 0)


class ToyMethod(nn.Module):
    """One layer, a dropout that uses the step's generator, and counters that phases change."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(5, 3)
        self.head = nn.Linear(3, 2)
        self.unused = nn.Parameter(torch.ones(2))  # gets no gradient, so the optimiser has no state for it
        self.register_buffer("started", torch.zeros(len(EPOCHS)))
        self.register_buffer("finished", torch.zeros(len(EPOCHS)))
        random = generator("toy")
        for parameter in (*self.layer.parameters(), *self.head.parameters()):
            parameter.data.copy_(torch.randn(parameter.shape, generator=random))
        self.calls: list[tuple] = []

    def phases(self) -> list[Optimisation]:
        return [ToyPhase(self, number, epochs) for number, epochs in enumerate(EPOCHS)]


class ToyPhase(Optimisation):
    def __init__(self, toy: ToyMethod, number: int, epochs: int) -> None:
        self.toy, self.number, self.epochs = toy, number, epochs
        self.name = f"toy {number}"

    def start(self) -> None:
        self.toy.calls.append(("start", self.number))
        self.toy.started[self.number] += 1
        with torch.no_grad():
            self.toy.head.weight.mul_(0.5)  # twice would be seen

    def prepare(self) -> None:
        self.toy.calls.append(("prepare", self.number))
        self.x = torch.randn(11, 5, generator=generator("data", self.number))
        self.y = self.x[:, :2].argmax(1)

    def optimiser(self):
        parameters = [self.toy.unused, *self.toy.layer.parameters(), *self.toy.head.parameters()]
        if self.toy.kind == "adamw":
            return AdamW(parameters, 0.05, weight_decay=0.1)
        return SGD(parameters, 0.05, momentum=0.9 if self.toy.kind == "momentum" else 0.0, weight_decay=0.01)

    def batches(self, random):
        return [(rows,) for rows in shuffled(11, 4, random)]

    def loss(self, step: Step) -> Loss:
        (rows,) = step.batch
        noise = torch.randn(len(rows), 5, generator=step.generator)
        logits = self.toy.head(torch.tanh(self.toy.layer(self.x[rows] + 0.1 * noise)))
        return Loss(nn.functional.cross_entropy(logits, self.y[rows]) * (1 + step.fraction))

    def after_step(self, step) -> None:
        self.toy.calls.append(("after_step", self.number))
        with torch.no_grad():
            self.toy.layer.bias.clamp_(-1, 1)

    def finish(self) -> None:
        self.toy.calls.append(("finish", self.number))
        self.toy.finished[self.number] += 1
        with torch.no_grad():
            self.toy.layer.weight.add_(0.01)


class Recorder(NoCallback):
    """Keeps every checkpoint as a file would: copies of all tensors."""

    def __init__(self, toy: ToyMethod) -> None:
        self.toy = toy
        self.checkpoints: dict[Position, tuple[dict, dict]] = {}
        self.phases: list[str] = []
        self.steps: list[tuple[int, float, float]] = []

    def on_phase(self, task, phase):
        self.phases.append(phase.name)

    def on_step(self, epoch, fraction, loss):
        self.steps.append((epoch, fraction, loss.value.item()))

    def on_checkpoint(self, position, optimiser):
        assert position not in self.checkpoints
        state = {} if optimiser is None else {k: v.clone() for k, v in dump_optimiser(optimiser).items()}
        self.checkpoints[position] = ({k: v.clone() for k, v in self.toy.state_dict().items()}, state)


def run(kind: str) -> tuple[ToyMethod, Recorder]:
    toy = ToyMethod(kind)
    recorder = Recorder(toy)
    run_phases(toy.phases(), TASK, recorder, START)
    return toy, recorder


def test_a_checkpoint_is_due_after_every_epoch_and_after_every_phase():
    _, recorder = run("momentum")
    assert [position[1:] for position in recorder.checkpoints] == [
        *[(0, 1), (0, 2), (1, 0)],
        (2, 0),
        *[(2, 1), (2, 2), (2, 3), (3, 0)],
    ]
    assert all(position.task == TASK.index for position in recorder.checkpoints)
    with_optimiser = [position[1:] for position, (_, state) in recorder.checkpoints.items() if state]
    assert with_optimiser == [(0, 1), (0, 2), (2, 1), (2, 2), (2, 3)]


def test_every_phase_is_started_prepared_and_finished_once_and_in_this_order():
    toy, recorder = run("momentum")
    three = 3  # batches of 11 images, 4 at a time
    expected = []
    for number, epochs in enumerate(EPOCHS):
        expected += [("start", number)]
        expected += [("prepare", number)] * (epochs > 0) + [("after_step", number)] * (three * epochs)
        expected += [("finish", number)]
    assert toy.calls == expected
    assert recorder.phases == ["toy 0", "toy 1", "toy 2"]


def test_progress_runs_to_one_in_every_epoch():
    _, recorder = run("momentum")
    assert [(epoch, fraction) for epoch, fraction, _ in recorder.steps] == [
        (epoch, pytest.approx(fraction)) for epoch in (0, 1, 0, 1, 2) for fraction in (1 / 3, 2 / 3, 1)
    ]


def test_a_steps_fraction_is_zero_at_the_first_batch_and_one_at_the_last():
    seen = []

    class Watching(ToyPhase):
        def gradients(self, step):
            seen.append(step.fraction)
            return super().gradients(step)

    run_phases([Watching(ToyMethod("sgd"), 0, 2)], TASK, NoCallback(), START)
    assert seen == [0, 0.5, 1] * 2


def test_a_single_batch_stands_at_the_end_of_its_epoch():
    seen = []

    class One(ToyPhase):
        def batches(self, random):
            return [(torch.arange(11),)]

        def gradients(self, step):
            seen.append(step.fraction)
            return super().gradients(step)

    run_phases([One(ToyMethod("sgd"), 0, 1)], TASK, NoCallback(), START)
    assert seen == [1]


def test_epochs_and_phases_shuffle_differently_and_a_seed_repeats_them():
    def orders(seed):
        drawn = []

        class Watching(ToyPhase):
            def batches(self, random):
                drawn.append(torch.cat(shuffled(11, 4, random)).tolist())
                return super().batches(random)

        toy = ToyMethod("sgd")
        task = TaskData(4, TASK.images, TASK.labels, 2, seed)
        run_phases([Watching(toy, 0, 2), Watching(toy, 2, 2)], task, NoCallback(), START)
        return drawn

    first = orders(0)
    assert len({tuple(order) for order in first}) == 4
    assert orders(0) == first
    assert all(a != b for a, b in zip(orders(1), first, strict=True))


def test_the_loop_is_plain_gradient_descent():
    """Against the update written out: SGD without momentum on a quadratic, whose steps are known."""
    weight = nn.Parameter(torch.tensor([8.0]))

    class Quadratic(Optimisation):
        name, epochs = "quadratic", 2

        def optimiser(self):
            return SGD([weight], 0.25)

        def batches(self, random):
            return [(torch.tensor([0]),)] * 3

        def loss(self, step):
            return Loss((weight**2).sum())

    run_phases([Quadratic()], TASK, NoCallback(), START)
    assert weight.item() == 8 * 0.5**6  # gradients are not carried over from step to step


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
def test_a_run_resumed_at_any_checkpoint_is_the_uninterrupted_one_bit_for_bit(kind):
    toy, recorder = run(kind)
    assert len(recorder.checkpoints) == 8
    for position, (tensors, optimiser_state) in recorder.checkpoints.items():
        again = ToyMethod(kind)
        again.load_state_dict(tensors)
        watched = Recorder(again)
        copied = {name: value.clone() for name, value in optimiser_state.items()}
        run_phases(again.phases(), TASK, watched, position, copied)
        for name, value in toy.state_dict().items():
            assert torch.equal(again.state_dict()[name], value), (position, name)
        assert again.started.tolist() == again.finished.tolist() == [1, 1, 1]
        assert watched.steps == recorder.steps[len(recorder.steps) - len(watched.steps) :]
        for later, (tensors_, state) in watched.checkpoints.items():
            whole_tensors, whole_state = recorder.checkpoints[later]
            assert all(torch.equal(value, whole_tensors[name]) for name, value in tensors_.items())
            assert state.keys() == whole_state.keys()
            assert all(torch.equal(value, whole_state[name]) for name, value in state.items())


def test_resuming_without_the_optimisers_state_would_be_noticed():
    toy, recorder = run("momentum")
    position = Position(TASK.index, 2, 1)
    again = ToyMethod("momentum")
    again.load_state_dict(recorder.checkpoints[position][0])
    run_phases(again.phases(), TASK, NoCallback(), position)
    assert not torch.equal(again.layer.weight, toy.layer.weight)


def test_a_phase_resumed_in_its_middle_is_prepared_again_but_not_started():
    _, recorder = run("momentum")
    position = Position(TASK.index, 2, 2)
    tensors, state = recorder.checkpoints[position]
    again = ToyMethod("momentum")
    again.load_state_dict(tensors)
    run_phases(again.phases(), TASK, NoCallback(), position, state)
    assert again.calls == [("prepare", 2), *[("after_step", 2)] * 3, ("finish", 2)]


def test_a_task_resumed_after_its_last_phase_does_nothing():
    toy, recorder = run("momentum")
    position = Position(TASK.index, 3, 0)
    again = ToyMethod("momentum")
    again.load_state_dict(recorder.checkpoints[position][0])
    run_phases(again.phases(), TASK, Recorder(again), position)
    assert again.calls == []
    assert torch.equal(again.layer.weight, toy.layer.weight)


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_an_optimisers_state_is_tensors_by_name_and_loads_with_the_phases_own_settings(kind):
    def make(lr):
        parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
        optimiser = AdamW(parameters, lr) if kind == "adamw" else SGD(parameters, lr, 0.9)
        return parameters, optimiser

    parameters, optimiser = make(0.1)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    optimiser.step()
    dumped = dump_optimiser(optimiser)
    slots = {"momentum": ["momentum_buffer"], "adamw": ["exp_avg", "exp_avg_sq", "step"]}[kind]
    assert sorted(dumped) == sorted(f"{index}.{slot}" for index in (0, 1) for slot in slots)
    assert all(isinstance(value, torch.Tensor) for value in dumped.values())
    _, other = make(0.7)
    load_optimiser(other, dumped)
    assert other.param_groups[0]["lr"] == 0.7
    loaded = dump_optimiser(other)
    assert all(torch.equal(loaded[name], value) for name, value in dumped.items())


def test_training_that_diverges_is_stopped_with_advice():
    toy = ToyMethod("momentum")
    phase = ToyPhase(toy, 0, 1)
    phase.loss = lambda step: Loss(toy.layer.weight.sum() * float("nan"))
    with pytest.raises(OarlockError, match=r"diverged in phase 'toy 0'.*smaller learning rate"):
        run_phases([phase], TASK, NoCallback(), Position(0, 0, 0))


def test_sums_that_cannot_be_solved_with_are_told_in_a_sentence():
    phase = ToyPhase(ToyMethod("momentum"), 0, 1)
    phase.start = lambda: torch.linalg.cholesky(-torch.eye(2))
    with pytest.raises(OarlockError, match="no numbers that can be computed with"):
        run_phases([phase], TASK, NoCallback(), Position(0, 0, 0))
