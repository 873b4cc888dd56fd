"""iCaRL: its loss by hand, its prediction by scikit-learn's nearest centroid."""

import numpy as np
import torch
from sklearn.neighbors import NearestCentroid

from conftest import make_task
from oarlock import Learner
from oarlock.data.images import prepare
from oarlock.methods.icarl import TrainSigmoids
from oarlock.training import TaskData

OPTIONS = {"epochs": 2, "width": 8, "batch": 8, "lr": 0.1}


def learned(trunk, *tasks) -> Learner:
    learner = Learner("icarl", trunk=trunk, memory=8, calibration=0.0, **OPTIONS)
    for task in tasks:
        learner.learn(*task)
    return learner


def test_prediction_is_the_nearest_mean_of_exemplars(tiny_trunk):
    learner = learned(tiny_trunk, make_task([0, 1]), make_task([2, 3]))
    method, memory = learner.method, learner.method.memory
    exemplars = torch.nn.functional.normalize(method.encode(memory.images, [0])[:, 0], dim=1).numpy()
    nearest = NearestCentroid().fit(exemplars, memory.labels.numpy())
    nearest.centroids_ /= np.linalg.norm(nearest.centroids_, axis=1, keepdims=True)
    images = make_task([0, 1, 2, 3], 12, seed=5)[0]
    features = method.encode(prepare(images, learner.trunk.card.preprocessing), [0])[:, 0].numpy()
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    assert learner.predict(images).tolist() == nearest.predict(features).tolist()


def test_the_loss_is_binary_with_old_answers_as_targets(tiny_trunk):
    learner = learned(tiny_trunk, make_task([0, 1]))
    method = learner.method
    images, labels = make_task([2, 3])
    task = TaskData(1, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels) - 2, 2, seed=0)
    method.begin(task)
    seen = torch.cat([task.images, method.memory.images])  # the memory's stand behind the task's twenty
    rows = torch.tensor([0, 12, 20, 21, 25])  # of classes 2, 3 and, from the memory, 0 and 1
    old = method.network.head(method.encode(seen[rows], [0])[:, 0]).detach()
    phase = TrainSigmoids(method, task)
    phase.start()
    with torch.no_grad():
        method.network.head.weight += 0.3  # what is distilled is the network before the task, not as it is now
    phase.prepare()
    assert set(phase.labels[rows].tolist()) == {0, 1, 2, 3}
    logits = phase.logits(rows)
    ours = phase.objective(logits, phase.labels[rows], rows)
    p, by_hand = logits.sigmoid(), 0.0
    for i, label in enumerate(phase.labels[rows].tolist()):
        for c in range(4):
            target = float(old[i, c].sigmoid()) if c < 2 else float(label == c)
            by_hand -= target * p[i, c].log() + (1 - target) * (1 - p[i, c]).log()
    torch.testing.assert_close(ours, by_hand / len(rows), rtol=1e-4, atol=1e-5)
