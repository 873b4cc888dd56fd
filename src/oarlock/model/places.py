"""Where a model's own files are: the lock and the checkpoint stand beside it, hidden."""

import os
from pathlib import Path
from typing import NamedTuple


class Places(NamedTuple):
    """
    >>> places(Path("/shop/animals.oar")).checkpoint.name
    '.animals.oar.learning'
    """

    model: Path
    lock: Path
    checkpoint: Path


def places(model: Path) -> Places:
    """A link to a model stands for the file it leads to, which is the one to be locked and replaced."""
    real = Path(os.path.realpath(model))
    return Places(real, real.parent / f".{real.name}.lock", real.parent / f".{real.name}.learning")
