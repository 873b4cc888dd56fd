"""Photographs, both sides in one run: OAR task by task against what scikit-learn does with frozen features at once.

    python benchmarks/photos.py TRAIN TEST --classes 50 --increment 10 --unknown 30 --orders 3

TRAIN and TEST are folders of class folders. Of the classes with enough training photos some are learned, others are
never; which, and in what tasks, an order of `random.Random(100 + order)` says. The baselines see all classes at once:
a linear discriminant on the trunk's features and on the means of all its stages, a logistic regression, and a ridge
regression on a random lift. One line of JSON for every order. With `--hold-out` some of the training photos are not
trained on, and it is said how many of them are accepted. With `--detectors` each of those that look at the trunk's
statistics is measured: on never-learned photos, and on calibration photos of learned classes left out in turn.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from oarlock import Learner
from oarlock.cli.common import parse_options
from oarlock.data.folders import class_folders, image_files
from oarlock.data.images import prepare_in_chunks
from oarlock.detectors import detectors
from oarlock.nets.trunks import Trunk
from oarlock.tasks import sure_rank

SHRINKAGES = (0.1, 0.4)  # of the discriminants: both are shown, so that the better one is never ours to hide
LIFT = 2000  # values of the random lift
ACCEPT = 0.95
PARTS = 5  # in which classes are left out
OF_STATISTICS = ("familiar", "direction", "relative", "ridge")

Photos = tuple[list[Path], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--increment", type=int, default=10)
    parser.add_argument("--unknown", type=int, default=30)
    parser.add_argument("--least", type=int, default=18, help="training photos that a class must have")
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first of the orders")
    parser.add_argument("--method", default="oar", help="or a comma list; a line for each")
    parser.add_argument("--trunk", default="efficientnet_lite0")
    parser.add_argument("--memory", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hold-out", type=float, default=0.0, help="share of the training photos")
    parser.add_argument("--detectors", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without the other side")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for order in range(asked.first, asked.first + asked.orders):
        for line in measure(asked, order):
            print(json.dumps(line), flush=True)


def measure(asked: argparse.Namespace, order: int) -> Iterator[dict[str, Any]]:
    """Yield what each method comes to in one class order, and the other side, which is the same for all."""
    names = [name for name, folder in class_folders(asked.train).items() if len(image_files(folder)) >= asked.least]
    random.Random(100 + order).shuffle(names)
    known, never = names[: asked.classes], names[asked.classes : asked.classes + asked.unknown]
    test, unknown, other_side = photos_of(asked.test, known), photos_of(asked.test, never), dict[str, Any]()
    for method in asked.method.split(","):
        learner = Learner(method, trunk=asked.trunk, memory=asked.memory, **parse_options(asked.set))
        ours = of_method(learner, asked, known, test, unknown)
        if not asked.alone and not other_side:
            other_side = {"baselines": baselines(learner.trunk, photos_of(asked.train, known), test, unknown)}
        yield {"order": order, **ours, **other_side}


def of_method(
    learner: Learner, asked: argparse.Namespace, known: list[str], test: Photos, unknown: Photos
) -> dict[str, Any]:
    """Teach the learned classes to a learner, task by task, and return what it comes to."""

    seconds, passes, sizes, held_out = 0.0, 0.0, list[int](), list[Path]()
    for start in range(0, len(known), asked.increment):
        (paths, labels), more = held_back(
            *photos_of(asked.train, known[start : start + asked.increment]), asked.hold_out
        )
        held_out += more
        seconds += timed(lambda paths=paths, labels=labels: learner.learn(paths, labels))
        passes += timed(lambda paths=paths: frozen(learner.trunk, paths))
        sizes.append(sum(value.numel() * value.element_size() for value in learner.state()[0].values()))
    predicted, strange = learner.predict_scores(test[0]), learner.predict_scores(unknown[0])
    right = learner.classes_[predicted.scores.argmax(1).numpy()] == np.array(test[1])
    known_scores, unknown_scores = predicted.in_distribution, strange.in_distribution
    return {
        "trunk": learner.trunk.card.name,
        "pixels": learner.trunk.size,
        "method": learner.method.name,
        "options": parse_options(asked.set),
        "tasks": len(learner.tasks_),
        "photos": {"test": len(test[0]), "unknown": len(unknown[0])},
        "accuracy": round(100 * float(right.mean()), 2),
        **rejection(known_scores.numpy(), unknown_scores.numpy()),
        "accepted": round(100 * float((known_scores >= learner.threshold(ACCEPT)).float().mean()), 2),
        **({"accepted_of_held_out": accepted(learner, held_out)} if held_out else {}),
        **({"detectors": by_detector(learner, test[0], unknown[0])} if asked.detectors else {}),
        "learning_in_passes": round(seconds / passes, 2),
        **prediction_cost(learner, test[0][:256]),
        "megabytes": round(sizes[-1] / 1e6, 1),
        "megabytes_per_task": round((sizes[-1] - sizes[0]) / 1e6 / max(len(sizes) - 1, 1), 2),
    }


def photos_of(folder: Path, classes: list[str]) -> Photos:
    """Return the files of some classes, and their labels."""
    found = [(path, name) for name in classes for path in image_files(folder / name)]
    return [path for path, _ in found], [name for _, name in found]


def held_back(paths: list[Path], labels: list[str], share: float) -> tuple[Photos, list[Path]]:
    """Return photos to learn from, and a share of them drawn at random not to."""
    drawn = np.random.default_rng(0).random(len(paths)) < share
    kept = [(path, label) for path, label, out in zip(paths, labels, drawn, strict=True) if not out]
    return ([path for path, _ in kept], [label for _, label in kept]), [paths[i] for i in np.flatnonzero(drawn)]


def accepted(learner: Learner, paths: list[Path]) -> float:
    """Return the share of photos that are not rejected, in percent."""
    answers = learner.predict(paths, accept=ACCEPT)
    return round(100 * float(np.mean([answer is not None for answer in answers])), 2)


@torch.no_grad()
def by_detector(learner: Learner, test: list[Path], unknown: list[Path]) -> dict[str, dict[str, float]]:
    """Return for every detector of the trunk's statistics how well it tells never-learned photos from test photos,
    and how well it told classes left out from others on calibration photos."""
    method, kept, rule = learner.method, learner.calibration, learner.trunk.card.preprocessing
    sets = method.feature_sets(len(learner.tasks_))

    def encode(paths: list[Path]) -> torch.Tensor:
        return torch.cat([method.encode(chunk, sets) for chunk in prepare_in_chunks(paths, rule, 256)])

    known, strange = encode(test), encode(unknown)
    parts = torch.randperm(len(learner.classes_), generator=torch.Generator().manual_seed(0)).chunk(PARTS)
    left_out = [(without(method, part), torch.isin(kept.labels, part)) for part in parts]
    found = {}
    for name in OF_STATISTICS:
        seen, never, line = (best_scores(method, name, encoded) for encoded in (known, strange, kept.encoded))
        threshold = line.sort().values[sure_rank(len(line), ACCEPT)]
        scores = [(best_scores(less, name, kept.encoded).numpy(), strangers) for less, strangers in left_out]
        found[name] = {
            **rejection(seen.numpy(), never.numpy()),
            "accepted": round(100 * float((seen >= threshold).float().mean()), 2),
            "auroc_left_out": round(float(np.mean([rejection(s[~out], s[out])["auroc"] for s, out in scores])), 4),
        }
    return found


def best_scores(method: Any, detector: str, encoded: torch.Tensor) -> torch.Tensor:
    return detectors.find(detector).scores(method, encoded).amax(1)


def without(method: Any, classes: torch.Tensor) -> Any:
    """Return a copy whose statistics do not know some classes, all in one task."""
    less = copy.deepcopy(method)
    kept = [number for number in range(len(method.trunk_gaussians.means)) if number not in classes.tolist()]
    pooled = method.trunk_gaussians.state_dict()
    less.trunk_gaussians.rebuild(len(kept))
    less.trunk_gaussians.load_state_dict({**pooled, "means": pooled["means"][kept]})
    less.classes_per_task, less.closed = [len(kept)], [True]
    return less


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@torch.no_grad()
def frozen(trunk: Trunk, paths: list[Path]) -> np.ndarray:
    """Return the bare trunk's features, and after them the mean of every stage."""
    chunks = prepare_in_chunks(paths, trunk.card.preprocessing, 256)
    seen = [trunk.below_and_bare(chunk, len(trunk.stages) - 1)[1].flatten(1) for chunk in chunks]
    return torch.cat(seen)[:, : trunk.bare_dim].numpy()


def prediction_cost(learner: Learner, paths: list[Path]) -> dict[str, float]:
    """Return how long answers take, also against a pass of the bare trunk, on pixels at hand; the best of three."""
    images = torch.cat(list(prepare_in_chunks(paths, learner.trunk.card.preprocessing, 256)))
    predictor = learner.accelerate().predictor()
    with torch.no_grad():
        answers = min(timed(lambda: predictor.predict_scores(images)) for _ in range(3))
        bare = min(timed(lambda: learner.trunk(images)) for _ in range(3))
    return {"prediction_in_passes": round(answers / bare, 2), "ms_per_image": round(1000 * answers / len(images), 1)}


def baselines(trunk: Trunk, train: Photos, test: Photos, unknown: Photos) -> dict[str, Any]:
    """Return what discriminants and regressions on frozen features come to, all classes at once."""
    seen, tested, never = (frozen(trunk, paths) for paths, _ in (train, test, unknown))
    labels, last, results = np.array(train[1]), slice(0, trunk.dim), {}
    lift = np.random.default_rng(0).standard_normal((trunk.dim, LIFT)) / np.sqrt(trunk.dim)

    def lifted(features: np.ndarray) -> np.ndarray:
        return np.maximum(features[:, last] @ lift, 0)

    def features_of(features: np.ndarray) -> np.ndarray:
        return features[:, last]

    def all_of(features: np.ndarray) -> np.ndarray:
        return features

    models: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Any]] = {
        "logistic regression": (features_of, make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))),
        "random lift + ridge": (lifted, RidgeClassifierCV(10.0 ** np.arange(-2, 6))),
    }
    for shrinkage in SHRINKAGES:
        discriminant = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
        models[f"discriminant, shrinkage {shrinkage}"] = (features_of, discriminant)
        discriminant = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
        models[f"discriminant on all stages, shrinkage {shrinkage}"] = (all_of, discriminant)
    for name, (view, model) in models.items():
        model.fit(view(seen), labels)
        accuracy = float((model.predict(view(tested)) == np.array(test[1])).mean())
        scores = [model.decision_function(view(features)).max(1) for features in (tested, never)]
        results[name] = {"accuracy": round(100 * accuracy, 2), **rejection(*scores)}
    return results


def rejection(known: np.ndarray, unknown: np.ndarray) -> dict[str, float]:
    """Return how well scores tell known photos from unknown ones, by their largest output."""
    truth, scores = [1] * len(known) + [0] * len(unknown), np.concatenate([known, unknown])
    accepted = float((unknown >= np.quantile(known, 1 - ACCEPT)).mean())
    return {"auroc": round(float(roc_auc_score(truth, scores)), 4), "fpr95": round(100 * accepted, 2)}


if __name__ == "__main__":
    main()
