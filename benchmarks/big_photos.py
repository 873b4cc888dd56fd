"""Peak memory of learning and predicting 400 large JPEGs, which must never be decoded all at once: one JSON line.

python benchmarks/big_photos.py [--images 400] [--width 2000] [--height 1500]
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from oarlock.allocation import keep_freed_memory

GOAL_MB = 1500
DIFFERENT = 8  # photographs; the others are copies, which are read and decoded like any other file


def make_photos(folder: Path, count: int, width: int, height: int) -> None:
    random = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class-{number % 2}" / f"{number:04}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        if number < DIFFERENT:
            rough = Image.fromarray(random.integers(0, 256, (height // 50, width // 50, 3), dtype=np.uint8))
            rough.resize((width, height), Image.Resampling.BICUBIC).save(place, quality=90)
        else:
            shutil.copy(folder / f"class-{number % 2}" / f"{number % DIFFERENT:04}.jpg", place)


def learn(folder: Path) -> None:
    from oarlock import Learner

    Learner("oar", epochs=1, wp_epochs=1).learn(folder / "photos").save(folder / "big.oar")


def predict(folder: Path) -> None:
    from oarlock import load

    load(folder / "big.oar").predict(folder / "photos", accept=0.95)


STEPS = {"learn": learn, "predict": predict}


def peak_mb_of(step: str, folder: Path) -> float:
    """In a process of its own, whose peak is the step's."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        keep_freed_memory()  # as the command line does
        STEPS[options.step](options.folder)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))
        return
    with tempfile.TemporaryDirectory() as temporary:
        make_photos(Path(temporary) / "photos", options.images, options.width, options.height)
        peaks = {step: round(peak_mb_of(step, Path(temporary)), 1) for step in STEPS}
    line = {
        "name": "big_photos",
        "images": options.images,
        "pixels": [options.width, options.height],
        "decoded_mb": round(options.images * options.width * options.height * 3 / 2**20),
        "peak_mb": peaks,
        "goal_mb": GOAL_MB,
    }
    print(json.dumps(line))
    sys.exit(0 if max(peaks.values()) <= GOAL_MB else 1)


if __name__ == "__main__":
    main()
