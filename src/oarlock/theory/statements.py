"""Theorem 1, Theorem 3 and its Corollary for 0-1 loss on finite worlds, in the paper's names.

Tasks have weights π_1 … π_T and shares α_1 … α_T of foreign data: task i's part of the world is
π_i · [(1−α_i) D_i + α_i O_i]. Task t's detector h_t says one of the task's classes or "o"; `said[n, t]` is what it
says to sample n. From such answers h̃_k is built, for the first k tasks. Wherever a function returns something for
every k, it stands at index k−1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from oarlock.errors import OarlockError

Array = np.ndarray[Any, Any]

O = -1  # noqa: E741 the paper's name: the answer "not mine", which is the right one to foreign data


@dataclass(frozen=True, eq=False)
class World:
    """Hold samples of all tasks and of foreign data, and how much each weighs.

    >>> world = mixture(task=[0, 0, 1, 0, 1], truth=[0, 1, 2, O, O], weights=[0.5, 0.5], alpha=[0.2, 0.4])
    >>> world.mass.round(2).tolist()
    [0.2, 0.2, 0.3, 0.1, 0.2]
    >>> world.weights.tolist(), world.alpha.round(2).tolist()
    ([0.5, 0.5], [0.2, 0.4])
    """

    task: Array  # i, counted from 0, of the D_i or O_i that a sample is from
    truth: Array  # its class, or O
    mass: Array  # sums to 1

    @property
    def weights(self) -> Array:
        """Return π, the weight of every task."""
        return np.bincount(self.task, self.mass)

    @property
    def alpha(self) -> Array:
        """Return the share of foreign data in every task."""
        return np.bincount(self.task, self.mass * (self.truth == O)) / self.weights


def mixture(task: Any, truth: Any, weights: Any, alpha: Any) -> World:
    """Return Σ π_i · [(1−α_i) D_i + α_i O_i], all samples of a D_i weighing the same, and all of an O_i."""
    task, truth, weights, alpha = (np.asarray(values) for values in (task, truth, weights, alpha))
    foreign = (truth == O).astype(np.intp)
    parts = weights[:, None] * np.stack([1 - alpha, alpha], 1)
    counts = np.bincount(2 * task + foreign, minlength=parts.size).reshape(parts.shape)
    if ((counts == 0) & (parts > 0)).any():
        raise OarlockError("a part of the mixture has a weight but no samples: give it some, or weight 0")
    return World(task, truth, (parts / np.maximum(counts, 1))[task, foreign])


def risks(world: World, answers: Array) -> Array:
    """Return R(h̃_k) for every k, over the first k tasks and their foreign data; column k−1 is what h̃_k answers."""
    wrong = world.mass[:, None] * (answers != world.truth[:, None])
    by_task = np.stack([np.bincount(world.task, column) for column in wrong.T], 1)  # rows: the samples' tasks
    return np.triu(by_task).sum(0) / world.weights.cumsum()


# -- constructions -----------------------------------------------------------------------------------------


def sequential(said: Array) -> Array:
    """Return the answers of Theorem 3's h̃_k: the class said by the first of k detectors that does not say o;
    o if all do.

    >>> sequential(np.array([[O, 2], [0, 2], [O, O]])).tolist()
    [[-1, 2], [0, 0], [-1, -1]]
    """
    earlier_first = np.broadcast_to(-np.arange(said.shape[1]), said.shape)
    return order_free(said, earlier_first)


def order_free(said: Array, preference: Array) -> Array:
    """Return the answers of the Corollary's h̃_k: the class said by a detector that claims the sample, the one
    preferred among several.

    >>> order_free(np.array([[0, 2]]), preference=np.array([[0.6, 0.9]])).tolist()
    [[0, 2]]
    """
    answers = np.full_like(said, O)
    answer, best = np.full(len(said), O, said.dtype), np.full(len(said), -np.inf)
    for t in range(said.shape[1]):
        chosen = (said[:, t] != O) & (preference[:, t] > best)
        answer, best = np.where(chosen, said[:, t], answer), np.where(chosen, preference[:, t], best)
        answers[:, t] = answer
    return answers


def worst_claimant(said: Array, world: World) -> Array:
    """Return the preference that does most harm: for a detector that is wrong, wherever one claims the sample."""
    return (said != world.truth[:, None]).astype(float)


def closed_world(z: Array, task_of_class: Array) -> Array:
    """Return Theorem 1's scores z̃ = σ(z) + i: as good as z inside the newest task, and always wrong outside it.

    float64, where σ(z) + i tells scores apart up to |z| ≈ 30; in float32 it is 1 + i from z ≈ 17 on.

    >>> closed_world(np.array([[3.0, 0.0, -2.0]]), np.array([0, 1, 1])).argmax(1)
    array([1])
    """
    return 1 / (1 + np.exp(-z.astype(np.float64))) + task_of_class


def argmax_of_first(scores: Array, task_of_class: Array) -> Array:
    """Return what scores answer when the classes of the first k tasks compete, for every k."""
    tasks = range(task_of_class.max() + 1)
    return np.stack([np.where(task_of_class <= k, scores, -np.inf).argmax(1) for k in tasks], 1)


# -- bounds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bound:
    """Hold the bound R(h̃_k) ≤ Σ_{t≤k} (μ_t / π_[1:k]) · R_t, with R_t the risk of h_t on the mixture of mass μ_t it
    is charged with.

    >>> bound = Bound(weights=np.array([0.5, 0.5]), mass=np.array([1.0, 0.5]), own=np.array([0.5, 0.5]),
    ...               detector_risks=np.array([0.1, 0.2]))
    >>> bound.values.round(3).tolist(), bound.multiplier
    ([0.2, 0.2], 2.0)
    >>> bound.alpha.tolist(), bound.shares.round(3).tolist()
    ([0.5, 0.0], [0.5, 0.5])
    """

    weights: Array  # π
    mass: Array  # μ
    own: Array  # π_t (1−α_t): the mass of D_t
    detector_risks: Array  # R_t

    @property
    def values(self) -> Array:
        """Return the right-hand side for every k."""
        return (self.mass * self.detector_risks).cumsum() / self.weights.cumsum()

    @property
    def multiplier(self) -> float:
        """Return what ε is multiplied by when every detector's risk is below ε."""
        return float((self.mass.cumsum() / self.weights.cumsum()).max())

    @property
    def alpha(self) -> Array:
        """Return α'_t: the share of what is not D_t in the mixture that h_t is charged with."""
        return 1 - self.own / self.mass

    @property
    def shares(self) -> Array:
        """Return how much of the bound for all tasks every detector spends; they sum to 1 (or are all 0)."""
        spent = self.mass * self.detector_risks
        return spent / (spent.sum() or 1.0)


def theorem3(world: World, said: Array) -> Bound:
    """Return the bound on `sequential`, corrected: h_t is charged with the parts of tasks t … T and with *all*
    foreign data, μ_t = π_[t:T] + Σ_{i<t} α_i π_i. Without foreign data it is the printed one."""
    return _bound(world, said, _from_own_task_on(world) | (world.truth == O)[:, None])


def theorem3_as_printed(world: World, said: Array) -> Bound:
    """Return the paper's: without the foreign data of tasks before t, μ_t = π_[t:T]. With foreign data it need not
    hold."""
    return _bound(world, said, _from_own_task_on(world))


def corollary(world: World, said: Array) -> Bound:
    """Return the bound on `order_free`, whichever claimant is preferred: h_t is charged with all, μ_t = π_[1:T]."""
    return _bound(world, said, np.ones(said.shape, dtype=bool))


def _from_own_task_on(world: World) -> Array:
    return world.task[:, None] >= np.arange(len(world.weights))


def _bound(world: World, said: Array, charged: Array) -> Bound:
    own = (world.task[:, None] == np.arange(said.shape[1])) & (world.truth != O)[:, None]
    wrong = said != np.where(own, world.truth[:, None], O)
    mass = world.mass @ charged
    return Bound(world.weights, mass, world.mass @ own, world.mass @ (charged & wrong) / mass)


# -- the order of tasks ------------------------------------------------------------------------------------


def multiplier_of_order(weights: Array) -> float:
    """Return Theorem 3's max_k Σ_{t≤k} π_[t:T] / π_[1:k] when tasks come in this order, without foreign data.

    >>> multiplier_of_order(np.array([0.25, 0.25, 0.25, 0.25]))
    4.0
    """
    remaining = weights[::-1].cumsum()[::-1]
    return float((remaining.cumsum() / weights.cumsum()).max())


def best_order(weights: Array) -> Array:
    """Return the order of tasks with the smallest multiplier: heavy ones first.

    For every k it has both the smallest Σ_{t≤k} π_[t:T] = Σ_i min(i, k) π_i and the largest π_[1:k].

    >>> best_order(np.array([0.2, 0.5, 0.3])).tolist()
    [1, 2, 0]
    """
    return np.argsort(-weights, kind="stable")


def worst_order(weights: Array) -> Array:
    """Return the order with the largest multiplier: light ones first."""
    return np.argsort(weights, kind="stable")
