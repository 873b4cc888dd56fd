"""Images that look like nothing learned, sorted into groups that can be named and learned."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from oarlock.data.images import prepare_in_chunks
from oarlock.errors import OarlockError
from oarlock.files import new_folder, write_json
from oarlock.learner import Learner
from oarlock.modelfile.predict import Answer
from oarlock.nets.adapters import CHUNK

_MOST_GROUPS = 50  # nobody names more
_SEED = 0  # of k-means, so that the same images are always grouped the same way


class Grouping(NamedTuple):
    """Hold the group of every image (0 is the largest), its distance to the group's centre, and the centres;
    distances and centres are those of features scaled to length 1."""

    groups: np.ndarray
    distances: np.ndarray
    centres: np.ndarray


def group_images(learner: Learner, images: Any, groups: int | None = None) -> Grouping:
    """Sort images that `learner` rejected by what they show: k-means on the bare trunk's features.

    Without a number of groups there are as many as it takes for a group to be as tight as groups of learned classes
    are, found in the same way among the known images that the learner keeps for its thresholds.

    >>> rng = np.random.default_rng(0)
    >>> dark, red, blue = (np.clip(rng.normal(rgb, 9, (9, 32, 32, 3)), 0, 255).astype("uint8")
    ...                    for rgb in ((40, 40, 40), (220, 40, 40), (40, 40, 220)))
    >>> learner = Learner("slda", trunk="vit_pico").learn(dark, ["dark"] * 9)
    >>> images = np.concatenate([dark, red, blue])
    >>> unknown = images[learner.predict(images, accept=0.95) == None]  # noqa: E711
    >>> found = group_images(learner, unknown, groups=2).groups
    >>> names = np.array(["colour A", "colour B"])
    >>> learner.learn(unknown, names[found]).classes_.tolist()
    ['dark', 'colour A', 'colour B']
    """
    features = _features(learner, images)
    if groups is not None and not 1 <= groups <= len(features):
        raise OarlockError(f"{groups} groups of {len(features)} images: give a number between 1 and {len(features)}")
    found, centres = _k_means(features, groups or _number_of_groups(learner, features))
    largest_first = np.argsort(-np.bincount(found, minlength=len(centres)), kind="stable")
    centres = centres[largest_first]
    found = np.argsort(largest_first)[found]
    return Grouping(found, np.linalg.norm(features - centres[found], axis=1), centres)


def _number_of_groups(learner: Learner, features: np.ndarray) -> int:
    known = learner.calibration
    if len(known) < 2:
        raise OarlockError(
            f"the model keeps {len(known)} known images, too few to choose a number of groups; give it"
        )
    wanted = _looseness(_features(learner, known.images), min(len(learner.classes_), len(known) // 2))
    most = max(1, min(_MOST_GROUPS, len(features) // 2))
    return next((k for k in range(1, most) if _looseness(features, k) <= wanted), most)


def _looseness(features: np.ndarray, groups: int) -> float:
    """Mean squared distance to the centres, for the centres that were fitted."""
    found, centres = _k_means(features, groups)
    return float(np.square(features - centres[found]).sum() / (len(features) - groups))


def _k_means(features: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.cluster import KMeans

    fitted = KMeans(groups, n_init=5, random_state=_SEED).fit(features)
    used, found = np.unique(fitted.labels_, return_inverse=True)  # among equal images some groups stay empty
    return found, fitted.cluster_centers_[used]


@torch.no_grad()
def _features(learner: Learner, images: Any) -> np.ndarray:
    """Of length 1, under the bare trunk. (A task's features group unknown images no better: they learned what tells
    the task's own classes apart.)"""
    trunk = learner.trunk
    chunks = prepare_in_chunks(images, trunk.rule, CHUNK)
    features = torch.cat([trunk(chunk.to(trunk.mean.device)).cpu() for chunk in chunks])
    if features.isnan().any():
        raise OarlockError("the trunk's features of these images are not numbers (NaN): its weights are damaged")
    return torch.nn.functional.normalize(features.double()).numpy()


def check_empty(out: Path) -> None:
    """Refuse a place for groups that holds something already."""
    if out.exists() and not out.is_dir():
        raise OarlockError(f"{out} is a file: choose a folder for the groups")
    if out.exists() and any(out.iterdir()):
        raise OarlockError(f"{out} is not empty: choose another folder for the groups")


def write_groups(out: Path, answers: Sequence[Answer], grouping: Grouping, facts: dict[str, Any]) -> dict[str, Any]:
    """Copy images into `out`/group-1, group-2, …, and write what is known of them into groups.json; return its
    content. The folder appears when all is in it."""
    check_empty(out)
    content = {**facts, "groups": [_described(answers, grouping, number) for number in range(len(grouping.centres))]}
    with new_folder(out) as folder:
        for group in content["groups"]:
            (folder / group["folder"]).mkdir()
            for image in group["files"]:
                shutil.copy2(image["from"], folder / group["folder"] / image["file"])
        write_json(folder / "groups.json", content)
    return content


def _described(answers: Sequence[Answer], grouping: Grouping, number: int) -> dict[str, Any]:
    """One group for groups.json, its most typical image first."""
    rows = np.flatnonzero(grouping.groups == number)
    rows = rows[np.argsort(grouping.distances[rows], kind="stable")]
    members = [answers[row] for row in rows.tolist()]
    gaps = np.linalg.norm(grouping.centres - grouping.centres[number], axis=1)
    gaps[number] = np.inf
    nearest = int(gaps.argmin())
    files = [
        {"file": name, "from": str(answer.path), "distance": distance, "score": answer.score}
        for name, answer, distance in zip(
            _different_names([Path(answer.path) for answer in members]),
            members,
            grouping.distances[rows].tolist(),
            strict=True,
        )
    ]
    return {
        "folder": _folder(number),
        "images": len(rows),
        "mean_distance": float(grouping.distances[rows].mean()),
        "nearest": None if len(gaps) == 1 else {"folder": _folder(nearest), "distance": float(gaps[nearest])},
        "files": files,
    }


def _folder(number: int) -> str:
    return f"group-{number + 1}"


def _different_names(paths: Sequence[Path]) -> list[str]:
    """The file names, with a number in those that occurred before (on some disks A.jpg and a.jpg are the same).

    >>> _different_names([Path("a/x.jpg"), Path("b/x.jpg"), Path("c/X.JPG"), Path("d/y.jpg")])
    ['x.jpg', 'x-2.jpg', 'X-3.JPG', 'y.jpg']
    """
    names: list[str] = []
    taken: set[str] = set()
    for path in paths:
        name, number = path.name, 1
        while name.lower() in taken:
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        taken.add(name.lower())
        names.append(name)
    return names
