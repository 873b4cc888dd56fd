"""Peak memory of learning and predicting more and more images, with little RAM for caches: one JSON line.

    python benchmarks/memory.py [--images 1000,4000,8000] [--pixels 64] [--cache-ram 0.005] [--set adapt_last=1]

Runs `oarlock learn` and `oarlock predict`, each in a process of its own. `anonymous_mb` is memory that cannot be
given back (RssAnon of /proc/PID/status, looked at every 2 ms, so a very short peak can be missed; Linux only).
`peak_mb` is the system's own record of the peak (ru_maxrss), in which pages of mapped files count as well, though the
system takes them back whenever it needs the memory. `growth_percent` is of anonymous memory, from the last but one
number of images to the last.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

GOAL_PERCENT = 5.0
CLASSES = 10
EVERY = 0.002  # seconds
COMMAND = [sys.executable, "-c", "from oarlock.cli import main; main()"]


class Peak(NamedTuple):
    """Megabytes."""

    anonymous: float
    resident: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", default="1000,4000,8000")
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--cache-ram", type=float, default=0.005, help="gigabytes")
    parser.add_argument("--set", default="adapt_last=1", help="an option of the method; this one keeps activations")
    given = parser.parse_args()
    os.environ["OARLOCK_CACHE_RAM"] = str(given.cache_ram)
    counts = [int(count) for count in given.images.split(",")]
    peaks: dict[str, list[Peak]] = {"learn": [], "predict": []}
    for count in counts:
        with tempfile.TemporaryDirectory() as temporary:
            folder, model = Path(temporary) / "images", Path(temporary) / "model.oar"
            make_images(folder, count, given.pixels)
            peaks["learn"].append(peak_of("learn", model, folder, "--epochs", 1, "--threads", 1, "--set", given.set))
            peaks["predict"].append(peak_of("predict", model, folder, "--json"))
    growth = {step: round(100 * (of[-1].anonymous / of[-2].anonymous - 1), 1) for step, of in peaks.items()}
    line = {
        "name": "memory",
        "images": counts,
        "pixels": given.pixels,
        "cache_ram_gb": given.cache_ram,
        "option": given.set,
        "anonymous_mb": {step: [round(peak.anonymous, 1) for peak in of] for step, of in peaks.items()},
        "peak_mb": {step: [round(peak.resident, 1) for peak in of] for step, of in peaks.items()},
        "growth_percent": growth,
        "goal_percent": GOAL_PERCENT,
    }
    print(json.dumps(line))


def make_images(folder: Path, count: int, pixels: int) -> None:
    random = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class-{number % CLASSES}" / f"{number:05}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (pixels, pixels, 3), dtype=np.uint8)).save(place)


def peak_of(*arguments: object) -> Peak:
    """Of one call of the command."""
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    anonymous, ended = 0.0, 0
    while not ended:
        anonymous = max(anonymous, anonymous_mb(process.pid))
        time.sleep(EVERY)
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
    if status:
        raise SystemExit(f"oarlock {' '.join(map(str, arguments))} failed")
    return Peak(anonymous, used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))


def anonymous_mb(process: int) -> float:
    """At present; 0 of a process that has ended."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 2**10 for line in lines if line.startswith("RssAnon:"))


if __name__ == "__main__":
    main()
