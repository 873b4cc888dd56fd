"""Detectors on the outputs of heads, on distances, and on the memory."""

import torch
from torch import Tensor

from oarlock.detectors import detector
from oarlock.detectors.gaussians import Gaussians, log_nearness, plain_distances

LEADING = 100  # probabilities that generalised entropy looks at, at most, as in GEN's paper
POWER = 0.1  # of them, as there


@detector("own")
def own(own: Tensor) -> Tensor:
    """Score by what the method itself tells tasks apart by: for ROW and MORE the best output of the OOD head times
    the distance coefficient, for TPL its calibrated ratio, for others the largest score of a class."""
    return own


@detector("familiar")
def familiar(familiarity: Tensor) -> Tensor:
    """Score by statistics of the bare trunk: how much inputs lie in the direction of a class mean, and how much
    nearer it is than all classes together (relative Mahalanobis distance)."""
    return familiarity


@detector("relative")
def relative(relative: Tensor) -> Tensor:
    """Score by how much nearer a class is than all classes together, under the bare trunk (relative Mahalanobis
    distance)."""
    return relative


@detector("direction")
def direction(direction: Tensor) -> Tensor:
    """Score by how much inputs lie in the direction of a class mean, however far away, under the bare trunk
    (normalised Mahalanobis distance)."""
    return direction


@detector("ridge")
def ridge(ridge: Tensor) -> Tensor:
    """Score by the largest output of a ridge regression on the bare trunk's values."""
    return ridge


@detector("gen")
def gen(probabilities: Tensor) -> Tensor:
    """Score by how little the probabilities of the final answer are spread: minus their generalised entropy (GEN,
    Liu et al., 2023)."""
    leading = probabilities.topk(min(LEADING, probabilities.shape[1])).values
    return -(leading * (1 - leading)).clamp_min(0).pow(POWER).sum(1)


@detector("confidence")
def confidence(probabilities: Tensor) -> Tensor:
    """Score by the likeliest class's probability in the final answer (maximum softmax)."""
    return probabilities.amax(1)


@detector("nearest")
def nearest(nearness: Tensor) -> Tensor:
    """Score by how near the nearest class mean is under the bare trunk, in one metric for all classes (Mahalanobis
    distance)."""
    return nearness


@detector("vim")
def vim(beside_virtual: Tensor) -> Tensor:
    """Score by the classes' discriminants under the bare trunk against a virtual class: what lies off the directions
    in which everything learned varies (ViM, Wang et al., 2022)."""
    return beside_virtual


@detector("score")
def score(scores: Tensor) -> Tensor:
    """Score by the best class's score in the final answer, whatever tells tasks apart."""
    return scores.amax(1)


@detector("softmax")
def softmax(log_probabilities: Tensor) -> Tensor:
    """Score by the best class's output of the OOD head alone."""
    return log_probabilities.amax(1)


@detector("not-foreign")
def not_foreign(log_probabilities: Tensor) -> Tensor:
    """Score by one minus the output "not mine": what all the task's classes have together."""
    return log_probabilities.logsumexp(1)


@detector("energy")
def energy(logits: Tensor) -> Tensor:
    """Score by the logits of the task's classes, not held against "not mine"."""
    return logits.logsumexp(1)


@detector("distance")
def distance(features: Tensor, gaussians: Gaussians) -> Tensor:
    """Score by the distance coefficient alone: how near the nearest class mean is, in its task's metric."""
    return log_nearness(gaussians.distances(features))


@detector("memory")
def memory(features: Tensor, gaussians: Gaussians, memory: Tensor, own_in_memory: Tensor) -> Tensor:
    """Score by how near the nearest image of the memory is, in the features and the metric of its task."""
    distances = plain_distances(gaussians.whiten(features), gaussians.whiten(memory))
    return -distances.masked_fill(~own_in_memory, torch.inf).amin(1)
