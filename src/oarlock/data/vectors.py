"""Feature vectors in whatever form a user has them, made into float32 [N, D]."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.data.images import Label, labels_of
from oarlock.errors import OarlockError

LONGEST = 2**16  # features of a vector


def as_vectors(vectors: Any, features: int | None = None) -> Tensor:
    """Return feature vectors as a tensor [N, D], in the order given: an array, a tensor, a table or a list of rows.

    >>> as_vectors([[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]])
    """
    table = _table(vectors)
    if table.ndim != 2 or 0 in table.shape or table.shape[1] > LONGEST:
        raise OarlockError(
            f"the features have the shape {table.shape}: pass [N, D], a row for each input, at least one, and at "
            f"most {LONGEST} columns"
        )
    if features is not None and table.shape[1] != features:
        raise OarlockError(f"vectors have {table.shape[1]} features, and those learned have {features}")
    with np.errstate(over="ignore"):
        found = torch.from_numpy(table.astype(np.float32))
    if not bool(found.isfinite().all()):
        raise OarlockError("the features hold what is no finite number in single precision: remove or replace it")
    return found


def read_labelled_vectors(vectors: Any, labels: Any, features: int) -> tuple[Tensor, list[Label]]:
    """Return vectors of so many features and a label for each: what there is to learn.

    >>> read_labelled_vectors([[1, 2]], ["ant"], features=2)
    (tensor([[1., 2.]]), ['ant'])
    """
    found = as_vectors(vectors, features)
    return found, labels_of(len(found), labels)


def _table(vectors: Any) -> np.ndarray:
    if isinstance(vectors, torch.Tensor):
        vectors = vectors.detach().cpu()
        vectors = vectors.float() if vectors.is_floating_point() else vectors
    try:
        table = np.asarray(vectors)
    except ValueError:  # rows of different lengths
        table = np.empty(0, dtype=object)
    if isinstance(vectors, str | Path) or table.dtype.kind not in "fiub":
        raise OarlockError(
            f"the features are a {type(vectors).__name__} that is no table of numbers: pass an array [N, D], a row "
            "for each input"
        )
    return table
