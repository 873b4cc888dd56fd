"""TPL: its three scores, what is made of them and their calibration, in numpy; what the memory teaches in step 1."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from conftest import make_images, make_task
from contract.conftest import small_options
from oarlock import Learner
from oarlock.data.images import prepare
from oarlock.methods.tpl import MIN_MEAN_LOGIT, MIN_SQUARED_DISTANCE, Calibrate
from oarlock.training import NoCallback, Position, TaskData, run_phases

CLASSES = [["a", "b"], ["c"], ["d", "e", "f"]]
TASKS = [make_task(labels, 12) for labels in CLASSES]
TASK_OF_CLASS = np.array([0, 0, 1, 2, 2, 2])
IMAGES = make_task(["a", "c", "f", "unknown"], 3, seed=1)[0]


def teach(trunk, tasks=TASKS, memory=24, **options) -> Learner:
    settings = small_options("tpl", epochs=6, **options)
    learner = Learner("tpl", trunk=trunk, memory=memory, calibration=0.0, **settings)
    for task in tasks:
        learner.learn(*task)
    return learner


@pytest.fixture(scope="module")
def learner(tiny_trunk) -> Learner:
    return teach(tiny_trunk)


class ByHand:
    """A task's scores in float64, from the network's weights and the images it was taught."""

    def __init__(self, learner: Learner, task: int) -> None:
        self.learner, self.task = learner, task
        head = learner.method.heads[task]
        self.classes = len(CLASSES[task])
        self.weight, self.bias = head.weight.detach().double().numpy(), head.bias.detach().double().numpy()
        images, labels = TASKS[task]
        own, labels = self.features(images), np.array(labels)
        groups = [own[labels == label] for label in CLASSES[task]]
        covariance = sum(np.cov(group.T, ddof=0) for group in groups) / len(groups)
        self.precision = np.linalg.inv(0.8 * covariance + 0.2 * np.eye(len(covariance)))
        self.means = np.stack([group.mean(0) for group in groups])
        self.mean_logit = max(self.logits(own).max(1).mean(), MIN_MEAN_LOGIT)
        self.mean_nearness = self.nearness(own).mean()

    @property
    def foreign(self) -> np.ndarray:
        memory = self.learner.method.memory
        others = TASK_OF_CLASS[memory.labels.numpy()] != self.task
        return self.features(memory.images.permute(0, 2, 3, 1).numpy()[others])

    def features(self, images: np.ndarray) -> np.ndarray:
        pixels = prepare(images, self.learner.trunk.card.preprocessing)
        return self.learner.method.encode(pixels, [self.task])[:, 0].double().numpy()

    def logits(self, features: np.ndarray) -> np.ndarray:
        return (features @ self.weight.T + self.bias)[:, : self.classes]

    def nearness(self, features: np.ndarray) -> np.ndarray:
        squared = cdist(features, self.means, "mahalanobis", VI=self.precision) ** 2
        return (1 / np.maximum(squared, MIN_SQUARED_DISTANCE)).max(1)

    def knn(self, features: np.ndarray) -> np.ndarray:
        def unit(rows: np.ndarray) -> np.ndarray:
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

        foreign = unit(self.foreign)
        fifth = min(5, len(foreign))
        return NearestNeighbors(n_neighbors=fifth).fit(foreign).kneighbors(unit(features))[0][:, -1]

    def score(self, images: np.ndarray) -> np.ndarray:
        features = self.features(images)
        ratio = self.nearness(features) / self.mean_nearness + self.knn(features)
        return -np.log(np.exp(-ratio) + np.exp(-self.logits(features).max(1) / self.mean_logit))

    def within(self, images: np.ndarray) -> np.ndarray:
        return softmax(self.logits(self.features(images)))


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def encoded(learner: Learner, images: np.ndarray) -> torch.Tensor:
    return learner.method.encode(prepare(images, learner.trunk.card.preprocessing), range(len(learner.tasks_)))


def calibration_of(learner: Learner) -> tuple[np.ndarray, np.ndarray]:
    scales = learner.method.scales
    return np.array([scale.a.item() for scale in scales]), np.array([scale.b.item() for scale in scales])


# The scores


@pytest.mark.parametrize("task", range(3))
def test_each_of_the_three_scores_by_brute_force(learner: Learner, task: int) -> None:
    hand, tpl, features = ByHand(learner, task), learner.method, encoded(learner, IMAGES)[:, task]
    exact = features.double().numpy()
    with torch.no_grad():
        assert np.allclose(tpl.own_logits(features, task), hand.logits(exact), atol=1e-4)
        assert np.allclose(tpl.nearness(features, task), hand.nearness(exact), rtol=1e-3)
        assert np.allclose(tpl.foreign_distance(features, task), hand.knn(exact), atol=1e-4)
    assert hand.nearness(exact).max() < 1 / MIN_SQUARED_DISTANCE  # no floor hides the formula
    assert tpl.scales[task].mean_logit.item() == pytest.approx(hand.mean_logit, rel=1e-3)
    assert tpl.scales[task].mean_nearness.item() == pytest.approx(hand.mean_nearness, rel=1e-3)


def test_the_training_mean_of_logits_is_above_its_floor_where_there_was_something_to_tell_apart(
    learner: Learner,
) -> None:
    assert [scale.mean_logit.item() > MIN_MEAN_LOGIT for scale in learner.method.scales] == [True] * 3


def test_the_probability_is_the_formula(learner: Learner) -> None:
    tasks = [ByHand(learner, task) for task in range(3)]
    raw = np.stack([task.score(IMAGES) for task in tasks], 1)
    a, b = calibration_of(learner)
    assert np.all(a != 1) and np.all(b != 0)
    tp = softmax((a * raw + b) / 0.05)
    expected = np.concatenate([task.within(IMAGES) * tp[:, [k]] for k, task in enumerate(tasks)], 1)
    answer = learner.predict_proba(IMAGES)
    assert np.allclose(answer, expected, rtol=1e-2, atol=1e-4)
    assert np.allclose(answer.sum(1), 1)
    assert np.allclose(learner.in_distribution(IMAGES), (a * raw + b).max(1), atol=1e-3)
    with torch.no_grad():
        assert np.allclose(learner.method.task_scores(encoded(learner, IMAGES)).exp(), tp, rtol=1e-2, atol=1e-4)


def test_with_fewer_than_five_foreign_images_the_farthest_counts(tiny_trunk) -> None:
    learner = teach(tiny_trunk, memory=6)  # one image of each class
    counts = []
    for task in range(3):
        features = encoded(learner, IMAGES)[:, task]
        hand = ByHand(learner, task)
        counts.append(len(hand.foreign))
        assert np.allclose(
            learner.method.foreign_distance(features, task), hand.knn(features.double().numpy()), atol=1e-4
        )
    assert counts == [4, 5, 3]


def test_a_single_task_has_no_neighbours_and_no_calibration(tiny_trunk) -> None:
    learner = teach(tiny_trunk, TASKS[:1])
    hand, features = ByHand(learner, 0), encoded(learner, IMAGES)
    exact = features[:, 0].double().numpy()
    nearness, logit = hand.nearness(exact) / hand.mean_nearness, hand.logits(exact).max(1) / hand.mean_logit
    with torch.no_grad():
        raw = learner.method.raw_scores(features)[:, 0]
        assert torch.equal(learner.method.task_scores(features), torch.zeros(len(IMAGES), 1))
    assert np.allclose(raw, -np.log(np.exp(-nearness) + np.exp(-logit)), atol=1e-3)
    assert np.allclose(learner.predict_proba(IMAGES), hand.within(IMAGES), atol=1e-4)
    assert calibration_of(learner) == (1, 0)


def test_a_class_of_one_image_does_not_make_all_others_look_far(tiny_trunk) -> None:
    lone = np.concatenate([make_images(0, 12), make_images(1, 1)]), ["many"] * 12 + ["one"]
    with pytest.warns(UserWarning, match="single image"):
        learner = teach(tiny_trunk, [lone, make_task(["other"])])
    scale = learner.method.scales[0]
    assert scale.mean_nearness.item() < 1 / MIN_SQUARED_DISTANCE
    assert np.isfinite(learner.predict_proba(IMAGES)).all() and np.isfinite(learner.in_distribution(IMAGES)).all()


def mean_logit_of(trunk, own: list[float]) -> float:
    """Of a first task whose head gives every image these logits."""
    learner = Learner("tpl", trunk=trunk, calibration=0.0, **small_options("tpl", epochs=0))
    prepared = learner.prepare_task(*make_task(list(range(len(own)))))
    learner.method.begin(prepared.task)
    with torch.no_grad():
        learner.method.heads[0].weight.zero_()
        learner.method.heads[0].bias.copy_(torch.tensor(own))
    run_phases(learner.method.phases(prepared.task), prepared.task, NoCallback(), Position(0, 0, 0), None)
    return learner.method.scales[0].mean_logit.item()


def test_an_untrained_logit_is_not_blown_up(tiny_trunk) -> None:
    learner = teach(tiny_trunk, [make_task(["only"])])  # cross-entropy over one class teaches nothing
    assert learner.method.scales[0].mean_logit.item() == 1


@pytest.mark.parametrize("logit", [-3.0, 0.02, 7.0])
def test_the_only_output_of_a_head_is_taken_as_it_is(tiny_trunk, logit: float) -> None:
    assert mean_logit_of(tiny_trunk, [logit]) == 1


@pytest.mark.parametrize("own", [[0.65, -0.2], [0.1, 0.05, 0.6], [1.5, 3.0]])
def test_the_largest_of_several_logits_is_divided_by_its_mean_however_small(tiny_trunk, own: list[float]) -> None:
    assert mean_logit_of(tiny_trunk, own) == pytest.approx(max(own))


@pytest.mark.parametrize("own", [[-0.5, -0.2], [0.0, -1.0]])
def test_a_mean_that_is_not_above_zero_cannot_turn_scores_around(tiny_trunk, own: list[float]) -> None:
    assert mean_logit_of(tiny_trunk, own) == pytest.approx(MIN_MEAN_LOGIT)
    assert MIN_MEAN_LOGIT <= 0.01


# The steps


def test_in_step_1_the_memorys_images_keep_their_classes_behind_the_tasks(tiny_trunk) -> None:
    seen = []

    class Look(NoCallback):
        def on_phase(self, task, phase):
            self.phase = phase

        def on_step(self, epoch, fraction, loss):
            if self.phase.name == "features":
                memory = self.phase.method.memory
                seen.append((memory.labels.tolist(), self.phase.replay_labels.tolist(), self.phase.head.out_features))

    learner = teach(tiny_trunk, TASKS[:2])
    learner.learn(*TASKS[2], callback=Look())
    classes, labels, outputs = seen[0]
    assert sorted(set(classes)) == [0, 1, 2] and sorted(set(labels)) == [3, 4, 5]
    assert labels == [3 + number for number in classes]
    assert outputs == 6
    assert [head.out_features for head in learner.method.heads] == [2, 3, 6]


def test_heads_and_training_means_stay_as_their_task_left_them(tiny_trunk) -> None:
    learner = teach(tiny_trunk, TASKS[:1])
    head, scale = learner.method.heads[0].weight.clone(), learner.method.scales[0]
    means = scale.mean_logit.clone(), scale.mean_nearness.clone()
    learner.learn(*TASKS[1])
    scale = learner.method.scales[0]
    assert torch.equal(learner.method.heads[0].weight, head)
    assert torch.equal(scale.mean_logit, means[0]) and torch.equal(scale.mean_nearness, means[1])


def test_class_numbers_belong_to_tasks(learner: Learner) -> None:
    assert learner.method.tasks_of(torch.arange(6)).tolist() == TASK_OF_CLASS.tolist()


# The calibration


def test_the_calibration_is_gradient_descent_with_momentum_from_the_identity(learner: Learner) -> None:
    """Written out for the last task: the calibrations after earlier tasks have left no trace."""
    memory = learner.method.memory
    with torch.no_grad():
        raw = learner.method.raw_scores(memory.encoded).double().numpy()
    right = np.eye(3)[TASK_OF_CLASS[memory.labels.numpy()]]

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        return -np.log((softmax(a * raw + b) * right).sum(1)).mean()

    state = np.stack([np.ones(3), np.zeros(3)])
    velocity = np.zeros_like(state)
    for _ in range(100):
        error = (softmax(state[0] * raw + state[1]) - right) / len(raw)
        velocity = 0.8 * velocity + np.stack([(error * raw).sum(0), error.sum(0)])
        state -= 0.01 * velocity
    a, b = calibration_of(learner)
    assert np.allclose(a, state[0], atol=1e-4) and np.allclose(b, state[1], atol=1e-4)
    assert loss(a, b) < 0.99 * loss(np.ones(3), np.zeros(3))


def test_without_steps_scores_stay_as_they_are(tiny_trunk) -> None:
    learner = teach(tiny_trunk, TASKS[:2], calibration_steps=0)
    a, b = calibration_of(learner)
    assert a.tolist() == [1, 1] and b.tolist() == [0, 0]
    task = TaskData(1, torch.zeros(0), torch.zeros(0), 2, seed=0)
    assert Calibrate(learner.method, task).epochs == 0  # an epoch without a step would have no loss to report
