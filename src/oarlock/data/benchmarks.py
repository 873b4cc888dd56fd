"""Streams that others cut: experiences of Avalanche and task sets of Continuum, read by what both document. Neither
package is imported."""

from pathlib import Path
from typing import Any

import numpy as np

from oarlock.data.images import prepare, short_side
from oarlock.data.pictures import Preprocessing
from oarlock.data.sources import Labelled, Pictures
from oarlock.errors import OarlockError


def of_experience(experience: Any) -> Labelled:
    """Return the images of an Avalanche experience as they are before the benchmark's transforms, which are another
    network's: ours prepares its images itself."""
    # By way of those for training: in data sets inside of others no group but these can be removed.
    dataset = experience.dataset.train().remove_current_transform_group()
    items = [dataset[index] for index in range(len(dataset))]
    return Labelled(_pictures([item[0] for item in items]), _names([item[1] for item in items]))


def of_task_set(task_set: Any) -> Labelled:
    """Return the images of a Continuum task set, before transforms as well."""
    images, labels, _ = task_set.get_raw_samples()
    return Labelled(_pictures(images), _names(labels))


def in_parts(train: Any, test: Any) -> list[tuple[Any, Any]]:
    """Return what is trained and tested on, task by task."""
    first, second = list(train), list(test)
    if len(first) != len(second) or not first:
        raise OarlockError(
            f"the stream has {len(first)} parts to train on and {len(second)} to test on: "
            "it needs a test part for each, of the same classes"
        )
    return list(zip(first, second, strict=True))


def _pictures(images: Any) -> Pictures:
    """Files as they are; all else in one size, that of most, without a change where all have it and are square."""
    if isinstance(images[0], str | Path):
        return tuple(map(Path, images))
    size = short_side(list(images))
    rule = Preprocessing(size, size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return prepare(list(images), rule).permute(0, 2, 3, 1).contiguous().numpy()


def _names(labels: Any) -> np.ndarray:
    return np.array([str(int(label)) for label in labels])
