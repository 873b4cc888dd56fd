"""What there is to know of a machine when something is slow or wrong: versions, devices, extras, trunks, caches, and
whether learning and answering work at all."""

import os
import platform
import re
import tempfile
import time
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oarlock
from oarlock.caches import ram_limit
from oarlock.data.datasets import data_directory
from oarlock.data.sources import Labelled, open_source
from oarlock.learner import Learner
from oarlock.nets.trunks import BUNDLED, DEFAULT
from oarlock.nets.trunks.cnn import LITES
from oarlock.tasks import machine

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "scikit-learn")
NEEDED_BY = re.compile(r"([\w.-]+).*extra *== *[\"']([\w-]+)")  # a line of a package's requirements
FOR_WORK_ON_US = "dev"
OF_EACH = 10  # images of a class in the self-test
SECONDS = 3.0  # for which answering is measured


def examine(device: str = "cpu") -> dict[str, Any]:
    """Return all facts but the self-test's.

    >>> examine()["versions"]["oarlock"] == oarlock.__version__
    True
    """
    return {
        "versions": {"oarlock": oarlock.__version__, "python": platform.python_version()}
        | {name: installed(name) for name in PACKAGES},
        "system": platform.platform(),
        "machine": {**machine(torch.device(device)), "processors": os.cpu_count()},
        "devices": devices(),
        "extras": extras(),
        "trunks": trunks_at_hand(),
        "caches": caches(),
    }


def installed(package: str) -> str | None:
    """Return the version of a package; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def devices() -> list[str]:
    """Return what torch can compute on here."""
    found = ["cpu", *(f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def extras() -> dict[str, dict[str, str | None]]:
    """Return the packages of every extra, with their versions here."""
    found: dict[str, dict[str, str | None]] = {}
    for line in requires("oarlock") or []:
        match = NEEDED_BY.match(line)
        if match and match[2] != FOR_WORK_ON_US:
            found.setdefault(match[2], {})[match[1]] = installed(match[1])
    return found


def trunks_at_hand() -> list[str]:
    """Return the trunks that need no download: bundled, from packages, and those of timm's that were fetched."""
    packaged = [name for name, lite in LITES.items() if find_spec(lite.package)]
    fetched = [path.name.removeprefix("models--timm--") for path in hub().glob("models--timm--*")]
    return [BUNDLED, *packaged, *sorted(fetched)]


def hub() -> Path:
    """Return where timm's downloads are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def caches() -> dict[str, str]:
    """Return where things are kept that can be fetched or computed again."""
    return {
        "data sets": str(data_directory()),
        "weights (timm)": str(hub()),
        "weights (torch)": torch.hub.get_dir(),
        "activations": f"{tempfile.gettempdir()}, beyond {ram_limit() / 1e9:.1f} GB of RAM",
    }


def self_test(device: str = "cpu", trunk: str = DEFAULT) -> dict[str, Any]:
    """Teach a learner two classes of the bundled sample and ask it for some seconds; return how fast it was, how
    often right, and whether a copy made as files are made answers bit for bit alike."""
    sample = open_source("sample")
    learner = Learner("slda", trunk=trunk, device=device)
    train, test = (part.of(sample.classes[:2]).at_most(OF_EACH) for part in (sample.train, sample.test))
    began = time.perf_counter()
    learner.learn(train.images, train.labels.tolist())
    learned = time.perf_counter() - began
    copy = Learner.from_state(*learner.state(), device=device)
    same = np.array_equal(copy.predict_proba(test.images[:8]), learner.predict_proba(test.images[:8]))
    return {
        "trunk": learner.trunk.card.name,
        "pixels": learner.trunk.size,
        "learned_per_second": round(len(train) / learned, 1),
        "answered_per_second": round(answers_per_second(learner, test), 1),
        "right": learner.score(test.images, test.labels.tolist()),
        "same_from_file": bool(same),
    }


def answers_per_second(learner: Learner, test: Labelled) -> float:
    """Return how many images a second are answered, in batches of all of them; the first is not counted."""
    learner.predict(test.images)
    batches, began = 0, time.perf_counter()
    while not batches or time.perf_counter() - began < SECONDS:
        learner.predict(test.images)
        batches += 1
    return batches * len(test) / (time.perf_counter() - began)
