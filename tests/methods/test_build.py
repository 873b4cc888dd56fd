"""BUILD: HAT's training, and a detector in place of an OOD head."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis

from conftest import make_task
from oarlock import Learner, OarlockError
from oarlock.data.images import prepare

TASKS = [["a", "b"], ["c", "d", "e"]]
OPTIONS = {"epochs": 2, "width": 8, "batch": 8, "calibration": 0.0}
TEST = make_task(["a", "c", "e"], 5, seed=1)[0]


def taught(tiny_trunk, method: str = "build", **options) -> Learner:
    learner = Learner(method, trunk=tiny_trunk, **OPTIONS, **options)
    for labels in TASKS:
        learner.learn(*make_task(labels))
    return learner


def encoded(learner: Learner) -> torch.Tensor:
    pixels = prepare(TEST, learner.trunk.card.preprocessing)
    return learner.method.encode(pixels, learner.method.feature_sets(2)).detach()


def test_training_is_hats_tensor_for_tensor_and_so_are_answers_by_the_largest_logit(tiny_trunk) -> None:
    build, hat = taught(tiny_trunk, memory=0, task_by="max-logit"), taught(tiny_trunk, "hat")
    state = build.method.state_dict()
    for name, value in hat.method.state_dict().items():
        assert torch.equal(state[name], value), name
    assert build.predict(TEST).tolist() == hat.predict(TEST).tolist()
    assert len(build.method.memory) == 0


@pytest.mark.parametrize("task_by", ["distance", "energy"])
def test_the_task_that_claims_most_answers_by_its_own_head(tiny_trunk, task_by: str) -> None:
    learner = taught(tiny_trunk, memory=0, task_by=task_by, tau=1e-3)
    method, seen = learner.method, encoded(learner)
    expected = []
    for row in seen.double().numpy():
        claims, best = [], []
        for task, labels in enumerate(TASKS):
            features = row[task]
            head = [p.detach().double().numpy() for p in method.heads[task].parameters()]
            logits = head[0] @ features + head[1]
            if task_by == "energy":
                claims.append(np.log(np.exp(logits).sum()))
            else:
                inverse = covariance_inverse(learner, task)
                means = class_means(learner, task)
                claims.append(-np.log(min(mahalanobis(features, mean, inverse) for mean in means)))
            best.append(labels[logits.argmax()])
        expected.append(best[int(np.argmax(claims))])
    assert learner.predict(TEST).tolist() == expected
    assert np.isfinite(learner.in_distribution(TEST)).all()


def own_features(learner: Learner, task: int) -> dict[str, np.ndarray]:
    method, found = learner.method, {}
    for name in TASKS[task]:
        pixels = prepare(make_task([name])[0], learner.trunk.card.preprocessing)
        found[name] = method.encode(pixels, [task])[:, 0].detach().double().numpy()
    return found


def class_means(learner: Learner, task: int) -> list[np.ndarray]:
    return [rows.mean(0) for rows in own_features(learner, task).values()]


def covariance_inverse(learner: Learner, task: int) -> np.ndarray:
    covariance = np.mean([np.cov(rows.T, ddof=0) for rows in own_features(learner, task).values()], 0)
    return np.linalg.inv(0.8 * covariance + 0.2 * np.eye(len(covariance)))


def test_a_method_that_replays_refuses_to_go_without_and_says_which_does(tiny_trunk) -> None:
    with pytest.raises(OarlockError, match=r"memory=0: row learns with images of earlier tasks; without are .*build"):
        Learner("row", trunk=tiny_trunk, memory=0)
    with pytest.raises(OarlockError, match="needs memory"):
        Learner("build", trunk=tiny_trunk, detector="memory")
