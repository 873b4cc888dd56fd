"""The paper's statements on random finite worlds: detectors right and wrong, any weights, with and without foreign
data."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from oarlock.errors import OarlockError
from oarlock.theory.statements import (
    Array,
    Bound,
    O,
    World,
    argmax_of_first,
    best_order,
    closed_world,
    corollary,
    mixture,
    multiplier_of_order,
    order_free,
    risks,
    sequential,
    theorem3,
    theorem3_as_printed,
    worst_claimant,
    worst_order,
)

Case = tuple[World, Array]

ROUNDING = 1e-12
CLASSES = 2  # of every task: their numbers are 2·task and 2·task + 1
thousand = settings(max_examples=1000, deadline=None, derandomize=True, database=None)


def numbers(draw: st.DrawFn, shape: int | tuple[int, ...], below: int) -> Array:
    """Whole numbers from 0, drawn at once, which is many times faster than one by one."""
    size = int(np.prod(shape))
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(shape).astype(int) % below


@st.composite
def worlds(draw: st.DrawFn, *, foreign: bool) -> World:
    """One to four tasks, a sample of each, and up to seven samples more."""
    tasks, more = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    task = np.concatenate([np.arange(tasks), numbers(draw, more, tasks)])
    truth = CLASSES * task + numbers(draw, len(task), CLASSES)
    if foreign:
        truth[tasks:][numbers(draw, more, 2) == 1] = O
    mass = 1 + numbers(draw, len(task), 20)
    return World(task, truth, mass / mass.sum())


@st.composite
def cases(draw: st.DrawFn, *, foreign: bool) -> Case:
    """A world, and what its detectors say: the right thing, or anything that they could say."""
    world = draw(worlds(foreign=foreign))
    right = right_answers(world)
    slips = numbers(draw, right.shape, 2 + CLASSES)
    wrong = CLASSES * np.arange(right.shape[1]) + slips - 2
    return world, np.where(slips == 0, right, np.where(slips == 1, O, wrong))


def right_answers(world: World) -> Array:
    own = (world.task[:, None] == np.arange(len(world.weights))) & (world.truth != O)[:, None]
    return np.where(own, world.truth[:, None], O)


def holds(risk: Array, bound: Bound) -> bool:
    return bool((risk <= bound.values + ROUNDING).all())


# Theorem 1


@st.composite
def scored_worlds(draw: st.DrawFn) -> Case:
    """A world without foreign data, and scores from −16 to 16 of every class."""
    world = draw(worlds(foreign=False))
    return world, numbers(draw, (len(world.task), CLASSES * len(world.weights)), 256) / 8 - 16


@thousand
@given(scored_worlds())
def test_scores_plus_the_task_s_number_are_as_good_inside_the_newest_task_and_always_wrong_outside(
    case: Case,
) -> None:
    world, z = case
    tasks = len(world.weights)
    task_of_class = np.repeat(np.arange(tasks), CLASSES)
    answers = argmax_of_first(closed_world(z, task_of_class), task_of_class)
    for k in range(tasks):
        own = task_of_class == k
        assert (answers[:, k] == np.flatnonzero(own)[z[:, own].argmax(1)]).all()
        older = world.task < k
        assert (answers[older, k] != world.truth[older]).all()
    newest_only = np.array([1 - world.weights[k] / world.weights[: k + 1].sum() for k in range(tasks)])
    assert (risks(world, answers) >= newest_only - ROUNDING).all()


def test_in_single_precision_the_counterexample_would_not_tell_confident_scores_apart() -> None:
    z, tasks = np.array([[19.0, 18.0, 20.0]], dtype=np.float32), np.array([0, 1, 1])
    assert closed_world(z, tasks).argmax(1) == 2
    assert (1 / (1 + np.exp(-z)) + tasks.astype(np.float32)).argmax(1) == 1


# Theorem 3


@thousand
@given(cases(foreign=False))
def test_theorem_3_holds_without_foreign_data(case: Case) -> None:
    world, said = case
    printed = theorem3_as_printed(world, said)
    assert holds(risks(world, sequential(said)), printed)
    np.testing.assert_allclose(theorem3(world, said).values, printed.values, atol=ROUNDING)


@thousand
@given(cases(foreign=True))
def test_theorem_3_holds_with_foreign_data_when_all_of_it_is_charged_to_every_detector(case: Case) -> None:
    world, said = case
    assert holds(risks(world, sequential(said)), theorem3(world, said))


def test_a_search_finds_foreign_data_that_breaks_theorem_3_as_printed_and_not_the_corrected_one() -> None:
    def broken(case: Case) -> bool:
        return not holds(risks(case[0], sequential(case[1])), theorem3_as_printed(*case))

    world, said = find(cases(foreign=True), broken, settings=thousand)
    assert holds(risks(world, sequential(said)), theorem3(world, said))
    first_claim = (said != O).argmax(1)
    unnoticed = (world.truth == O) & (said != O).any(1) & (first_claim > world.task)
    assert unnoticed.any()  # a foreign sample that only a later task's detector claims


def test_one_foreign_sample_of_task_1_claimed_by_task_2_breaks_theorem_3_as_printed() -> None:
    world = mixture(task=[0, 1, 0], truth=[0, 1, O], weights=[0.5, 0.5], alpha=[0.2, 0.0])
    said = np.array([[0, O], [O, 1], [O, 1]])  # wrong nowhere else
    assert theorem3_as_printed(world, said).values.tolist() == [0, 0]
    assert risks(world, sequential(said)).tolist() == [0, 0.1]
    assert theorem3(world, said).values.tolist() == pytest.approx([0, 0.1])


@thousand
@given(st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_heavy_tasks_first_is_the_best_order_and_light_ones_first_the_worst(masses: list[int]) -> None:
    weights = np.array(masses) / sum(masses)
    multipliers = [multiplier_of_order(weights[list(order)]) for order in permutations(range(len(weights)))]
    assert multiplier_of_order(weights[best_order(weights)]) == pytest.approx(min(multipliers))
    assert multiplier_of_order(weights[worst_order(weights)]) == pytest.approx(max(multipliers))


@pytest.mark.parametrize("tasks", [1, 2, 5, 20])
def test_tasks_of_equal_weight_multiply_by_their_number(tasks: int) -> None:
    weights, every = np.full(tasks, 1 / tasks), np.arange(tasks)
    world, said = mixture(every, every, weights, np.zeros(tasks)), np.full((tasks, tasks), O)
    assert multiplier_of_order(weights) == pytest.approx(tasks)
    for statement in (theorem3, theorem3_as_printed, corollary):
        assert statement(world, said).multiplier == pytest.approx(tasks)


# The Corollary


@thousand
@given(cases(foreign=True), st.randoms(use_true_random=False))
def test_the_corollary_holds_whichever_claimant_is_chosen(case: Case, random: object) -> None:
    world, said = case
    bound, worst = corollary(world, said), risks(world, order_free(said, worst_claimant(said, world)))
    anything = np.random.default_rng(random.getrandbits(32)).random(said.shape)  # type: ignore[attr-defined]
    assert holds(worst, bound)
    for preference in (anything, 1 - worst_claimant(said, world)):
        assert (risks(world, order_free(said, preference)) <= worst + ROUNDING).all()
    assert (risks(world, sequential(said)) <= worst + ROUNDING).all()


# All of them


@thousand
@given(cases(foreign=True))
def test_risks_below_epsilon_give_a_risk_below_epsilon_times_the_multiplier(case: Case) -> None:
    world, said = case
    for statement, answers in (
        (theorem3, sequential(said)),
        (corollary, order_free(said, worst_claimant(said, world))),
    ):
        bound = statement(world, said)
        assert risks(world, answers).max() <= bound.detector_risks.max() * bound.multiplier + ROUNDING


@thousand
@given(worlds(foreign=True))
def test_right_detectors_give_a_right_learner(world: World) -> None:
    said = right_answers(world)
    for answers in (sequential(said), order_free(said, worst_claimant(said, world))):
        for k in range(said.shape[1]):
            seen = world.task <= k
            assert (answers[seen, k] == world.truth[seen]).all()
    assert not theorem3(world, said).values.any() and not corollary(world, said).values.any()


@settings(thousand, max_examples=300)
@given(cases(foreign=True))
def test_mixtures_bounds_and_risks_are_those_of_the_paper_written_out(case: Case) -> None:
    world, said = case
    tasks, pi, alpha = len(world.weights), world.weights.tolist(), world.alpha.tolist()
    samples = list(zip(world.task.tolist(), world.truth.tolist(), world.mass.tolist(), said.tolist(), strict=True))
    printed, corrected, free = (f(world, said) for f in (theorem3_as_printed, theorem3, corollary))
    for t in range(tasks):
        foreign_before = sum(alpha[i] * pi[i] for i in range(t))
        for bound, mass in ((printed, sum(pi[t:])), (corrected, sum(pi[t:]) + foreign_before), (free, 1.0)):
            assert bound.mass[t] == pytest.approx(mass)
            assert bound.alpha[t] == pytest.approx(1 - pi[t] / mass * (1 - alpha[t]), abs=ROUNDING)
        wrong = {True: 0.0, False: 0.0}  # by whether the printed theorem looks at the sample
        wrong_foreign = 0.0
        for task, truth, mass, answers in samples:
            target = truth if task == t and truth != O else O
            if answers[t] != target:
                wrong[task >= t] += mass
                wrong_foreign += mass if task < t and truth == O else 0.0
        assert printed.detector_risks[t] == pytest.approx(wrong[True] / sum(pi[t:]))
        assert free.detector_risks[t] == pytest.approx(wrong[True] + wrong[False])
        mass = sum(pi[t:]) + foreign_before
        assert corrected.detector_risks[t] == pytest.approx((wrong[True] + wrong_foreign) / mass)
    for k in range(1, tasks + 1):
        measured = 0.0
        for task, truth, mass, answers in samples:
            claims = [answer for answer in answers[:k] if answer != O]
            if task < k and (claims[0] if claims else O) != truth:
                measured += mass
        assert risks(world, sequential(said))[k - 1] == pytest.approx(measured / sum(pi[:k]))
        for bound in (printed, corrected, free):
            terms = [bound.mass[t] / sum(pi[:k]) * bound.detector_risks[t] for t in range(k)]
            assert bound.values[k - 1] == pytest.approx(sum(terms))


def test_a_part_with_a_weight_needs_samples() -> None:
    with pytest.raises(OarlockError, match="no samples"):
        mixture([0, 1], [0, 1], [0.5, 0.5], [0.1, 0.0])
