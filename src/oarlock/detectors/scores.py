"""Detectors on the outputs of heads, on distances, and on the memory."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.detectors import detector
from oarlock.detectors.gaussians import Gaussians, log_nearness, plain_distances

LEADING = 100  # probabilities that generalised entropy looks at, at most, as in GEN's paper
POWER = 0.1  # of them, as there
NEIGHBOUR = 5  # a class keeps about twenty images; among thousands the paper takes the fiftieth


@detector("own")
def own(own: Tensor) -> Tensor:
    """Score by what the method itself tells tasks apart by: for ROW and MORE the best output of the OOD head times
    the distance coefficient, for TPL its calibrated ratio, for others the largest score of a class."""
    return own


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


@detector("max-logit")
def max_logit(logits: Tensor) -> Tensor:
    """Score by the largest logit of the task's classes, not held against "not mine"."""
    return logits.amax(1)


@detector("distance")
def distance(features: Tensor, gaussians: Gaussians) -> Tensor:
    """Score by the distance coefficient alone: how near the nearest class mean is, in its task's metric."""
    return log_nearness(gaussians.distances(features))


@detector("memory")
def memory(features: Tensor, gaussians: Gaussians, memory: Tensor, own_in_memory: Tensor) -> Tensor:
    """Score by how near the nearest image of the memory is, in the features and the metric of its task."""
    distances = plain_distances(gaussians.whiten(features), gaussians.whiten(memory))
    return -distances.masked_fill(~own_in_memory, torch.inf).amin(1)


@detector("knn")
def knn(features: Tensor, memory: Tensor, own_in_memory: Tensor) -> Tensor:
    """Score by how near the fifth nearest of the task's images in memory is, features of the task scaled to length 1
    (deep nearest neighbours, Sun et al., 2022); by the farthest, where the memory has fewer."""
    distances = plain_distances(F.normalize(features), F.normalize(memory)).masked_fill(~own_in_memory, torch.inf)
    nearest = distances.topk(min(NEIGHBOUR, len(memory)), largest=False).values
    farthest = nearest.masked_fill(nearest.isinf(), -torch.inf).amax(1)
    return -farthest.masked_fill(farthest == -torch.inf, torch.inf)  # a task of which nothing is kept claims nothing
